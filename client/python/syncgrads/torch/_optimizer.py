"""DistributedOptimizer: an optimizer that applies the averages of all workers' gradients."""

from __future__ import annotations

import copyreg
import functools
import inspect
import time
import weakref
from typing import Any, Callable, List, Mapping, Optional, Set

import torch

from syncgrads import Job
from syncgrads.errors import FailedPrecondition, InvalidArgument
from syncgrads.group import Group
from syncgrads.torch._job import broadcast, check_began_job, job_or_default, register, trained
from syncgrads.torch._learning_rate import multiplied_rate, rate_options
from syncgrads.torch._synchroniser import Synchroniser, check_unused


class _Synchroniser(Synchroniser):
    """A Synchroniser that gives averages the strides of their parameters."""

    def _end_step(self) -> None:
        copied = frozenset(self._memory.copied)
        super()._end_step()
        if self._memory.turned and not self.is_repeated:
            self._memory.lay_out(self._parameters, copied)

    def _forget(self) -> None:
        self._memory.copied.clear()
        super()._forget()


class _Distributed:
    """What DistributedOptimizer adds to the class of an optimizer."""

    _synchroniser: Synchroniser
    # Parameters of the optimizer that needed no gradient when it was made, by name.
    _frozen: Mapping[str, torch.Tensor]
    # The ids of the optimizer's parameters.
    _own: List[int]
    # What a scheduler that was made before had put in the place of the optimizer's own step.
    _replaced_step: Optional[Callable[[], Any]] = None
    # Called after each step, by elastic jobs.
    _step_done: Optional[Callable[[], None]] = None

    def step(self, closure: Any = None) -> Any:
        """Applies the averaged gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise FailedPrecondition(
                    f"{name!r} needs a gradient, but did not when DistributedOptimizer was made, "
                    "so its gradient is not averaged: let it need one before, or make a new "
                    "optimizer with another name")
        if _ids_of(self) != self._own:
            raise FailedPrecondition(
                "param_groups have other parameters than when DistributedOptimizer was made, so "
                "that gradients are not averaged: change them before, or make a new optimizer with "
                "another name")
        self.synchronize()
        synchroniser = self._synchroniser
        synchroniser.is_synchronised = False
        if synchroniser.is_repeated:
            synchroniser.is_repeated = False
            return loss
        begin, factor = time.perf_counter(), synchroniser.group.learning_rate_factor
        with multiplied_rate(self, factor):  # type: ignore
            (self._replaced_step or super().step)()  # type: ignore[misc]
        synchroniser.figures.add("apply", time.perf_counter() - begin)
        synchroniser.figures.stepped(synchroniser.group, self, factor)  # type: ignore
        if self._step_done is not None:
            self._step_done()
        return loss

    def synchronize(self) -> None:
        """Ends the step's synchronisation, if backward has not: it has, unless this worker had
        fewer backward passes than backward_passes_per_step, or none."""
        synchroniser = self._synchroniser
        if synchroniser._in_backward:
            synchroniser.give_up()
            raise FailedPrecondition("an exception has ended backward: call zero_grad before the "
                                     "next step")
        if synchroniser.has_begun or not synchroniser.is_synchronised:
            synchroniser.synchronise()

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Begins again. If an exception ended backward, or its wait for the averages, this ends the
        step: the gradients that had been pushed count for the others."""
        self._synchroniser.give_up()
        self._synchroniser.is_synchronised = False
        super().zero_grad(*arguments, **named)  # type: ignore[misc]

    def add_param_group(self, group: Any) -> None:
        """Refused: all workers register the same parameters, before the first step."""
        if getattr(self, "_synchroniser", None) is not None:
            raise FailedPrecondition("parameters cannot be added after DistributedOptimizer: add "
                                     "them before")
        super().add_param_group(group)  # type: ignore[misc]

    def __reduce_ex__(self, _: Any) -> Any:
        """Copies and pickles are of the optimizer's own class, and average nothing."""
        _, _, kind, *_ = type(self).__mro__
        # What object.__reduce_ex__ returns for the class: copyreg.__newobj__ is for type(self) only.
        return (copyreg._reconstructor, (kind, object, None),  # type: ignore[attr-defined]
                self.__getstate__())  # type: ignore[attr-defined]

    @property
    def sync_group(self) -> Group:
        """The group of the gradients, for set_weight, last_step and so on."""
        return self._synchroniser.group


