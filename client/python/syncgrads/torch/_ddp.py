"""A communication hook that lets a DistributedDataParallel average over the members of a job."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

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


class _Layout(NamedTuple):
    """Which gradients a bucket has: their numbers, and where they begin in its buffer, in bytes."""

    numbers: List[int]
    offsets: List[int]


class _Bucket(NamedTuple):
    """A bucket on its way: the numbers of its gradients, and the future of its buffer. On a CUDA
    device: the copies of its gradients to host memory, and the event that completes with them."""

    numbers: List[int]
    buffer: torch.Tensor
    future: Any
    pairs: List[_cuda.Pair]
    copied: Any


class _BucketHook:
    """The communication hook of a DistributedDataParallel: pushes each gradient of a bucket; on a
    CUDA device when it has been copied to host memory. At the end of backward, when those of all
    models have been pushed, it waits for the results and completes the buckets' futures."""

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
        # The layouts of buckets, by the ids of their parameters.
        self._layouts: Dict[Tuple[int, ...], _Layout] = {}
        # The gradients of this step that were pushed with results in place, and their addresses.
        self._in_place: Dict[int, int] = {}
        self._pushed: Set[int] = set()  # in this step, until its last bucket
        self._buckets: List[_Bucket] = []  # of this step, until it has ended
        self._copied = 0  # how many of them have been pushed, in their order
        self._step = 0
        self.has_pushed_all = False  # since the last forward
        self._has_given_up = False
        self.steps = 0  # how many have ended
        # In the first step of a static graph, DistributedDataParallel pushes all buckets at the end
        # of backward, and waits at once.
        self.waits_in_push = False

    def push(self, bucket: Any) -> Any:
        """Pushes the gradients of a bucket. Returns the future of the averages."""
        buffer = bucket.buffer()
        numbers, offsets = self._layout_of(bucket, buffer)
        device = _cuda.device_of(buffer)
        future: Any
        pairs: List[_cuda.Pair] = []
        copied = None
        if not self._buckets:
            self._step = self._group.step
        if device in self._copies:
            future = _cuda.new_future(device)
            gradients = [one for one in bucket.gradients() if one.numel() > 0]
            pairs = [(self._memory.tensors[number], gradient)
                     for number, gradient in zip(numbers, gradients)]
            copied = self._copies[device].start(pairs, [torch.cuda.current_stream(device)])
        else:
            future = torch.futures.Future()
            begin = buffer.data_ptr()
            addresses = [begin + offset for offset in offsets]
            if not self._pushed:
                self._used.check_unchanged()
                self._in_place.clear()
            in_place = self._used.is_on
            self._group.push_memory(numbers, addresses, buffer, in_place)
            if in_place:
                self._in_place.update(zip(numbers, addresses))
        self._buckets.append(_Bucket(numbers, buffer, future, pairs, copied))
        self._pushed.update(numbers)
        if self._copies:
            self._push_copied(waits=False)
        if bucket.is_last():
            self._pushed.clear()
            self.has_pushed_all = True
            if self.waits_in_push:
                self._complete_step()
            Variable._execution_engine.queue_callback(self._on_backward_done)
        return future

    def _layout_of(self, bucket: Any, buffer: torch.Tensor) -> _Layout:
        # The buckets of the first step differ from those of later steps, but the gradients do not.
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        layout = self._layouts.get(key)
        if layout is None:
            gradients = [one for one in bucket.gradients() if one.numel() > 0]
            layout = _Layout([self._ids[id(one)] for one in parameters if one.numel() > 0],
                             [one.data_ptr() - buffer.data_ptr() for one in gradients])
            for number in layout.numbers:
                if self._dtypes[number] is not buffer.dtype:
                    raise InvalidArgument(
                        f"the gradient of {self._group.tensors[number]!r} is {buffer.dtype} in its "
                        f"bucket, but was registered as {self._dtypes[number]}: leave out "
                        "mixed_precision of DistributedDataParallel, and use torch.autocast")
            self._layouts[key] = layout
        return layout

    def _push_copied(self, waits: bool) -> None:
        """Pushes the buckets on CUDA devices that have been copied to host memory, or all, when they
        have."""
        while self._copied < len(self._buckets):
            bucket = self._buckets[self._copied]
            if bucket.copied is not None:
                if not waits and not bucket.copied.query():
                    return
                bucket.copied.synchronize()
                self._group.push_memory(bucket.numbers, [one.data_ptr() for one, _ in bucket.pairs],
                                        self._memory)
            self._copied += 1

    def _on_backward_done(self) -> None:
        """Called when backward has computed all gradients, also those of other models, and before
        DistributedDataParallel waits for the futures."""
        if self._buckets:
            self._complete_step()
        if self._in_place:
            # After DistributedDataParallel has let the gradients be parts of the buckets.
            Variable._execution_engine.queue_callback(self._give_results)

    def _complete_step(self) -> None:
        """Completes the futures of the buckets of a step when all results are there; with the error
        if there is one."""
        error = _error_of(self._end_step)
        buckets = self._buckets
        self._buckets, self._copied = [], 0
        self.steps += 1
        for bucket in buckets:
            failure = error or _error_of(self._give, bucket)
            if failure is not None:
                bucket.future.set_exception(failure)

    def _end_step(self) -> None:
        self._push_copied(waits=True)
        self._group.ensure_ended(self._step)

    def _give(self, bucket: _Bucket) -> None:
        """Completes the future of a bucket. Streams that wait for it wait for the copies."""
        if bucket.copied is None:
            bucket.future.set_result(bucket.buffer)
            return
        copies = self._copies[_cuda.device_of(bucket.buffer)]
        copies.start([(gradient, average) for average, gradient in bucket.pairs])
        with torch.cuda.stream(copies.stream):
            bucket.future.set_result(bucket.buffer)

    def _give_results(self) -> None:
        self._used.give(list(self._in_place), list(self._in_place.values()))

    def give_up(self) -> None:
        """Ends the step if backward has not, so that the others have it: without the gradients that
        were not pushed."""
        if not self._has_given_up and not self.has_pushed_all:
            self._step = self._group.step
            for number in range(len(self._dtypes)):
                if number not in self._pushed:
                    _error_of(self._group.skip, number)  # the wait raises it too
        self._has_given_up = True
        self._complete_step()


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


