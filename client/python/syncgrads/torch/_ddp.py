"""A communication hook that lets a DistributedDataParallel average over the members of a job."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

import torch
from torch.autograd import Variable

from syncgrads import Job
from syncgrads.errors import FailedPrecondition, InvalidArgument
from syncgrads.group import Group
from syncgrads.torch import _cuda
from syncgrads.torch._gradients import GradientMemory, UsedResults, is_turned
from syncgrads.torch._job import (broadcast, check_began_job, job_or_default, register,
                                  trained)
from syncgrads.torch._synchroniser import _live


class _Bucket(NamedTuple):
    """A bucket on its way: the numbers of its gradients, and the future of its buffer. On a CUDA
    device: the copies of its gradients to host memory, and the event that completes with them."""

    numbers: List[int]
    buffer: torch.Tensor
    future: Any
    is_last: bool
    pairs: List[_cuda.Pair]
    copied: Any


class _Rest(NamedTuple):
    """The numbers of the gradients that a step lacks because its backward has not computed them;
    none if its last bucket was pushed."""

    numbers: List[int]
    has_ended: threading.Event


# Of _Bucket and _Rest; None ends the thread.
_Queue = queue.SimpleQueue


class _BucketHook:
    """The communication hook of a DistributedDataParallel: pushes each gradient of a bucket; on a
    CUDA device when it has been copied to host memory. A thread completes the buckets' futures when
    all results are there."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor],
                 are_views: bool) -> None:
        """`are_views`: DistributedDataParallel lets gradients be parts of its buckets."""
        self._group = group
        self._ids = {id(one): number for number, one in enumerate(parameters.values())}
        self._dtypes = [one.dtype for one in parameters.values()]
        self._copies = _cuda.copies_for(parameters.values())
        self._memory: Any = None  # the gradients in host memory
        if self._copies:
            self._memory = GradientMemory(group.job, list(parameters.values()))
        self._used = UsedResults(group, list(parameters.values()))
        self._used.is_on = self._used.is_on and are_views
        # The gradients of this step that were pushed with results in place, and their addresses.
        self._in_place: Dict[int, int] = {}
        self._pushed: Set[int] = set()  # in this step, until its last bucket
        self.has_pushed_all = False  # since the last forward
        self._has_given_up = False
        self._buckets: _Queue = queue.SimpleQueue()
        # The thread does not keep this object, and with it the job.
        threading.Thread(target=_complete_steps, args=(weakref.ref(self), self._buckets),
                         name="syncgrads ddp", daemon=True).start()
        weakref.finalize(self, self._buckets.put, None)

    def push(self, bucket: Any) -> Any:
        """Pushes the gradients of a bucket. Returns the future of the averages."""
        # The buckets of the first step differ from those of later steps, but the gradients do not.
        buffer, gradients = bucket.buffer(), [one for one in bucket.gradients() if one.numel() > 0]
        numbers = [self._ids[id(one)] for one in bucket.parameters() if one.numel() > 0]
        for number in numbers:
            if self._dtypes[number] is not buffer.dtype:
                raise InvalidArgument(
                    f"the gradient of {self._group.tensors[number]!r} is {buffer.dtype} in its "
                    f"bucket, but was registered as {self._dtypes[number]}: leave out "
                    "mixed_precision of DistributedDataParallel, and use torch.autocast")
        device = _cuda.device_of(buffer)
        future: Any
        pairs: List[_cuda.Pair] = []
        if device in self._copies:
            future = _cuda.new_future(device)
            pairs = [(self._memory.tensors[number], gradient)
                     for number, gradient in zip(numbers, gradients)]
            copied = self._copies[device].start(pairs, [torch.cuda.current_stream(device)])
        else:
            future, copied = torch.futures.Future(), None
            addresses = [one.data_ptr() for one in gradients]
            if not self._pushed:
                self._used.check_unchanged()
                self._in_place.clear()
            in_place = self._used.is_on
            self._group.push_memory(numbers, addresses, gradients, in_place)
            if in_place:
                self._in_place.update(zip(numbers, addresses))
        self._pushed.update(numbers)
        if bucket.is_last():
            if self._in_place:
                Variable._execution_engine.queue_callback(self._on_backward_done)
            self._pushed.clear()
            self.has_pushed_all = True
        self._buckets.put(_Bucket(numbers, buffer, future, bucket.is_last(), pairs, copied))
        return future

    def _on_backward_done(self) -> None:
        # DistributedDataParallel has yet to wait for the futures, and then lets the gradients be
        # parts of the buckets.
        Variable._execution_engine.queue_callback(self._give_results)

    def _give_results(self) -> None:
        self._used.give(list(self._in_place), list(self._in_place.values()))

    def give_up(self) -> None:
        """Ends the step if backward has not, so that the others have it: without the gradients that
        were not pushed. If all were pushed, waits until the step has ended."""
        if self._has_given_up:
            return
        self._has_given_up = True
        rest = _Rest([number for number in range(len(self._dtypes))
                      if number not in self._pushed and not self.has_pushed_all],
                     threading.Event())
        self._buckets.put(rest)
        rest.has_ended.wait()

    def skip(self, numbers: Sequence[int]) -> None:
        """Skips gradients."""
        for number in numbers:
            self._group.skip(number)

    def complete_step(self, buckets: Sequence[_Bucket], error: Optional[Exception]) -> None:
        """Completes the futures of the buckets of a step when all results are there; with the error
        if there is one."""
        # A result may consist of chunks that have parts of gradients of the last bucket, for which
        # DistributedDataParallel waits at the end of backward, as for all buckets.
        error = error or _error_of(self._group.wait_step)
        for bucket in buckets:
            failure = error or _error_of(self._give, bucket)
            if failure is not None:
                bucket.future.set_exception(failure)

    def push_copied(self, bucket: _Bucket) -> None:
        """Pushes the gradients of a bucket on a CUDA device, when they have been copied."""
        if bucket.copied is not None:
            bucket.copied.synchronize()
            self._group.push_memory(bucket.numbers, [one.data_ptr() for one, _ in bucket.pairs],
                                    self._memory)

    def _give(self, bucket: _Bucket) -> None:
        """Completes the future of a bucket. Streams that wait for it wait for the copies."""
        if bucket.copied is None:
            bucket.future.set_result(bucket.buffer)
            return
        copies = self._copies[_cuda.device_of(bucket.buffer)]
        copies.start([(gradient, average) for average, gradient in bucket.pairs])
        with torch.cuda.stream(copies.stream):
            bucket.future.set_result(bucket.buffer)


