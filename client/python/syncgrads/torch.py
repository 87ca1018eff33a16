"""PyTorch over syncgrads' servers (docs/pytorch.md).

    import syncgrads.torch as sg

    sg.init()
    optimizer = sg.DistributedOptimizer(optimizer, model)

or, for a model that DistributedDataParallel wraps already:

    model = sg.ddp(model)

Works with PyTorch from 1.13 on. Tensors are on the CPU.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

import torch
from torch.autograd import Variable

import syncgrads
from syncgrads import Job
from syncgrads.errors import Error, FailedPrecondition, InvalidArgument
from syncgrads.group import Group

__all__ = ["DistributedOptimizer", "broadcast", "ddp", "init"]

_SUPPORTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)

_default_job: Optional[Job] = None


def init(server: Optional[str] = None, job: Optional[str] = None, **options: Any) -> Job:
    """Joins a job as syncgrads.init does. The functions of this module use this job unless they
    are given another one."""
    global _default_job  # pylint: disable=global-statement
    _default_job = syncgrads.init(server, job, **options)
    return _default_job


def _job_or_default(job: Optional[Job]) -> Job:
    job = job or _default_job
    if job is None:
        raise FailedPrecondition("there is no job: call syncgrads.torch.init first")
    return job


def broadcast(tensors: Mapping[str, torch.Tensor], root: int = 0, *, job: Optional[Job] = None,
              name: str = "initial") -> None:
    """Copies the root's tensors to every member's, in one operation: model.state_dict(), for
    example. Tensors of dtypes such as bool travel as int64."""
    with torch.no_grad():
        carried = {key: _carrier(tensor) for key, tensor in tensors.items()}
        _job_or_default(job).broadcast_all(carried, root, name=name)
        for key, tensor in tensors.items():
            if carried[key].data_ptr() != tensor.data_ptr():
                tensor.copy_(carried[key])


def _carrier(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy that can be sent."""
    tensor = tensor.detach()
    if tensor.dtype not in _SUPPORTED:
        tensor = tensor.to(torch.int64)
    return tensor.cpu().contiguous()


def _trained(named: Iterable[Tuple[str, torch.Tensor]]) -> Dict[str, torch.Tensor]:
    """The parameters that need gradients, each once."""
    parameters: Dict[str, torch.Tensor] = {}
    seen: Set[int] = set()
    for name, parameter in named:
        if parameter.requires_grad and id(parameter) not in seen:
            seen.add(id(parameter))
            parameters[name] = parameter
    if not parameters:
        raise InvalidArgument("no parameter of the model needs a gradient")
    return parameters


def _register(job: Job, name: str, parameters: Mapping[str, torch.Tensor],
              options: Mapping[str, Any]) -> Group:
    specs = {key: (one.dtype, tuple(one.shape)) for key, one in parameters.items()}
    return job.register(name, specs, **{"non_finite": "ALLOW", **options})


