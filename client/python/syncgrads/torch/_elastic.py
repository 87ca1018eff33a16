"""Elastic training: workers come and go, and each row of the data counts once."""

from __future__ import annotations

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

    def __iter__(self) -> Iterator[List[int]]:
        if self._training is None:
            raise FailedPrecondition("the sampler has no job: pass it to syncgrads.torch.elastic")
        last = None
        while not self.ended:
            members = self._training.begin_step()
            turn = self._training.turn
            if turn == last:
                raise FailedPrecondition(
                    f"the rows of step {turn[0]} were returned already: call the "
                    "optimizer's step() once for each batch; a DataLoader needs num_workers=0")
            last = turn
            rows = self._rows_of(members.rank)
            if rows:
                self._training.set_weight(len(rows))
                yield rows
            else:
                self._training.skip_step()

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
        dealt = self._order[begin:begin + world_size * self.batch_size].tolist()
        counted: List[int] = []
        back: List[int] = []
        for rank in range(world_size):
            rows = dealt[rank * self.batch_size:(rank + 1) * self.batch_size]
            (counted if rank in contributors else back).extend(rows)
        rest = self._order[begin + len(dealt):].tolist()
        self._order[begin:] = torch.tensor(counted + rest + back, dtype=torch.int64)
        self._position[1] += len(counted)
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
                 weighs_rows: bool) -> None:
        self._job = job
        self._optimizer = optimizer
        self._sampler = sampler
        self._weighs_rows = weighs_rows
        self._synchroniser: Synchroniser = optimizer._synchroniser
        self._group = self._synchroniser.group
        self._done = 0  # the last step that the sampler has advanced past
        self._is_preempted = False
        self._numbers = _Numbers(optimizer)

    def begin(self, state: Mapping[str, torch.Tensor]) -> None:
        """Registers what a newcomer needs. A newcomer continues from what the others have."""
        if self._group.register_state({**state, **self._numbers.state()}):
            self._numbers.restore()
        self._done = self._group.step - 1
        self._synchroniser.repeats_steps = True
        self._optimizer._step_done = self._on_step_done

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

    def _on_step_done(self) -> None:
        self._numbers.save()
        self._advance()
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


class _Numbers:
    """The numbers in the state of an optimizer that are not tensors, as a tensor."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._places = [(state, key) for state in optimizer.state.values()
                        for key, value in state.items() if isinstance(value, (int, float))]
        self._values = torch.zeros(len(self._places), dtype=torch.float64)
        self.save()

    def state(self) -> Dict[str, torch.Tensor]:
        return {"optimizer/numbers": self._values} if self._places else {}

    def save(self) -> None:
        for number, (state, key) in enumerate(self._places):
            self._values[number] = state[key]

    def restore(self) -> None:
        for number, (state, key) in enumerate(self._places):
            state[key] = type(state[key])(self._values[number].item())


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
            state: Optional[Mapping[str, torch.Tensor]] = None, name: str = "model",
            **options: Any) -> torch.optim.Optimizer:
    """Makes `optimizer` a DistributedOptimizer of an elastic job, which workers may leave and join
    while it runs. Returns the same object.

    A worker that joins later receives the parameters, the state of the optimizer, the position of
    the sampler, and the tensors of `state`, which the caller changes in place only. If the members
    change during a step, step() does nothing, and the sampler returns other rows for the same step.
    After SIGTERM, step() leaves the job and raises Preempted. `options` are those of Job.register.

    Raises FailedPrecondition if the job is not elastic, and InvalidArgument if a newcomer could not
    receive the model or the state of the optimizer, or if the arguments of the sampler are not
    those of the other workers."""
    job = job_or_default(job)
    if not job.is_elastic:
        raise FailedPrecondition("the job is not elastic: pass max_workers to syncgrads.torch.init")
    check_needs_no_closure(optimizer)
    _make_state(optimizer)
    changed = _state_of(model, optimizer)
    settings = {} if sampler is None else {"sampler/settings": sampler._received}
    if not job.is_newcomer:
        broadcast({**model.state_dict(), **settings}, job=job, name=f"{name}/initial")
        if sampler is not None:
            sampler._check_settings()
    DistributedOptimizer(optimizer, model, job=job, name=name, broadcast_from=None,
                         **{"one_epoch": sampler is not None, **options})
    training = _Training(job, optimizer, sampler,
                         options.get("reduction", "average") == "average")
    training.begin({**changed, **settings,
                    **({} if sampler is None else sampler._state()), **(state or {})})
    if sampler is not None:
        sampler._check_settings()
    training.catch_sigterm()
    if sampler is not None:
        sampler._training = training
    return optimizer
