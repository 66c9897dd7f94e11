#!/usr/bin/env bash
# Submits JOBS jobs of which each starts when the one before has ended, and prints their numbers:
#   chain.sh JOBS [sbatch option ...] scripts/train.sbatch CONFIG.yaml [key=value ...]
# For runs that are longer than a job may be, where jobs are not requeued. All jobs have one name (so no -J): the one that
# finishes the run, or is refused, cancels those that still wait; `scancel --jobname=NAME` cancels all.
set -eu
if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]{0,3}$ ]]; then
    echo "usage: chain.sh JOBS [sbatch option ...] scripts/train.sbatch CONFIG.yaml [key=value ...]" >&2
    exit 2
fi
jobs=$1
shift
DMUON_CHAIN=dmuon-$(date +%Y%m%d-%H%M%S)-$$
export DMUON_CHAIN
submit() { # option ... ; the new job's number
    local id
    id=$(sbatch --parsable --job-name="$DMUON_CHAIN" --no-requeue "$@") || return 1
    echo "${id%%;*}"
}
undo() {
    scancel --user="$(id -un)" --jobname="$DMUON_CHAIN"
    echo "chain.sh: not submitted" >&2
    exit 1
}
# The first waits until all are there: it could finish the run before.
first=$(submit --hold "$@") || undo
all=("$first")
while [ ${#all[@]} -lt "$jobs" ]; do
    next=$(submit --dependency="afterany:${all[-1]}" "$@") || undo
    all+=("$next")
done
scontrol release "$first" || undo
echo "$DMUON_CHAIN: ${all[*]}"
