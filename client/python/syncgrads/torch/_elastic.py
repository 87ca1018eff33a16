"""Elastic training: workers come and go, and each row of the data counts once."""

from __future__ import annotations

import array
import inspect
import random
import signal
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from syncgrads import Job
from syncgrads.errors import FailedPrecondition, InvalidArgument
from syncgrads.group import Members
from syncgrads.torch._job import SUPPORTED, broadcast, job_or_default
from syncgrads.torch._optimizer import DistributedOptimizer, check_needs_no_closure
from syncgrads.torch._synchroniser import Synchroniser


class Preempted(Exception):
    """Raised by step() after SIGTERM, when the step is complete and this worker has left the job.
    A process that starts later joins as a newcomer and continues."""


class DealtSampler:
    """Deals the rows of a data set to the workers that are present, so that each row counts once
    in a pass. Iterating over it returns this worker's batches, as lists of row numbers. The
    arguments must be the same on all workers.

    All rows of a pass form one sequence. Each step deals the next rows to its members in rank
    order, `batch_size` rows to each. If a member's contribution is not counted, its rows go to the
    end of the pass. A batch belongs to the next step, so a DataLoader that has it as its
    batch_sampler must have num_workers=0: iterating raises FailedPrecondition if step() was not
    called for the last batch."""

    def __init__(self, rows: int, batch_size: int, *, seed: int = 0, shuffle: bool = True,
                 epochs: int = 1) -> None:
        for name, value in (("rows", rows), ("batch_size", batch_size), ("epochs", epochs)):
            if value < 1:
                raise InvalidArgument(f"{name} is {value}, must be at least 1")
        self.batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        # The pass, how many rows of `_order` have counted in it, and the number of steps.
        self._position = torch.zeros(3, dtype=torch.int64)
        self._order = torch.zeros(rows, dtype=torch.int64)
        self._settings = {"rows": rows, "batch_size": batch_size, "epochs": epochs,
                          "shuffle": int(shuffle), "seed": seed % (1 << 63)}
        # The settings of the other workers are received here. Until then it has those of this one.
        self._received = torch.tensor(list(self._settings.values()), dtype=torch.int64)
        self._training: Optional[_Training] = None
        self._begin_pass()

    @property
    def epoch(self) -> int:
        """The number of the current pass, from 0."""
        return int(self._position[0])

    @property
    def steps(self) -> int:
        """The number of steps that all workers together have made."""
        return int(self._position[2])

    @property
    def ended(self) -> bool:
        """True if all passes are over."""
        return self.epoch >= self._epochs

    def __len__(self) -> int:
        """The number of batches of this worker in all passes, if the job begins with the members
        that it has now and no rows are dealt again."""
        rank, world_size = self._checked().placement
        steps, rest = divmod(len(self._order), world_size * self.batch_size)
        return self._epochs * (steps + (rest > rank * self.batch_size))

    def __iter__(self) -> Iterator[List[int]]:
        training = self._checked()
        last = None
        while not self.ended:
            members = training.begin_step()
            turn = training.turn
            if turn == last:
                raise FailedPrecondition(
                    f"the rows of step {turn[0]} were returned already: call the "
                    "optimizer's step() once for each batch; a DataLoader needs num_workers=0")
            last = turn
            rows = self._rows_of(members.rank)
            if rows:
                training.set_weight(len(rows))
                yield rows
            else:
                training.skip_step()

    def _checked(self) -> "_Training":
        if self._training is None:
            raise FailedPrecondition("the sampler has no job: pass it to syncgrads.torch.elastic")
        return self._training

    def _begin_pass(self) -> None:
        order = list(range(len(self._order)))
        if self._shuffle:
            random.Random(f"{self._seed}/{self.epoch}").shuffle(order)
        self._order.copy_(torch.tensor(order))

    def _rows_of(self, rank: int) -> List[int]:
        begin = int(self._position[1]) + rank * self.batch_size
        return self._order[begin:begin + self.batch_size].tolist()

    def _advance(self, world_size: int, contributors: Sequence[int]) -> None:
        """Advances past a step, in the same way on each worker."""
        begin = int(self._position[1])
        dealt = self._order[begin:begin + world_size * self.batch_size]
        counted: List[torch.Tensor] = []
        back: List[torch.Tensor] = []
        for rank, rows in enumerate(dealt.split(self.batch_size)):
            (counted if rank in contributors else back).append(rows)
        if back:
            rest = self._order[begin + len(dealt):]
            self._order[begin:] = torch.cat([*counted, rest, *back])
        self._position[1] += sum(map(len, counted))
        self._position[2] += 1
        if self._position[1] == len(self._order):
            self._position[0] += 1
            self._position[1] = 0
            self._begin_pass()

    def _state(self) -> Dict[str, torch.Tensor]:
        return {"sampler/position": self._position, "sampler/order": self._order}

    def _check_settings(self) -> None:
        """Raises InvalidArgument if this worker's settings are not those that it has received."""
        for (name, own), received in zip(self._settings.items(), self._received.tolist()):
            if own != received:
                raise InvalidArgument(f"{name} of the DealtSampler is {own}, but {received} on the "
                                      "other workers: pass the same arguments on all")