# Otherwise load_state_dict wraps the method once more, and hooks of steps run twice.
_Distributed.step.hooked = True  # type: ignore[attr-defined]


def _ids_of(optimizer: Any) -> List[int]:
    """The ids of the parameters of an optimizer."""
    return [id(one) for group in optimizer.param_groups for one in group["params"]]


def check_needs_no_closure(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgument if the optimizer needs a closure (LBFGS)."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidArgument(f"{type(optimizer).__name__} calls its closure as often as this "
                              "worker's loss needs, so it cannot be a DistributedOptimizer")


def _step_of_class(optimizer: torch.optim.Optimizer,
                   replaced: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls the step of the optimizer's class, with the attributes of
    `replaced`, by which a scheduler recognizes its own."""
    this = weakref.ref(optimizer)  # an optimizer does not keep itself

    @functools.wraps(replaced)
    def step(*arguments: Any, **named: Any) -> Any:
        return type(this()).step(this(), *arguments, **named)  # type: ignore[union-attr]

    return step


def DistributedOptimizer(  # pylint: disable=invalid-name
        optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, job: Optional[Job] = None,
        backward_passes_per_step: int = 1, name: str = "model",
        broadcast_from: Optional[int] = 0, **options: Any) -> torch.optim.Optimizer:
    """Makes `optimizer` apply the averages of all workers' gradients. Returns the same object.

    Gradients are pushed while backward computes them, and loss.backward() returns when all averages
    are in the gradients: clipping, GradScaler and the optimizer see averages only. A gradient that
    a worker has not computed is a skip: the average is over the others, and the worker receives it.

    `model` has all parameters of the optimizer, and may have others: those of another optimizer.
    The model's parameters and buffers are broadcast from rank `broadcast_from`, unless that is
    None. With backward_passes_per_step = k, gradients are added up over k backward passes, and
    synchronised in the last of them. `options` are those of Job.register, such as compression;
    non_finite is "ALLOW" by default, as for DDP: a NaN of one worker makes the average a NaN on
    all.

    The optimizer may be that of an earlier job.

    Raises InvalidArgument if the optimizer has a parameter that the model has not or needs a
    closure (LBFGS), and FailedPrecondition if it, or another one with this name, is a
    DistributedOptimizer of the job already."""
    if backward_passes_per_step < 1:
        raise InvalidArgument(f"backward_passes_per_step is {backward_passes_per_step}, must be at "
                              "least 1")
    check_needs_no_closure(optimizer)
    job = job_or_default(job)
    kind = type(optimizer)
    if isinstance(optimizer, _Distributed):
        if optimizer.sync_group.job is job:
            raise FailedPrecondition("the optimizer is a DistributedOptimizer of this job already")
        _, _, kind, *_ = kind.__mro__  # the job before is over
    check_unused(job, name)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    own: Set[int] = set(_ids_of(optimizer))
    frozen = {}
    for param_group in optimizer.param_groups:
        for parameter in param_group["params"]:
            if id(parameter) not in names:
                raise InvalidArgument(f"the optimizer has a parameter of shape "
                                      f"{tuple(parameter.shape)} that the model has not")
            if not parameter.requires_grad:
                frozen[names[id(parameter)]] = parameter
    parameters = trained((key, one) for key, one in model.named_parameters() if id(one) in own)
    if broadcast_from is not None:
        check_began_job(job, "DistributedOptimizer")
        broadcast(model.state_dict(), broadcast_from, job=job, name=f"{name}/initial")
    group = register(job, name, parameters, {**rate_options(optimizer), **options})
    synchroniser = _Synchroniser(group, parameters, backward_passes_per_step)
    replaced = vars(optimizer).get("step")
    if replaced is not None and not isinstance(optimizer, _Distributed):
        optimizer._replaced_step = replaced  # type: ignore[attr-defined]
        vars(optimizer)["step"] = _step_of_class(optimizer, replaced)
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {})
    optimizer._synchroniser = synchroniser  # type: ignore[attr-defined]
    optimizer._frozen = frozen  # type: ignore[attr-defined]
    optimizer._own = _ids_of(optimizer)  # type: ignore[attr-defined]
    return optimizer
