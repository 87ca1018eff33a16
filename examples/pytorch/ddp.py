"""Averages gradients of a DistributedDataParallel through the servers.

    ps-server --port=7000 &
    SYNCGRADS_SERVER=localhost:7000 torchrun --nproc_per_node=2 ddp.py"""

import torch
from torch import nn

import syncgrads.torch as sg
from data import accuracy, batches, make_model

with sg.init() as job:             # dist.init_process_group("gloo")
    model = sg.ddp(make_model())   # model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(job.rank, job.world_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(f"rank {job.rank}: accuracy {accuracy(model.module):.3f}")
    torch.distributed.destroy_process_group()
