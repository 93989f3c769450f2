#!/usr/bin/env bash
# One fit on a SLURM allocation: a scheduler and the client on the first node, one worker a task on all nodes.
#
#   sbatch --nodes=4 --ntasks-per-node=8 --mem-per-cpu=4G deploy/slurm.sh CORPUS MODEL [options of 'distmom fit']
#
# CORPUS, MODEL and the environment that holds distmom lie on a file system that all nodes see.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DASK_CONFIG=${DASK_CONFIG:-$here/dask.yaml}
port=${PORT:-8786}
host=${HOST:-$(hostname -f)}
address=tcp://$host:$port

# Everything that this script has started ends with it.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

dask scheduler --host "$host" --port "$port" &
srun --overlap dask worker "$address" --nworkers 1 --nthreads 1 --memory-limit "${MEMORY:-4GiB}" --death-timeout 120 &

distmom fit "$@" --scheduler "$address"
