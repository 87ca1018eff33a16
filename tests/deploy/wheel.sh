# Sourced by the tests that install the wheel: makes the wheel, and runs programs as the ranks of a
# job. `folder` is a temporary folder.

folder=$(mktemp -d)
server=
stop_all() {
  if [ -n "$server" ]; then kill "$server"; fi
  rm -rf "$folder"
}
trap stop_all EXIT

# install_wheel ARG...: installs dist/*.whl, without a network, in an environment that
# `python3 -m venv ARG...` makes.
install_wheel() {
  /usr/bin/python3 -m venv "$@" "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --no-index --disable-pip-version-check dist/*.whl
}

# start_server: starts a server, whose address is then in SYNCGRADS_SERVER.
start_server() {
  bazel-bin/server/ps-server --bind=127.0.0.1 --port=0 --state="$folder/state" \
    >"$folder/server" 2>&1 &
  server=$!
  local deadline=$((SECONDS + 60))
  until grep -q "listening on" "$folder/server"; do
    if [ "$SECONDS" -gt "$deadline" ]; then cat "$folder/server" >&2; return 1; fi
    sleep 0.1
  done
  SYNCGRADS_SERVER=$(sed -n 's/.*listening on //p' "$folder/server" | head -1)
  export SYNCGRADS_SERVER
}

# run_python PROGRAM ARG...: runs a Python program in the folder that has nothing of this tree.
run_python() { (cd "$folder" && timeout 600 venv/bin/python "$@"); }

# run_ranks PROGRAM ARG...: runs a Python program as two ranks, or as many as RANKS. Prints the
# output of each rank.
run_ranks() {
  local ranks=${RANKS:-2} rank status=0 pids=()
  for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank WORLD_SIZE=$ranks run_python "$@" >"$folder/rank$rank" 2>&1 &
    pids+=($!)
  done
  for ((rank = 0; rank < ranks; rank++)); do
    wait "${pids[$rank]}" || status=$?
    sed "s/^/rank $rank: /" "$folder/rank$rank"
  done
  return "$status"
}
