"""Trains a small network with syncgrads.torch as two ranks that share one device, and compares the
parameters with those of one process that averages the gradients of both ranks itself.

  torch_ranks.py --server=HOST:PORT --device=cuda

Prints lines measured|WHAT|VALUE|UNIT. The exit code is 3 if there is no PyTorch, or if it cannot
use the device.
"""

import argparse
import copy
import hashlib
import os
import subprocess
import sys
import time

try:
    import torch  # before syncgrads, whose libraries then use PyTorch's C++ runtime
    from torch import nn
except ImportError as missing:
    print(f"{sys.executable}: {missing}", file=sys.stderr)
    sys.exit(3)

import syncgrads.torch as sg

RANKS = 2
TIMEOUT_S = 60
BATCH, SIDE = 16, 32
# The largest permitted difference, relative to the largest parameter. There is one because the
# device may add in another order in every run.
TOLERANCE = 1e-4


def make_model(device):
    torch.manual_seed(1)
    # Without ReLU and pooling: a rounded bit does not change which way a number takes.
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 64, 3, 2, 1), nn.Tanh(),
        nn.Flatten(), nn.Linear(64 * (SIDE // 2) ** 2, 128), nn.Tanh(), nn.Linear(128, 10),
    ).to(device)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model, step, rank, device):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator).to(device)
    targets = torch.randint(10, (BATCH,), generator=generator).to(device)
    return nn.functional.cross_entropy(model(images), targets)


def parameters_of(model):
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def train_alone(model, device, steps):
    """Trains with the mean of the gradients of all ranks."""
    optimizer = make_optimizer(model)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(RANKS):
            (loss_of(model, step, rank, device) / RANKS).backward()
        optimizer.step()
    return parameters_of(model)


def train(model, optimizer, device, rank, steps):
    """Trains as one of the ranks. Returns the parameters, and the time of a step in seconds."""
    begin = None
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, rank, device).backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        if step == 0:  # it includes the first allocations
            begin = time.monotonic()
    return parameters_of(model), (time.monotonic() - begin) / (steps - 1)


def compare(name, parameters, seconds, expected):
    """Prints how the parameters of this rank differ from those of one process."""
    difference = ((parameters - expected).abs().max() / expected.abs().max()).item()
    checksum = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()[:16]
    print("measured", f"{name}, bits of the parameters", checksum, "", sep="|")
    print("measured", f"{name}, step", f"{1000 * seconds:.3g}", "ms", sep="|")
    print("measured", f"{name}, largest difference to one process", f"{difference:.3g}",
          "of the largest parameter", sep="|", flush=True)
    if not difference <= TOLERANCE:
        sys.exit(f"{name}: differs from one process by {difference:.3g}, more than {TOLERANCE}")


def run_rank(options):
    rank = int(os.environ["RANK"])
    device = options.device
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    expected = train_alone(make_model(device), device, options.steps)
    job = sg.init(options.server, timeout=TIMEOUT_S)
    model = make_model(device)
    wrapped = copy.deepcopy(model)
    optimizer = sg.DistributedOptimizer(make_optimizer(model), model)
    compare("DistributedOptimizer", *train(model, optimizer, device, rank, options.steps), expected)
    ddp = sg.ddp(wrapped, name="ddp")
    compare("ddp", *train(ddp, make_optimizer(ddp), device, rank, options.steps), expected)
    torch.distributed.destroy_process_group()
    job.leave()


def run_ranks():
    """Runs this program as the ranks of a job. Prints the output of rank 0."""
    # Only ddp uses gloo, for its process group of one process.
    common = {**os.environ, "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={**common, "RANK": str(rank)})
             for rank in range(RANKS)]
    outputs = [rank.communicate()[0] for rank in ranks]
    print(outputs[0], flush=True)
    for rank, process in enumerate(ranks):
        if process.returncode != 0:
            sys.exit(f"rank {rank}, exit code {process.returncode}: {outputs[rank]}")
    bits = [[line for line in output.splitlines() if "bits" in line] for output in outputs]
    if bits[0] != bits[1]:
        sys.exit(f"the ranks have other bits: {bits}")
    print("measured", "bits of both ranks", "the same", "", sep="|")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="HOST:PORT")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    if options.device != "cpu" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} has no {options.device}", file=sys.stderr)
        sys.exit(3)
    run_ranks()


if __name__ == "__main__":
    main()
