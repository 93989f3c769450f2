#!/usr/bin/env bash
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
# One fit on a SLURM allocation: scheduler and client on the first node, and one worker per task on all nodes.
#
#   sbatch --nodes=4 --ntasks-per-node=8 --mem-per-cpu=4G deploy/slurm.sh CORPUS MODEL [options of 'distmom fit']
#
# CORPUS, MODEL, the directory of submission and the environment with distmom must be on a file system shared by all
# nodes. Connections use TLS with certificates of this job, in .distmom-JOBID below the directory of submission.
#
# Two minutes before the time limit, the fit is interrupted and the job is queued again, at most REQUEUES times (10 by
# default); after the failure of a node or a preemption, SLURM queues it again. The fit then resumes after its last
# committed pass. 'scancel' ends the job for good. COMMAND=ingest runs 'distmom ingest SRC DST ...' instead of a fit.
set -euo pipefail

script=${BASH_SOURCE[0]}
if [ -n "${SLURM_JOB_ID:-}" ]; then
    # SLURM runs a copy of this file; the settings are beside the original, whose path precedes the arguments.
    command=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')
    script=${command%" $*"}
fi
export DASK_CONFIG=${DASK_CONFIG:-$(dirname "$script")/dask.yaml}
if [ ! -r "$DASK_CONFIG" ]; then
    echo "$DASK_CONFIG: the Dask configuration cannot be read; set DASK_CONFIG to its path" >&2
    exit 2
fi
port=${PORT:-8786}
host=${HOST:-$(hostname -f)}
address=tls://$host:$port
certificates=$PWD/.distmom-${SLURM_JOB_ID:-$$}

# Stop all processes started by this script when it exits.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$certificates"' EXIT

# A start of this job that was killed has left its certificates.
rm -rf "$certificates"
python "$(dirname "$script")/certificates.py" "$certificates"
tls=(--tls-ca-file "$certificates/ca.pem" --tls-cert "$certificates/cert.pem" --tls-key "$certificates/key.pem")
dask scheduler --protocol tls --host "$host" --port "$port" "${tls[@]}" &
srun --overlap dask worker "$address" "${tls[@]}" --nworkers 1 --nthreads 1 --memory-limit "${MEMORY:-4GiB}" \
    --death-timeout 120 &

# The shell handles signals only while it waits for a process in the background.
distmom "${COMMAND:-fit}" "$@" --scheduler "$address" "${tls[@]}" &
driver=$!
interrupted=''
trap 'interrupted=TERM; kill "$driver" || true' TERM INT
trap 'interrupted=USR1; kill "$driver" || true' USR1
code=0
wait "$driver" || code=$?
if [ -n "$interrupted" ]; then
    # The signal has ended 'wait', not the driver.
    code=0
    wait "$driver" || code=$?
fi
# 130: the driver was interrupted, and has recorded that.
if [ "$interrupted" = USR1 ] && [ "$code" -eq 130 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-10}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
