#!/usr/bin/env bash
# Starts a run on this host: run.sh RANKS CONFIG.yaml [key=value ...]. More ranks than cores are fine.
# Ctrl-C, SIGTERM and SIGUSR1 stop the run in peace: mpirun would kill its ranks within two seconds of the first two, so
# all three become SIGUSR1, which it passes on; the step in flight finishes, a checkpoint is saved, the exit code is 75.
set -u
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: run.sh RANKS CONFIG.yaml [key=value ...]" >&2
    exit 2
fi
ranks=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
program=${DMUON_TRAIN:-$here/../bin/dmuon-train}
[ -x "$program" ] || program=$here/../../../bin/dmuon-train # installed below a PREFIX
[ -x "$program" ] || program=$(command -v dmuon-train || true)
if [ -z "$program" ]; then
    echo "run.sh: there is no dmuon-train beside the scripts or in PATH; build it with make, or name it in DMUON_TRAIN" >&2
    exit 2
fi
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# USR1 is ignored until mpirun and the ranks have their handlers. mpirun passes no signal on while it starts its ranks,
# so that it is told again until the job ends.
job=
teller=
tell() {
    [ -z "$teller" ] && [ -n "$job" ] || return 0
    (while kill -USR1 "$job" 2>/dev/null; do sleep 1; done) &
    teller=$!
}
stopping=
trap 'stopping=1; tell' INT TERM USR1
(trap '' USR1; exec setsid mpirun -q --oversubscribe --bind-to none -np "$ranks" "$program" "$@") &
job=$!
[ -z "$stopping" ] || tell
while :; do
    wait "$job"
    code=$?
    kill -0 "$job" 2>/dev/null || break
done
[ -z "$teller" ] || kill "$teller" 2>/dev/null
exit "$code"
