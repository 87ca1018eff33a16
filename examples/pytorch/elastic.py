"""Trains with workers that may leave and join while the job runs. Start a third one with RANK=2
meanwhile, or kill one and start it again.

    ps-server --port=7000 &
    SYNCGRADS_SERVER=localhost:7000 RANK=0 WORLD_SIZE=2 python3 elastic.py &
    SYNCGRADS_SERVER=localhost:7000 RANK=1 WORLD_SIZE=2 python3 elastic.py"""

import torch
from torch import nn

import syncgrads.torch as sg
from data import accuracy, make_model, rows

with sg.init(max_workers=8) as job:
    x, y = rows()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    sampler = sg.DealtSampler(len(x), batch_size=32, epochs=2)  # DistributedSampler(data)
    optimizer = sg.elastic(model, optimizer, sampler, schedulers=[scheduler], schedule_by="pass")
    for batch in sampler:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()  # calls scheduler.step() too
    print(f"rank {job.rank}: {sampler.steps} steps, accuracy {accuracy(model):.3f}")