class _Synchroniser:
    """Pushes gradients while backward computes them, and ends the step when backward ends.

    Each gradient's result is written to the gradient itself. Gradients of a step are averaged over
    the members that had them."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor], passes: int) -> None:
        self.group = group
        self._parameters = list(parameters.values())
        self._passes = passes  # of backward, in a step
        self._pass = 0
        self._in_backward = False
        self._have_gradients: Set[int] = set()
        self._pushed: Set[int] = set()
        # Gradients that are not contiguous are sent as a copy.
        self._copies: Dict[int, torch.Tensor] = {}
        # The buffers that receive the averages of skipped gradients.
        self._results: Dict[int, torch.Tensor] = {}
        self._keep: List[Any] = []
        for number, parameter in enumerate(self._parameters):
            self._watch(number, parameter)

    def _watch(self, number: int, parameter: torch.Tensor) -> None:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
            parameter.register_post_accumulate_grad_hook(lambda _: self._on_gradient(number))
            return
        # The node that adds to parameter.grad. It lives as long as somebody refers to it.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(lambda *_: self._on_gradient(number))
        self._keep.append(accumulator)

    def _on_gradient(self, number: int) -> None:
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._on_backward_done)
        self._have_gradients.add(number)
        if self._pass + 1 == self._passes and number not in self._pushed:
            self._push(number)

    def _push(self, number: int) -> None:
        gradient = self._parameters[number].grad
        if gradient.is_sparse:
            raise InvalidArgument(
                f"the gradient of {self.group.tensors[number]!r} is sparse: only dense gradients "
                "are synchronised; make the layer with sparse=False")
        self._pushed.add(number)
        if not gradient.is_contiguous():
            gradient = self._copies[number] = gradient.contiguous()
        self.group.push(number, gradient.detach())

    def _on_backward_done(self) -> None:
        self._in_backward = False
        self._pass += 1
        if self._pass == self._passes:
            self.synchronise()

    def synchronise(self) -> None:
        """Pushes or skips what has not been pushed, and waits for all results."""
        for number in sorted(self._have_gradients - self._pushed):
            self._push(number)
        for number in range(len(self._parameters)):
            if number not in self._pushed and number not in self._results:
                self._skip(number)
        counted = self.group.wait_step()
        with torch.no_grad():
            for number, copy in self._copies.items():
                self._parameters[number].grad.copy_(copy)
            for number, result in self._results.items():
                if counted[number].most > 0:
                    self._take(number, result)
        self._forget()

    def _skip(self, number: int) -> None:
        """Skips a gradient that this worker has not computed, and receives that of the others."""
        parameter = self._parameters[number]
        result = self._results[number] = torch.empty(parameter.shape, dtype=parameter.dtype)
        self.group.skip(number, result)

    def _take(self, number: int, result: torch.Tensor) -> None:
        parameter = self._parameters[number]
        if parameter.grad is None:
            parameter.grad = result
        else:
            parameter.grad.copy_(result)

    def _forget(self) -> None:
        self._pass = 0
        self._in_backward = False
        self._have_gradients.clear()
        self._pushed.clear()
        self._copies.clear()
        self._results.clear()

    @property
    def has_begun(self) -> bool:
        """True if gradients of a step have been computed that is not synchronised."""
        return self._pass > 0 or bool(self._have_gradients)

    def give_up(self) -> None:
        """Ends a step in whose backward an exception was raised. What was pushed counts."""
        if not self._in_backward:
            return
        self._have_gradients.clear()
        for number in range(len(self._parameters)):
            if number not in self._pushed:
                self.group.skip(number)
        self.group.wait_step()
        self._forget()


class _Distributed:
    """What DistributedOptimizer adds to the class of an optimizer."""

    _synchroniser: _Synchroniser

    def step(self, closure: Any = None) -> Any:
        """Applies the averaged gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.synchronize()
        super().step()  # type: ignore[misc]
        return loss

    def synchronize(self) -> None:
        """Ends the step's synchronisation, if backward has not: it has, unless this worker had
        fewer backward passes than backward_passes_per_step."""
        synchroniser = self._synchroniser
        if synchroniser._in_backward:
            synchroniser.give_up()
            raise FailedPrecondition("an exception has ended backward: call zero_grad before the "
                                     "next step")
        if synchroniser.has_begun:
            synchroniser.synchronise()

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Begins again. If an exception ended backward, the gradients that had been pushed count
        for the others."""
        self._synchroniser.give_up()
        super().zero_grad(*arguments, **named)  # type: ignore[misc]

    def add_param_group(self, group: Any) -> None:
        """Refused: all workers register the same parameters, before the first step."""
        if getattr(self, "_synchroniser", None) is not None:
            raise FailedPrecondition("parameters cannot be added after DistributedOptimizer: add "
                                     "them before")
        super().add_param_group(group)  # type: ignore[misc]

    @property
    def sync_group(self) -> Group:
        """The group of the gradients, for set_weight, last_step and so on."""
        return self._synchroniser.group


def DistributedOptimizer(  # pylint: disable=invalid-name
        optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, job: Optional[Job] = None,
        backward_passes_per_step: int = 1, name: str = "model",
        broadcast_from: Optional[int] = 0, **options: Any) -> torch.optim.Optimizer:
    """Makes `optimizer` apply the averages of all workers' gradients. Returns the same object.

    Gradients are pushed while backward computes them, and loss.backward() returns when all averages
    are in the gradients: clipping, GradScaler and the optimizer see averages only. A gradient that
    a worker has not computed is a skip: the average is over the others, and the worker receives it.

    `model` has all parameters of the optimizer. The model's parameters and buffers are broadcast
    from rank `broadcast_from`, unless that is None. With backward_passes_per_step = k, gradients
    are added up over k backward passes, and synchronised in the last of them. `options` are those of
    Job.register, such as compression; non_finite is "ALLOW" by default, as for DDP: a NaN of one
    worker makes the average a NaN on all.

    Raises InvalidArgument if the optimizer has a parameter that the model has not."""
    if backward_passes_per_step < 1:
        raise InvalidArgument(f"backward_passes_per_step is {backward_passes_per_step}, must be at "
                              "least 1")
    job = _job_or_default(job)
    parameters = _trained(model.named_parameters())
    known = {id(parameter) for parameter in parameters.values()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and id(parameter) not in known:
                raise InvalidArgument(f"the optimizer has a parameter of shape "
                                      f"{tuple(parameter.shape)} that the model has not")
    if broadcast_from is not None:
        broadcast(model.state_dict(), broadcast_from, job=job, name=f"{name}/initial")
    synchroniser = _Synchroniser(_register(job, name, parameters, options), parameters,
                                 backward_passes_per_step)
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {})
    optimizer._synchroniser = synchroniser  # type: ignore[attr-defined]
    return optimizer


class _BucketHook:
    """The communication hook of a DistributedDataParallel: pushes each gradient of a bucket, and
    completes the bucket's future when it has all results."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor]) -> None:
        self._group = group
        self._ids = {id(one): number for number, one in enumerate(parameters.values())}
        self._buckets: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._complete, name="syncgrads ddp", daemon=True)
        self._thread.start()

    def push(self, bucket: Any) -> Any:
        """Pushes the gradients of a bucket. Returns the future of the averages."""
        future: Any = torch.futures.Future()
        numbers = []
        # The buckets of the first step differ from those of later steps, but the gradients do not.
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            number = self._ids[id(parameter)]
            self._group.push(number, gradient)
            numbers.append(number)
        self._buckets.put((future, bucket.buffer(), numbers, bucket.is_last()))
        return future

    def _complete(self) -> None:
        while True:
            future, buffer, numbers, is_last = self._buckets.get()
            try:
                for number in numbers:
                    self._group.wait(number)
                if is_last:
                    # The next step's pushes come after this result.
                    self._group.wait_step()
            except Error as error:
                future.set_exception(error)
                continue
            future.set_result(buffer)


