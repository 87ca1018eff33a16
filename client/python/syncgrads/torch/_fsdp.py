"""A hook that lets a model of fully_shard average over the members of a job."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from syncgrads import Job
from syncgrads.errors import InvalidArgument
from syncgrads.torch import _cuda
from syncgrads.torch._gradients import GradientMemory
from syncgrads.torch._job import broadcast, check_began_job, job_or_default, register


class _AllReduceHook:
    """The all-reduce hook of one FSDPModule, which is called with the gradients of this process's
    shard, in one tensor. The average replaces them in the order of the current stream. Blocks until
    the average is in host memory, because a stream cannot wait for the host."""

    def __init__(self, job: Job, name: str, options: Mapping[str, Any],
                 copies: Dict[torch.device, _cuda.Copies]) -> None:
        self._job = job
        self._name = name
        self._options = options
        self._copies = copies  # of all hooks
        # Made in the first call, which knows the size.
        self._memory: Any = None
        self._group: Any = None

    def __call__(self, gradients: torch.Tensor) -> None:
        gradients = gradients.detach()
        if self._group is None:
            self._memory = GradientMemory(self._job, [gradients])
            self._group = register(self._job, self._name, {"gradients": gradients}, self._options)
        memory, = self._memory.tensors
        if (gradients.dtype, gradients.shape) != (memory.dtype, memory.shape):
            raise InvalidArgument(
                f"the gradients of {self._name!r} are {gradients.dtype}{list(gradients.shape)}, "
                f"but were {memory.dtype}{list(memory.shape)}: after a change of the model, call "
                "syncgrads.torch.fsdp with another name")
        device = _cuda.device_of(gradients)
        if device.type != "cuda":
            memory.copy_(gradients)
            self._average(memory)
            gradients.copy_(memory)
            return
        if device not in self._copies:
            self._copies[device] = _cuda.Copies(device)
        copies, stream = self._copies[device], torch.cuda.current_stream(device)
        copies.start([(memory, gradients)], [stream]).synchronize()
        self._average(memory)
        stream.wait_event(copies.start([(gradients, memory)]))

    def _average(self, memory: torch.Tensor) -> None:
        self._group.push(0, memory)
        self._group.wait_step()


def fsdp(model: torch.nn.Module, *, job: Optional[Job] = None, name: str = "model",
         **options: Any) -> torch.nn.Module:
    """Makes a model of fully_shard (PyTorch 2.8 or newer) average its gradients over the members of
    the job too. Returns it.

    Within a host, PyTorch shards the model and reduces gradients. Each shard has a job of its own,
    whose members are the processes that have this shard, one of each host. The parameters are
    broadcast from rank 0 of the job. `options` are those of Job.register.

    Raises InvalidArgument if no module of the model has set_all_reduce_hook."""
    modules = {path: module for path, module in model.named_modules()
               if hasattr(module, "set_all_reduce_hook")}
    if not modules:
        raise InvalidArgument("no module of the model has set_all_reduce_hook: call fully_shard "
                              "first, of PyTorch 2.8 or newer")
    job = job_or_default(job)
    check_began_job(job, "fsdp")
    with torch.no_grad():
        broadcast({key: tensor.to_local() if hasattr(tensor, "to_local") else tensor
                   for key, tensor in model.state_dict().items()}, job=job, name=f"{name}/initial")
    copies: Dict[torch.device, _cuda.Copies] = {}
    for path, module in modules.items():
        module.set_all_reduce_hook(
            _AllReduceHook(job, f"{name}/{path}" if path else name, options, copies))
    return model
