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
# A rank whose handler is not there yet would die of USR1. So mpirun, which has a session of its own, is told when as many
# processes of it as there are ranks catch USR1 (bit 9 of SigCgt), and again until the job ends.
job=
teller=
ranks_listen() {
    cat /proc/[0-9]*/status 2>/dev/null | awk -v session="$job" -v ranks="$ranks" '
        /^Pid:/ { pid = $2 }
        /^NSsid:/ { ours = $2 == session && pid != session }
        /^SigCgt:/ { n += ours && substr($2, length($2) - 2, 1) ~ /[2367abef]/ }
        END { exit n < ranks }'
}
tell() {
    [ -z "$teller" ] && [ -n "$job" ] || return 0
    (
        while kill -0 "$job" 2>/dev/null && ! ranks_listen; do sleep 0.1; done
        while kill -USR1 "$job" 2>/dev/null; do sleep 1; done
    ) &
    teller=$!
}
stopping=
trap 'stopping=1; tell' INT TERM USR1
(trap '' USR1; exec setsid mpirun -q --oversubscribe --bind-to none -np "$ranks" "$program" "$@") &
job=$!
[ -z "$stopping" ] || tell
wait "$job"
code=$?
while kill -0 "$job" 2>/dev/null; do # wait also ends at each trapped signal
    wait "$job"
    code=$?
done
wait "$job" # the signal and the end may come together; 127: the status was already given
last=$?
[ "$last" -eq 127 ] || code=$last
[ -z "$teller" ] || kill "$teller" 2>/dev/null
exit "$code"
