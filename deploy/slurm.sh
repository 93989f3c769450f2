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
# default); after the failure of a node or a preemption, SLURM queues it again. The fit then resumes after the last
# finished groups of shards. 'scancel' ends the job for good. COMMAND=ingest runs 'distmom ingest SRC DST ...' instead of a fit.
#
# The tasks of an array are further workers of such a job. Each joins as soon as it has its allocation, and ends with
# the job; at its time limit and after a preemption it is queued again. From the same directory of submission:
#
#   sbatch --array=1-64 --mem-per-cpu=4G deploy/slurm.sh JOBID
set -euo pipefail

script=${BASH_SOURCE[0]}
own=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
own=${own:-${SLURM_JOB_ID:-}}
if [ -n "$own" ]; then
    # SLURM runs a copy of this file; the settings are beside the original, whose path precedes the arguments.
    command=$(scontrol show job "$own" | sed -n 's/^ *Command=//p')
    script=${command%" $*"}
fi
export DASK_CONFIG=${DASK_CONFIG:-$(dirname "$script")/dask.yaml}
if [ ! -r "$DASK_CONFIG" ]; then
    echo "$DASK_CONFIG: the Dask configuration cannot be read; set DASK_CONFIG to its path" >&2
    exit 2
fi
job=${own:-$$}
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    job=${1:-}
    if ! [[ "$job" =~ ^[0-9]+$ ]] || [ $# -ne 1 ]; then
        echo "expected the id of the job whose workers the tasks of this array are, got '$*'" >&2
        exit 2
    fi
fi
certificates=$PWD/.distmom-$job
address=$certificates/scheduler.json
# A worker must not have more than SLURM allows its task, as it would be killed instead of spilling to disk.
limit=4096
if [ "${SLURM_MEM_PER_CPU:-0}" -gt 0 ]; then
    allowed=$((SLURM_MEM_PER_CPU * ${SLURM_CPUS_PER_TASK:-1}))
elif [ "${SLURM_MEM_PER_NODE:-0}" -gt 0 ]; then
    allowed=$((SLURM_MEM_PER_NODE / ${SLURM_NTASKS_PER_NODE:-1}))
else
    allowed=$limit
fi
memory=${MEMORY:-$((allowed < limit ? allowed : limit))MiB}
tls=(--tls-ca-file "$certificates/ca.pem" --tls-cert "$certificates/cert.pem" --tls-key "$certificates/key.pem")
workers=(srun --overlap dask worker --scheduler-file "$address" "${tls[@]}" --nworkers 1 --nthreads 1
    --memory-limit "$memory" --death-timeout 120)

code=0
child=''
interrupted=''
trap 'interrupted=TERM; kill "$child" || true' TERM INT
trap 'interrupted=USR1; kill "$child" || true' USR1
# Run a command in the background, as the shell handles signals only while it waits for one.
run() {
    "$@" &
    child=$!
    code=0
    wait "$child" || code=$?
    if [ -n "$interrupted" ]; then
        # The signal has ended 'wait', not the command.
        code=0
        wait "$child" || code=$?
    fi
}

if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    # The job may be waiting, or be queued again, with another scheduler.
    while [ -z "$interrupted" ] && [ -n "$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null || true)" ]; do
        if [ -r "$address" ]; then
            run "${workers[@]}"
        fi
        [ -n "$interrupted" ] || run sleep $((5 + RANDOM % 20))
    done
    code=${interrupted:+130}
    code=${code:-0}
else
    # Stop all processes started by this script when it exits.
    trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$certificates"' EXIT
    # An earlier start of this job that was killed may have left its certificates.
    rm -rf "$certificates"
    python "$(dirname "$script")/certificates.py" "$certificates"
    port=${PORT:-8786}
    host=${HOST:-$(hostname -f)}
    dask scheduler --protocol tls --host "$host" --port "$port" --scheduler-file "$address" "${tls[@]}" &
    "${workers[@]}" &
    run distmom "${COMMAND:-fit}" "$@" --scheduler "tls://$host:$port" "${tls[@]}"
fi
# 130: the driver was interrupted, and has recorded that, or the workers of this task were.
if [ "$interrupted" = USR1 ] && [ "$code" -eq 130 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-10}" ]; then
    scontrol requeue "$own"
fi
exit "$code"