# DistributedDataParallel refuses annotations other than its own.
def _push_bucket(state, bucket):  # type: ignore[no-untyped-def]
    return state.push(bucket)


def ddp(model: torch.nn.Module, *, job: Optional[Job] = None, name: str = "model",
        **options: Any) -> torch.nn.Module:
    """Makes a DistributedDataParallel average its gradients over the members of the job. Returns it.

    `model` is a DistributedDataParallel with a process group of one process, or a module, which is
    wrapped in one: ranks are the job's, and processes do not know each other. Parameters and buffers
    are broadcast from rank 0. `options` are those of Job.register."""
    parallel = torch.nn.parallel.DistributedDataParallel
    if not isinstance(model, parallel):
        distributed = torch.distributed
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0,
                                           world_size=1)
        model = parallel(model)
    size = torch.distributed.get_world_size(model.process_group)
    if size != 1:
        raise InvalidArgument(f"the process group of the model has {size} processes, must have 1: "
                              "call syncgrads.torch.ddp with the module itself")
    job = _job_or_default(job)
    broadcast(model.module.state_dict(), job=job, name=f"{name}/initial")
    parameters = _trained(model.module.named_parameters())
    hook = _BucketHook(_register(job, name, parameters, options), parameters)
    model.register_comm_hook(hook, _push_bucket)
    return model
