"""A communication hook that lets a DistributedDataParallel average over the members of a job."""

from __future__ import annotations

import queue
import threading
from typing import Any, List, Mapping, Optional, Tuple

import torch

from syncgrads import Job
from syncgrads.errors import Error, InvalidArgument
from syncgrads.group import Group
from syncgrads.torch._job import broadcast, job_or_default, register, trained


class _BucketHook:
    """The communication hook of a DistributedDataParallel: pushes each gradient of a bucket. A
    thread completes the buckets' futures when all results are there."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor]) -> None:
        self._group = group
        self._ids = {id(one): number for number, one in enumerate(parameters.values())}
        self._futures: List[Tuple[Any, torch.Tensor]] = []  # of this step, and what they give
        self._steps: "queue.SimpleQueue[List[Tuple[Any, torch.Tensor]]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._complete, name="syncgrads ddp", daemon=True)
        self._thread.start()

    def push(self, bucket: Any) -> Any:
        """Pushes the gradients of a bucket. Returns the future of the averages."""
        future: Any = torch.futures.Future()
        # The buckets of the first step differ from those of later steps, but the gradients do not.
        gradients = bucket.gradients()
        self._group.push_memory([self._ids[id(parameter)] for parameter in bucket.parameters()],
                                [gradient.data_ptr() for gradient in gradients], gradients)
        self._futures.append((future, bucket.buffer()))
        if bucket.is_last():
            self._steps.put(self._futures)
            self._futures = []
        return future

    def _complete(self) -> None:
        # A result may consist of chunks that have parts of gradients of the last bucket, for which
        # DistributedDataParallel waits at the end of backward, as for all buckets.
        while True:
            futures = self._steps.get()
            try:
                self._group.wait_step()
            except Error as error:
                for future, _ in futures:
                    future.set_exception(error)
                continue
            for future, buffer in futures:
                future.set_result(buffer)


# DistributedDataParallel refuses annotations other than its own.
def _push_bucket(state, bucket):  # type: ignore[no-untyped-def]
    return state.push(bucket)


def ddp(model: torch.nn.Module, *, job: Optional[Job] = None, name: str = "model",
        **options: Any) -> torch.nn.Module:
    """Makes a DistributedDataParallel average its gradients over the members of the job. Returns
    it.

    `model` is a DistributedDataParallel with a process group of one process, or a module, which is
    wrapped in one: ranks are the job's, and processes do not know each other. Parameters and
    buffers are broadcast from rank 0. `options` are those of Job.register."""
    parallel = torch.nn.parallel.DistributedDataParallel
    if not isinstance(model, parallel):
        distributed = torch.distributed
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0,
                                           world_size=1)
        model = parallel(model, gradient_as_bucket_view=True)  # spares a copy
    size = torch.distributed.get_world_size(model.process_group)
    if size != 1:
        raise InvalidArgument(f"the process group of the model has {size} processes, must have 1: "
                              "call syncgrads.torch.ddp with the module itself")
    job = job_or_default(job)
    broadcast(model.module.state_dict(), job=job, name=f"{name}/initial")
    parameters = trained(model.module.named_parameters())
    hook = _BucketHook(register(job, name, parameters, options), parameters)
    model.register_comm_hook(hook, _push_bucket)
    return model