def _unchanged(module: torch.nn.Module) -> Callable[[], bool]:
    """Returns a function that tells whether the parameters of a module are as they are now. It takes
    a tenth of the time of Module.named_parameters, which makes names."""

    def parameters() -> List[torch.Tensor]:
        found: List[Any] = []
        modules: List[Any] = [module]
        while modules:
            one = modules.pop()
            if one is not None:
                found += one._parameters.values()
                modules += one._modules.values()
        return [one for one in found if one is not None]

    def state() -> List[List[Any]]:
        all_of_them = parameters()
        return [list(map(id, all_of_them)), [one.dtype for one in all_of_them],
                [one.shape for one in all_of_them], list(map(_cuda.device_of, all_of_them)),
                [one.requires_grad for one in all_of_them]]

    before = state()
    return lambda: state() == before


def _check_in_forward(model: torch.nn.Module, job: Job, hook: _BucketHook) -> None:
    """Lets forward raise the reason why the membership is over, because exceptions within backward
    become RuntimeErrors; InvalidArgument if a parameter has changed, and FailedPrecondition if one
    was added, because DistributedDataParallel does not average the gradients of such parameters,
    and does not report that; and FailedPrecondition if the last backward has not ended."""
    registered = {id(one): (one, one.dtype, one.shape, _cuda.device_of(one), one.requires_grad)
                  for one in model.module.parameters()}
    is_unchanged = _unchanged(model.module)

    def check(parallel: torch.nn.Module, *_: Any) -> None:
        over = job.status
        if over is not None:
            raise over
        for name, one in () if is_unchanged() else parallel.module.named_parameters():
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
        hook.waits_in_push = model.static_graph and hook.steps == 0
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
