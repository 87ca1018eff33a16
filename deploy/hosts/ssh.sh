#!/bin/bash
# Trains one job file on several hosts, with ssh alone: a server on the first host, and a worker on
# each host. A host that is named twice has two workers.
#
#   ssh.sh JOB_FILE HOST ... [-- FLAG of ps-worker ...]
#
# ssh must work without a password. ps-server, ps-worker, the job file, its data and its checkpoint
# directory must have the same paths on all hosts, and the hosts must resolve the first host's name.
#
# SIGTERM, SIGINT or SIGUSR1 to this script: the workers write a checkpoint and leave. They do the
# same if this script dies or the connection breaks. The same command with --resume continues.
#
# These variables may be set in the environment:
#
#   PORT  port of the server; default: 7000
#   SSH   the command for ssh, with its options; default: ssh

set -uo pipefail

job_file=${1:-}
hosts=()
shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  hosts+=("$1")
  shift
done
shift  # the --
if [ ${#hosts[@]} -eq 0 ]; then
  echo "usage: ssh.sh JOB_FILE HOST ... [-- FLAG of ps-worker ...]" >&2
  exit 2
fi
port=${PORT:-7000}
read -r -a ssh <<<"${SSH:-ssh}"

# The remote command: runs a program, and sends it SIGTERM when stdin ends.
# shellcheck disable=SC2016  # expanded on the other host
run='
  exec 3<&0
  "$@" </dev/null 3<&- &
  program=$!
  { read -r <&3; kill -TERM "$program"; } >/dev/null 2>&1 &
  watching=$!
  wait "$program"
  code=$?
  kill "$watching" 2>/dev/null
  exit "$code"'

# on HOST COMMAND...: runs a command on a host until it ends, or until this script has closed
# descriptor 9. The caller closes it for this function.
on() {
  local host=$1
  shift
  "${ssh[@]}" "$host" "$(printf '%q ' bash -c "$run" run "$@")" <"$open"
}

# All ssh read from one pipe, which this script holds open.
folder=$(mktemp -d)
open=$folder/open
mkfifo "$open"
exec 9<>"$open"
trap 'rm -rf "$folder"' EXIT

# A server that dies is not restarted, so it keeps no state. It lets in whoever reaches its port;
# docs/security.md says how to use certificates instead.
on "${hosts[0]}" "$(command -v ps-server)" --port="$port" --state=none --exit_when_done \
  --drain_timeout=90s --insecure 9>&- &
serving=$!
training=()
for rank in "${!hosts[@]}"; do
  on "${hosts[$rank]}" "$(command -v ps-worker)" --job="$job_file" --server="${hosts[0]}:$port" \
    --rank="$rank" --world_size="${#hosts[@]}" --stop_grace=60s "$@" 9>&- &
  training+=($!)
done
trap 'exec 9>&-' TERM INT USR1

# end_of PID: waits for a process, also if a signal interrupts the wait, and returns its exit code.
end_of() {
  local code
  while :; do
    wait "$1"
    code=$?
    if ! kill -0 "$1" 2>/dev/null; then return "$code"; fi
  done
}

# The exit code of this script is the largest of the workers' codes.
worst=0
for worker in "${training[@]}"; do
  end_of "$worker"
  code=$?
  if [ "$code" -gt "$worst" ]; then worst=$code; fi
done
# The server ends with the job. If no worker has joined, it is ended here.
if [ "$worst" -ne 0 ]; then exec 9>&-; fi
end_of "$serving"
exit "$worst"