def _complete_steps(hook: "weakref.ref[_BucketHook]",
                    pushed: _Queue) -> None:
    """Completes the buckets that a hook has pushed, until the hook is freed."""
    buckets: List[_Bucket] = []
    error = None
    while True:
        bucket, owner = pushed.get(), hook()
        if bucket is None or owner is None:
            return
        if isinstance(bucket, _Rest):
            if bucket.numbers or buckets:  # else the step has ended with its last bucket
                error = error or _error_of(owner.skip, bucket.numbers)
                owner.complete_step(buckets, error)
            bucket.has_ended.set()
            buckets, error = [], None
        else:
            buckets.append(bucket)
            error = error or _error_of(owner.push_copied, bucket)
            if bucket.is_last:
                owner.complete_step(buckets, error)
                buckets, error = [], None
        del bucket, owner


def _error_of(call: Callable[..., Any], *arguments: Any) -> Optional[Exception]:
    """Makes a call. Returns the exception that it has raised."""
    try:
        call(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        return error
    return None


def _check_supported(model: torch.nn.Module) -> None:
    """Raises InvalidArgument for a DistributedDataParallel with gradients that the hook cannot
    average."""
    if model.find_unused_parameters:
        raise InvalidArgument(
            "the model has find_unused_parameters=True, with which workers that have not used a "
            "parameter would not receive its average: leave it out, or use "
            "syncgrads.torch.DistributedOptimizer, with which they do")
    for name, module in model.module.named_modules():
        if (isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse and
                module.weight.requires_grad):
            raise InvalidArgument(
                f"the gradient of {f'{name}.weight' if name else 'weight'!r} is sparse: only dense "
                "gradients are synchronised; make the layer with sparse=False")


def _check_in_forward(model: torch.nn.Module, job: Job, hook: _BucketHook) -> None:
    """Lets forward raise the reason why the membership is over, because exceptions within backward
    become RuntimeErrors; InvalidArgument if a parameter has changed, and FailedPrecondition if one
    was added, because DistributedDataParallel does not average the gradients of such parameters,
    and does not report that; and FailedPrecondition if the last backward has not ended."""
    registered = {id(one): (one, one.dtype, one.shape, _cuda.device_of(one), one.requires_grad)
                  for one in model.module.parameters()}

    def check(parallel: torch.nn.Module, *_: Any) -> None:
        over = job.status
        if over is not None:
            raise over
        for name, one in parallel.module.named_parameters():
            if id(one) not in registered:
                raise FailedPrecondition(
                    f"{name!r} was added to the model after syncgrads.torch.ddp, so its gradient "
                    "would not be averaged: call syncgrads.torch.ddp again, with the module and "
                    "another name")
            _, dtype, shape, device, needs_gradient = registered[id(one)]
            if (one.dtype is not dtype or one.shape != shape or _cuda.device_of(one) != device or
                    (one.requires_grad and not needs_gradient)):
                raise InvalidArgument(
                    f"{name!r} is {one.dtype}{list(one.shape)} on {_cuda.device_of(one)}"
                    f"{', needs a gradient' if one.requires_grad else ''}, but was registered as "
                    f"{dtype}{list(shape)} on {device}{'' if needs_gradient else ', needs none'}: "
                    "after a change of the model, call syncgrads.torch.ddp again with another name")
        _check_has_ended(parallel, hook)

    model.register_forward_pre_hook(check)


def _check_has_ended(model: torch.nn.Module, hook: _BucketHook) -> None:
    """Raises FailedPrecondition if backward has computed some of the gradients of a step only, and
    ends the step for the others."""
    if not torch.is_grad_enabled():
        return
    try:
        # What forward would call next. It raises a RuntimeError if the last backward has not ended.
        if model.reducer._rebuild_buckets():
            model._has_rebuilt_buckets = True
        hook.has_pushed_all = False
    except RuntimeError as error:
        hook.give_up()
        raise FailedPrecondition(
            "the last backward was not complete: an exception has ended it, or the loss does not "
            "depend on all parameters. For the others, the step has ended, but a "
            "DistributedDataParallel cannot continue: call job.leave(), or start this worker again; "
            "or use syncgrads.torch.DistributedOptimizer, which continues after an exception, and "
            "with parameters that were not used") from error


def _in_order_of_memory(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter with the shape in which its elements are in memory and are pushed, so that
    workers with other strides are refused."""
    if not is_turned(parameter) or _cuda.device_of(parameter).type != "cpu":
        return parameter
    return parameter.detach().permute(sorted(range(parameter.dim()),
                                             key=lambda axis: -parameter.stride(axis)))


def _check_unused(job: Job, name: str) -> None:
    """Raises FailedPrecondition if a group of this name is in use."""
    if name in _live.get(job, ()):
        gc.collect()  # a model that nothing refers to may be in a cycle
    if name in _live.get(job, ()):
        raise FailedPrecondition(
            f"the name {name!r} has a model of syncgrads.torch.ddp or a DistributedOptimizer "
            "already: give this one another name")


# DistributedDataParallel refuses annotations other than its own.
def _push_bucket(state, bucket):  # type: ignore[no-untyped-def]
    return state.push(bucket)


def ddp(model: torch.nn.Module, *, job: Optional[Job] = None, name: str = "model",
        **options: Any) -> torch.nn.Module:
    """Makes a DistributedDataParallel average its gradients over the members of the job. Returns
    it.

    `model` is a DistributedDataParallel with a process group of one process, or a module, which is
    wrapped in one: ranks are the job's, and processes do not know each other. Parameters and
    buffers are broadcast from rank 0. `options` are those of Job.register.

    Raises InvalidArgument if the DistributedDataParallel has find_unused_parameters=True, or a
    layer with sparse gradients; and FailedPrecondition if another model of the job has this name,
    or if this worker is a newcomer of an elastic job."""
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
    _check_supported(model)
    job = job_or_default(job)
    check_began_job(job, "ddp")
    _check_unused(job, name)
    broadcast(model.module.state_dict(), job=job, name=f"{name}/initial")
    parameters = trained(model.module.named_parameters())
    specs = {key: _in_order_of_memory(one) for key, one in parameters.items()}
    hook = _BucketHook(register(job, name, specs, options), parameters,
                       model.gradient_as_bucket_view)
    model.register_comm_hook(hook, _push_bucket)
    _live.setdefault(job, weakref.WeakValueDictionary())[name] = hook  # type: ignore[assignment]
    _check_in_forward(model, job, hook)
    return model
