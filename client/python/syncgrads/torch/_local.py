"""Local steps: each worker trains by itself, and the workers synchronise after every h steps."""

from __future__ import annotations

import functools
import types
from typing import Any, Dict, List, Mapping, Optional

import torch

from syncgrads import Job
from syncgrads.errors import FailedPrecondition, InvalidArgument, OutOfRange
from syncgrads.group import Group
from syncgrads.torch._gradients import GradientMemory
from syncgrads.torch._job import broadcast, check_began_job, job_or_default, trained
from syncgrads.torch._learning_rate import multiplied_rate, rate_options

# DiLoCo's outer optimizer (Douillard et al. 2023).
NESTEROV = {"nesterov": {"learning_rate": 0.7, "momentum": 0.9}}
# The parameters become the average of the workers' parameters (Stich 2018).
_AVERAGE = {"sgd": {"learning_rate": 1.0}}


class _Cycle:
    """The local steps since the last synchronisation."""

    steps = 0
    # The step of the group that they contribute to; None until the changes have been computed.
    step: Optional[int] = None


class DiLoCo:
    """Lets the optimizer's steps within a `with` block be local, and synchronises after every
    `sync_every` of them.

    Each worker then pushes the change of its parameters. The servers average the changes, weighted
    by the number of steps times `batch_size`, and apply the outer optimizer to the average. All
    workers continue from the result; the state of `optimizer`, and buffers such as those of batch
    norm, stay each worker's own. Parameters and buffers are those of rank 0 at the beginning.

    At the end of the block, a worker contributes the steps since the last synchronisation, and
    follows the others until none has steps left: all workers end with the same parameters.

    `outer` is an optimizer on the servers (Optimizer in proto/types.proto); `options` are those of
    Job.register, such as compression of pushes. Parameters are float32 or float64, on the CPU."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: int, *,
                 outer: Mapping[str, Any] = NESTEROV,  # pylint: disable=too-many-arguments
                 batch_size: int = 1, job: Optional[Job] = None, name: str = "model",
                 **options: Any) -> None:
        if sync_every < 1:
            raise InvalidArgument(f"sync_every is {sync_every}, must be at least 1")
        self._job = job_or_default(job)
        check_began_job(self._job, type(self).__name__)
        self._model = model
        self._optimizer = optimizer
        self._sync_every = sync_every
        self._batch_size = batch_size
        named = trained(model.named_parameters())
        self._parameters = list(named.values())
        self._known = set(self._trained())
        self._cycle = _Cycle()
        self._is_open = self._has_ended = False
        self._replaced: Any = None  # the optimizer's own attribute `step`
        buffers = dict(model.named_buffers())
        if buffers:
            broadcast(buffers, job=self._job, name=f"{name}/buffers")
        specs = {key: (one.dtype, tuple(one.shape)) for key, one in named.items()}
        # The job's learning rate factor is for the local steps, not for the outer optimizer.
        fields: Dict[str, Any] = {"optimizer": outer, **rate_options(optimizer), **options}
        self._group = self._job.register(name, specs, **fields)
        # What the servers have: where the local steps began.
        self._begin = [one.detach().clone(memory_format=torch.contiguous_format)
                       for one in self._parameters]
        self._changes: List[torch.Tensor] = GradientMemory(self._job, self._parameters).tensors
        self._group.broadcast(self._begin)
        self._continue_from_begin()

    @property
    def sync_group(self) -> Group:
        """The group of the parameters, for last_step and so on."""
        return self._group

    def __enter__(self) -> "DiLoCo":
        if self._is_open or self._has_ended:
            raise FailedPrecondition(
                f"the block has {'begun' if self._is_open else 'ended'} already: make a new "
                f"{type(self).__name__} with another name")
        self._is_open = True
        # Present if a scheduler, for example, has replaced the method.
        self._replaced = vars(self._optimizer).get("step")
        step = self._optimizer.step

        # A scheduler that is made within the block replaces a method, not a function.
        @functools.wraps(step)
        def step_and_count(_: Any, *arguments: Any, **named: Any) -> Any:
            with multiplied_rate(self._optimizer, self._group.learning_rate_factor):
                result = step(*arguments, **named)
            self._count_step()
            return result

        vars(self._optimizer)["step"] = types.MethodType(step_and_count, self._optimizer)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._is_open = False
        del vars(self._optimizer)["step"]
        if self._replaced is not None:
            vars(self._optimizer)["step"] = self._replaced
        if kind is None:  # after an exception, another block can continue
            self._finish()
            self._has_ended = True

    def _count_step(self) -> None:
        self._cycle.steps += 1
        if self._cycle.steps >= self._sync_every:
            self.synchronise()

    def synchronise(self) -> None:
        """Contributes the steps since the last synchronisation, and continues from the result. If
        an exception ended the wait of an earlier call, continues that wait.

        Raises InvalidArgument if a parameter has another dtype or shape than at the beginning, and
        FailedPrecondition if another parameter is trained."""
        if self._cycle.step is None:
            self._compute_changes()
            self._cycle.step = self._group.step
        if self._group.step == self._cycle.step:
            self._push()
        self._group.ensure_ended(self._cycle.step)
        self._continue_from_begin()
        # One assignment: KeyboardInterrupt comes before it or after it.
        self._cycle = _Cycle()

    def _trained(self) -> Dict[int, str]:
        """What the model and the optimizer train: the names of parameters, by their ids."""
        return {id(one): name for name, one in (
            *((f"a parameter of shape {list(one.shape)}", one)
              for group in self._optimizer.param_groups for one in group["params"]),
            *((repr(name), one) for name, one in self._model.named_parameters()))
                if one.requires_grad and one.numel() > 0}

    def _compute_changes(self) -> None:
        for number, name in self._trained().items():
            if number not in self._known:
                raise FailedPrecondition(
                    f"{name} is trained, but was not when {type(self).__name__} was made, so it "
                    "is not synchronised: add parameters, and let them need gradients, before; or "
                    f"make a new {type(self).__name__} with another name")
        for name, begin, parameter in zip(self._group.tensors, self._begin, self._parameters):
            if begin.dtype is not parameter.dtype or begin.shape != parameter.shape:
                raise InvalidArgument(
                    f"{name!r} is {parameter.dtype}{list(parameter.shape)}, but was registered as "
                    f"{begin.dtype}{list(begin.shape)}: after a change of the model, make a new "
                    f"{type(self).__name__} with another name")
        self._group.set_weight(self._cycle.steps * self._batch_size)
        with torch.no_grad():
            for change, begin, parameter in zip(self._changes, self._begin, self._parameters):
                torch.sub(begin, parameter, out=change)

    def _push(self) -> None:
        """Pushes the changes in one call. Does nothing if they have been pushed."""
        numbers = range(len(self._changes))
        try:
            self._group.push_many(dict(zip(numbers, self._changes)), dict(zip(numbers, self._begin)))
        except FailedPrecondition:
            pass  # KeyboardInterrupt came after the call; the wait raises other reasons

    def _continue_from_begin(self) -> None:
        with torch.no_grad():
            for parameter, begin in zip(self._parameters, self._begin):
                parameter.copy_(begin)

    def _finish(self) -> None:
        if self._cycle.steps > 0:
            self.synchronise()
        self._group.end()
        try:
            while True:
                for number, begin in enumerate(self._begin):
                    try:
                        self._group.skip(number, out=begin)
                    except FailedPrecondition:
                        pass  # an exception has ended an earlier call
                self._group.wait_step()
        except OutOfRange:
            self._continue_from_begin()


class LocalSGD(DiLoCo):
    """As DiLoCo, with another outer optimizer: the parameters become the average of the workers'
    parameters."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: int,
                 **options: Any) -> None:
        named: Dict[str, Any] = {"outer": _AVERAGE, **options}
        super().__init__(model, optimizer, sync_every, **named)
