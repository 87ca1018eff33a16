"""Trains with local steps: the workers synchronise after every 16 steps.

    ps-server --port=7000 &
    SYNCGRADS_SERVER=localhost:7000 torchrun --nproc_per_node=2 diloco.py"""

import torch
from torch import nn

import syncgrads.torch as sg
from data import accuracy, batches, make_model

with sg.init() as job:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = {"nesterov": {"learning_rate": 0.7, "momentum": 0.5}}  # for short cycles
    with sg.DiLoCo(model, optimizer, sync_every=16, outer=outer):  # or sg.LocalSGD
        for x, y in batches(job.rank, job.world_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(f"rank {job.rank}: accuracy {accuracy(model):.3f}")
