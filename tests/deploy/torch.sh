# shellcheck shell=bash
# Sourced by the tests of syncgrads.torch, after wheel.sh.

# run_test NAME: runs a test of tests/client/python as two ranks, or as many as RANKS.
run_test() {
  echo "$1: ${RANKS:-2} ranks"
  run_ranks "$PWD/tests/client/python/$1"
}

# expect_same_bits WORD: fails unless all ranks of the last test have printed the same checksum after
# WORD.
expect_same_bits() {
  local found
  found=$(cat "$folder"/rank? | grep -o "$1.* [0-9a-f]\{16\}$" | grep -o "[0-9a-f]*$" | sort -u) || true
  [ "$(wc -w <<<"$found")" -eq 1 ] && return
  echo "$1: the checksums of the ranks are: $found" >&2
  return 1
}

# train_ranks: trains beside DistributedDataParallel over gloo; then with tensors on emulated CUDA
# devices; then models that people train, with two and four ranks.
train_ranks() {
  local name
  run_test torch_test.py
  for name in DistributedOptimizer ddp; do expect_same_bits "$name"; done
  run_test misuse_test.py
  run_test variants_test.py
  run_test cuda_test.py
  for RANKS in 2 4; do
    run_test models_test.py
    for name in digits resnet18; do expect_same_bits "$name"; done
  done
  unset RANKS
}