class _Training:
    """The steps of one worker of an elastic job."""

    def __init__(self, job: Job, optimizer: Any, sampler: Optional[DealtSampler],
                 schedulers: Optional[Sequence[Any]], schedule_by: str,
                 weighs_rows: bool) -> None:
        self._job = job
        self._optimizer = optimizer
        self._sampler = sampler
        self._has_all_schedulers = schedulers is not None
        self._schedulers = [one for one in schedulers or () if not _needs_metric(one)]
        self._schedule_by = schedule_by
        self._weighs_rows = weighs_rows
        self._synchroniser: Synchroniser = optimizer._synchroniser
        self._group = self._synchroniser.group
        self._done = 0  # the last step that the sampler has advanced past
        self._is_preempted = False
        self._numbers = _Numbers(optimizer, schedulers or ())

    def begin(self, state: Mapping[str, torch.Tensor]) -> None:
        """Registers what a newcomer needs. A newcomer continues from what the others have."""
        if self._group.register_state({**state, **self._numbers.state()}):
            self._numbers.restore()
        self._done = self._group.step - 1
        self._synchroniser.repeats_steps = True
        self._optimizer._step_done = self._on_step_done
        # The state is sent while a step is waited for, and the program may change numbers before.
        self._group.before_wait = self._save_numbers

    @property
    def placement(self) -> Tuple[int, int]:
        """This worker's rank, and the number of members."""
        return self._job.rank, self._job.world_size

    @property
    def turn(self) -> Tuple[int, int]:
        """The step, and how often steps were begun again: rows are dealt once for each turn."""
        return self._group.step, self._synchroniser.restarts

    def begin_step(self) -> Members:
        if self._synchroniser.is_interrupted:
            self._optimizer.zero_grad()  # ends the step before its rows are dealt again
        self._advance()  # GradScaler may have left out the optimizer's step
        return self._group.begin_step()

    def set_weight(self, rows: int) -> None:
        if self._weighs_rows:
            self._group.set_weight(rows)

    def skip_step(self) -> None:
        """Makes a step for which this worker has no rows: with the gradients of the others."""
        self._optimizer.zero_grad()
        self._optimizer.step()

    def catch_sigterm(self) -> None:
        """From now on, SIGTERM ends the training after a step."""
        def preempt(_number: int, _frame: Any) -> None:
            self._is_preempted = True

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, preempt)

    def _save_numbers(self) -> None:
        """Called before each wait for a step."""
        if not self._has_all_schedulers:
            _check_has_no_scheduler(self._optimizer)
        self._numbers.save()

    def _on_step_done(self) -> None:
        began = None if self._sampler is None else self._sampler.epoch
        self._advance()
        if self._schedule_by == "step" or (
                self._sampler is not None and self._sampler.epoch != began):
            for scheduler in self._schedulers:
                scheduler.step()
        if self._is_preempted:
            step = self._group.step - 1
            self._job.leave()
            raise Preempted(f"SIGTERM: this worker has left the job after step {step}")

    def _advance(self) -> None:
        step = self._group.step - 1
        if self._sampler is not None and step > self._done:
            outcome = self._group.last_step()
            self._sampler._advance(len(outcome.members), outcome.contributors)
        self._done = step


