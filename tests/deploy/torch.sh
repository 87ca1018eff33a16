# shellcheck shell=bash
# Sourced by the tests of syncgrads.torch, after wheel.sh.

# find_port: finds a free port for torch.distributed's store.
find_port() {
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=$(/usr/bin/python3 -c '
import socket
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1])')
  export MASTER_ADDR MASTER_PORT
}

# train_two_ranks: trains beside DistributedDataParallel over gloo, with two ranks, which must end
# with the same bits; then with tensors on emulated CUDA devices.
train_two_ranks() {
  local way
  find_port
  run_ranks "$PWD/tests/client/python/torch_test.py"
  for way in DistributedOptimizer ddp; do
    [ "$(cat "$folder/rank0" "$folder/rank1" | grep -o "$way [0-9a-f]*" | sort -u | wc -l)" -eq 1 ]
  done
  run_ranks "$PWD/tests/client/python/cuda_test.py"
}
