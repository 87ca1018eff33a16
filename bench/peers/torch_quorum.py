"""A worker of //bench:stopped: makes steps with PyTorch until it is killed, under a quorum."""

import argparse
import time

import torch
from torch import nn

import syncgrads.torch as sg


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="HOST:PORT")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world_size", type=int, required=True)
    parser.add_argument("--least", type=int, required=True, help="of the quorum")
    parser.add_argument("--sleep_ms", type=float, default=0, help="of each step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sg.init(options.server, "bench", rank=options.rank, world_size=options.world_size,
            max_workers=options.world_size, timeout=120)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sg.elastic(model, optimizer, policy={"quorum": {"least": options.least, "kept": 1024}})
    x = torch.rand(64, 32)
    while True:
        time.sleep(options.sleep_ms / 1e3)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


main()