# Where a number is: what has it, and the keys that lead to it.
_Place = Tuple[Any, Tuple[Any, ...]]


def _is_scheduler(value: Any) -> bool:
    return (hasattr(value, "state_dict") and hasattr(value, "step") and
            not isinstance(value, torch.optim.Optimizer))


def _needs_metric(scheduler: Any) -> bool:
    """True for ReduceLROnPlateau, for example."""
    return any(one.default is inspect.Parameter.empty and one.kind is one.POSITIONAL_OR_KEYWORD
               for one in inspect.signature(scheduler.step).parameters.values())


def _places_in(owner: Any, keys: Tuple[Any, ...] = ()) -> Iterator[Tuple[Any, ...]]:
    """The keys of the numbers in a dict, a list, a tuple or a scheduler, and in what it has."""
    if _is_scheduler(owner):
        owner = vars(owner)
    if isinstance(owner, (int, float)) and not isinstance(owner, bool):
        yield keys
    elif isinstance(owner, dict):
        for key, value in owner.items():
            yield from _places_in(value, (*keys, key))
    elif isinstance(owner, (list, tuple)):
        for key, value in enumerate(owner):
            yield from _places_in(value, (*keys, key))


def _get(owner: Any, keys: Tuple[Any, ...]) -> Any:
    for key in keys:
        owner = (vars(owner) if _is_scheduler(owner) else owner)[key]
    return owner


def _with(owner: Any, keys: Tuple[Any, ...], number: float) -> Any:
    """Replaces a number within `owner`. Returns `owner`, or another tuple."""
    if not keys:
        return int(number) if isinstance(owner, int) and number.is_integer() else number
    key, *rest = keys
    value = _with(_get(owner, (key,)), tuple(rest), number)
    if isinstance(owner, tuple):
        return (*owner[:key], value, *owner[key + 1:])
    (vars(owner) if _is_scheduler(owner) else owner)[key] = value
    return owner


class _Numbers:
    """The numbers that a newcomer needs and that are not tensors, as a tensor: those in the state
    and the settings of an optimizer, such as learning rates, and those of schedulers."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedulers: Sequence[Any] = ()) -> None:
        own = vars(optimizer)
        self._places: List[_Place] = [
            (own, keys) for key in ("state", "param_groups") for keys in _places_in(own[key], (key,))]
        for scheduler in schedulers:
            self._places += [(scheduler, keys) for keys in _places_in(scheduler)]
        self._values = array.array("d", bytes(8 * len(self._places)))
        self.save()

    def state(self) -> Dict[str, torch.Tensor]:
        if not self._places:
            return {}
        return {"optimizer/numbers": torch.frombuffer(self._values, dtype=torch.float64)}

    def save(self) -> None:
        for number, (owner, keys) in enumerate(self._places):
            self._values[number] = _get(owner, keys)

    def restore(self) -> None:
        for value, (owner, keys) in zip(self._values, self._places):
            _with(owner, keys, value)


def _check_has_no_scheduler(optimizer: torch.optim.Optimizer) -> None:
    """Raises FailedPrecondition if a scheduler sets the learning rate."""
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise FailedPrecondition(
            "the optimizer has a scheduler, whose position a newcomer would not receive: make it "
            "before syncgrads.torch.elastic, and pass schedulers=[scheduler]; or schedulers=[] if "
            "the optimizer has none now")


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state that the optimizer would make in its first step, so that a newcomer can
    receive it: zeros.

    Raises InvalidArgument if it does not begin with zeros."""
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    new = [parameter for parameter in parameters
           if parameter.requires_grad and not optimizer.state.get(parameter)]
    before = [(parameter, parameter.detach().clone(), parameter.grad) for parameter in parameters]
    settings = [dict(group) for group in groups]
    for parameter in parameters:
        parameter.grad = None
    for parameter in new:
        parameter.grad = torch.zeros_like(parameter)
    for group in groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
    try:
        optimizer.step()
    finally:
        for group, kept in zip(groups, settings):
            group.update(kept)
        with torch.no_grad():
            for parameter, values, gradient in before:
                parameter.copy_(values)
                parameter.grad = gradient
    for parameter in new:
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if key == "step":
                state[key] = value * 0
            elif isinstance(value, torch.Tensor) and value.any():
                raise InvalidArgument(f"the state {key!r} of {type(optimizer).__name__} does not "
                                      "begin with zeros: an elastic job cannot hand it over")


