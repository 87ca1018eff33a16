#!/bin/bash
# Trains one job file on several hosts. The servers run on this host, and Open MPI starts the
# workers on the hosts of a hostfile: one worker for each slot.
#
#   mpirun.sh HOSTFILE JOB_FILE [FLAG of ps-worker ...]
#
# A hostfile has a line for each host, such as "host-b slots=2". mpirun starts its daemon on each
# host through ssh without a password. ps-worker, the job file, its data and its checkpoint
# directory must have the same paths on all hosts.
#
# SIGTERM, SIGINT or SIGUSR1 to this script: the workers write a checkpoint and leave. The same
# command with --resume continues.
#
# These variables may be set in the environment:
#
#   SERVERS  number of servers; default: 1
#   PORT     port of server 0; server i listens on PORT + i; default: 7000
#   ADDRESS  name or address at which the other hosts reach this one; default: its host name

set -uo pipefail

if [ $# -lt 2 ]; then
  echo "usage: mpirun.sh HOSTFILE JOB_FILE [FLAG of ps-worker ...]" >&2
  exit 2
fi
hostfile=$1
job_file=$2
shift 2
servers=${SERVERS:-1}
port=${PORT:-7000}
address=${ADDRESS:-$(hostname)}

# mpirun's own exit code does not depend on workers that end on a signal: it kills all workers when
# the first has ended with another code than 0, or it ends with 0. So a shell around each worker
# ends with 0 and prints the code. Shell and cat outlive the signal, which their whole group
# receives. mpirun gives each worker a terminal; through cat the worker prints lines, not a bar.
# shellcheck disable=SC2016  # expanded beside the worker
run='
  trap : USR1 TERM
  "$@" | (trap "" USR1 TERM; exec cat)
  echo "mpirun.sh: rank $OMPI_COMM_WORLD_RANK has ended with exit code ${PIPESTATUS[0]}"'

folder=$(mktemp -d)
mkfifo "$folder/output"
serving=()
trap 'kill "${serving[@]}" 2>/dev/null; rm -rf "$folder"' EXIT
for ((index = 0; index < servers; ++index)); do
  # A server that dies is not restarted, so it keeps no state. It lets in whoever reaches its port;
  # docs/security.md says how to use certificates instead.
  flags=(--index="$index" --port="$((port + index))" --state=none --exit_when_done
         --drain_timeout=90s --insecure)
  if [ "$index" -eq 0 ]; then
    flags+=(--servers="$servers")
  else
    flags+=(--coordinator="$address:$port")
  fi
  # Ctrl-C in a terminal sends SIGINT to the group of this script. Servers and mpirun have others.
  setsid ps-server "${flags[@]}" &
  serving+=($!)
done

# Prints what the workers print, and stores the largest of their exit codes. It outlives Ctrl-C.
report() {
  trap '' INT
  local line worst=0
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ mpirun\.sh:\ rank\ [0-9]+\ has\ ended\ with\ exit\ code\ ([0-9]+) ]] &&
      [ "${BASH_REMATCH[1]}" -gt "$worst" ]; then
      worst=${BASH_REMATCH[1]}
    fi
  done
  echo "$worst" >"$folder/code"
}
report <"$folder/output" &
reading=$!

# mpirun forwards SIGUSR1. On SIGTERM it would kill the workers after a second.
setsid mpirun --hostfile "$hostfile" bash -c "$run" run \
  "$(command -v ps-worker)" --job="$job_file" --server="$address:$port" --stop_grace=60s "$@" \
  >"$folder/output" &
training=$!
trap 'kill -USR1 "$training"' TERM INT USR1

# end_of PID: waits for a process, also if a signal interrupts the wait, and returns its exit code.
end_of() {
  local code
  while :; do
    wait "$1"
    code=$?
    if ! kill -0 "$1" 2>/dev/null; then return "$code"; fi
  done
}

# The exit code of this script is mpirun's, or else the largest of the workers' codes.
end_of "$training"
code=$?
end_of "$reading"
if [ "$code" -eq 0 ]; then code=$(cat "$folder/code"); fi
# The servers end with the job. If it has failed before it began, the servers are ended here.
if [ "$code" -eq 0 ]; then
  for server in "${serving[@]}"; do end_of "$server"; done
fi
exit "$code"
