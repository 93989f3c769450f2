#!/bin/sh
# Install the programs of Debian that tests of deploy/ and of separate hosts run; such tests are skipped without them.
set -eu
apt-get update -qq || true
exec apt-get install -y -qq --no-install-recommends \
    slurmctld slurmd slurm-client munge iproute2 podman docker.io mmdebstrap prometheus shellcheck