def _state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, torch.Tensor]:
    """The tensors that a step changes, without empty ones.

    Raises InvalidArgument if one cannot be handed over: it is received where it is."""
    state = {f"model/{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for number, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer/{number}/{key}"] = value
    for number, settings in enumerate(optimizer.param_groups):
        for key, value in settings.items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer/group{number}/{key}"] = value
    for name, value in state.items():
        if value.dtype not in SUPPORTED:
            raise InvalidArgument(
                f"{name!r} is {value.dtype}, which an elastic job cannot hand over; supported are "
                f"{', '.join(map(str, SUPPORTED))}. Register a buffer that does not change with "
                "persistent=False")
        if not value.is_contiguous():
            raise InvalidArgument(
                f"{name!r} of shape {list(value.shape)} is not contiguous, so an elastic job "
                "cannot hand it over: call model.to(memory_format=torch.contiguous_format) first")
    return {name: value for name, value in state.items() if value.numel() > 0}


def elastic(model: torch.nn.Module, optimizer: torch.optim.Optimizer,
            sampler: Optional[DealtSampler] = None, *, job: Optional[Job] = None,
            schedulers: Optional[Sequence[Any]] = None, schedule_by: str = "step",
            state: Optional[Mapping[str, torch.Tensor]] = None, name: str = "model",
            **options: Any) -> torch.optim.Optimizer:
    """Makes `optimizer` a DistributedOptimizer of an elastic job, which workers may leave and join
    while it runs. Returns the same object.

    A worker that joins later receives the parameters, the state of the optimizer, its learning
    rates and other numbers of its param_groups, the position of the sampler and of `schedulers`,
    and the tensors of `state`, which the caller changes in place only. If the members change during
    a step, step() does nothing, and the sampler returns other rows for the same step. After
    SIGTERM, step() leaves the job and raises Preempted. `options` are those of Job.register.

    `schedulers` are made before this call. step() calls theirs, after each step or, with
    schedule_by="pass", at the end of each pass of the sampler: also on a worker that has no rows in
    a step, and therefore no turn in the loop. One that needs a metric is left to the caller.

    Raises FailedPrecondition if the job is not elastic, or if the optimizer has a scheduler and
    `schedulers` is None; and InvalidArgument if a newcomer could not receive the model or the state
    of the optimizer, or if the arguments of the sampler are not those of the other workers."""
    job = job_or_default(job)
    if not job.is_elastic:
        raise FailedPrecondition("the job is not elastic: pass max_workers to syncgrads.torch.init")
    check_needs_no_closure(optimizer)
    if schedulers is None:
        _check_has_no_scheduler(optimizer)
    if schedule_by != "step" and (schedule_by != "pass" or sampler is None):
        raise InvalidArgument(f"schedule_by is {schedule_by!r}, must be \"step\", or \"pass\" with a "
                              "sampler")
    _make_state(optimizer)
    changed = _state_of(model, optimizer)
    settings = {} if sampler is None else {"sampler/settings": sampler._received}
    if not job.is_newcomer:
        broadcast({**model.state_dict(), **settings}, job=job, name=f"{name}/initial")
        if sampler is not None:
            sampler._check_settings()
    DistributedOptimizer(optimizer, model, job=job, name=name, broadcast_from=None,
                         **{"one_epoch": sampler is not None, **options})
    training = _Training(job, optimizer, sampler, schedulers, schedule_by,
                         options.get("reduction", "average") == "average")
    training.begin({**changed, **settings,
                    **({} if sampler is None else sampler._state()), **(state or {})})
    if sampler is not None:
        sampler._check_settings()
    training.catch_sigterm()
    if sampler is not None:
        sampler._training = training
    return optimizer
