"""PyTorch over syncgrads' servers (docs/pytorch.md).

    import syncgrads.torch as sg

    sg.init()
    optimizer = sg.DistributedOptimizer(optimizer, model)

or, for a model that DistributedDataParallel wraps already:

    model = sg.ddp(model)

or, over slow links:

    with sg.DiLoCo(model, optimizer, sync_every=100):
        train()

Importing this module makes the backend "syncgrads" of torch.distributed known. Works with PyTorch
from 1.13 on. Gradients of CUDA tensors are copied beside backward.
"""

import torch as _torch

from syncgrads.torch._ddp import ddp
from syncgrads.torch._elastic import DealtSampler, Preempted, elastic
from syncgrads.torch._figures import read
from syncgrads.torch._fsdp import fsdp
from syncgrads.torch._gradients import allocate_gradients
from syncgrads.torch._job import broadcast, init
from syncgrads.torch._local import DiLoCo, LocalSGD
from syncgrads.torch._model_file import load, save
from syncgrads.torch._optimizer import DistributedOptimizer

if _torch.distributed.is_available():
    from syncgrads.torch._process_group import register_backend as _register_backend
    _register_backend()

__all__ = ["DealtSampler", "DiLoCo", "DistributedOptimizer", "LocalSGD", "Preempted",
           "allocate_gradients", "broadcast", "ddp", "elastic", "fsdp", "init", "load", "read",
           "save"]
