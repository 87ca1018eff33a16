"""Uses the servers as a backend of torch.distributed.

    ps-server --port=7000 &
    SYNCGRADS_SERVER=localhost:7000 torchrun --nproc_per_node=2 process_group.py"""

import torch
from torch import distributed as dist
from torch import nn

import syncgrads.torch  # pylint: disable=unused-import  # makes the backend known
from data import accuracy, batches, make_model

dist.init_process_group("syncgrads")  # dist.init_process_group("gloo")
total = torch.ones(3) * (1 + dist.get_rank())
dist.all_reduce(total)
names = [None] * dist.get_world_size()
dist.all_gather_object(names, f"worker {dist.get_rank()}")
model = nn.parallel.DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(dist.get_rank(), dist.get_world_size()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(f"rank {dist.get_rank()}: {names}, sum {total.tolist()}, "
      f"accuracy {accuracy(model.module):.3f}")
dist.barrier()
dist.destroy_process_group()
