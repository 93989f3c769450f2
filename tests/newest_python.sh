#!/usr/bin/env bash
# Run the default tests, or those that the arguments name, with the Python of Debian 13 and the newest versions of
# all dependencies, in a root directory of its own. Needs root and mmdebstrap.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${NEW_ROOT:-}" ]; then
    NEW_ROOT=$(mktemp -d)
    export NEW_ROOT
    trap 'rm -rf "$NEW_ROOT"' EXIT
    # What is mounted below the directory is gone once this ends.
    unshare --mount --propagation private "$0" "$@"
    exit
fi

mmdebstrap --quiet --variant=minbase \
    --include=ca-certificates,gcc,git,libc6-dev,procps,python3-dev,python3-venv trixie "$NEW_ROOT"
# The network and the certificates are those of this host.
cp /etc/resolv.conf "$NEW_ROOT/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$NEW_ROOT/etc/ssl/certs/"
mkdir "$NEW_ROOT/distmom"
git ls-files -z | xargs -0 cp --parents --target-directory "$NEW_ROOT/distmom"
mount -t proc proc "$NEW_ROOT/proc"
mount -t sysfs sysfs "$NEW_ROOT/sys"
mount --rbind /dev "$NEW_ROOT/dev"
mount -t tmpfs tmpfs "$NEW_ROOT/tmp"

env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    chroot "$NEW_ROOT" bash -euo pipefail -c '
        cd /distmom
        python3 -m venv .venv
        .venv/bin/pip install -q -e ".[test]"
        .venv/bin/python -m pytest -n auto "$@"
    ' tests "$@"
