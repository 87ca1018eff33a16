"""What the optimizers of a job report of their steps, for the servers' page and psctl."""

from __future__ import annotations

import functools
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, TypeVar

import torch

from syncgrads import Job
from syncgrads.errors import Error
from syncgrads.group import Group
from syncgrads.torch import _cuda
from syncgrads.torch._job import job_or_default

# In seconds: the least time between two reports. The library sends the newest once a second.
_INTERVAL = 0.2
_DEVICE_BYTES = 64  # kMaxDeviceBytes in common/signals/figures.h

_Batch = TypeVar("_Batch")


class StepFigures:
    """How long the steps of a job were in each phase (StepTimes in proto/figures.proto). Counts from
    the end of the first step on."""

    def __init__(self) -> None:
        self._seconds: Dict[str, float] = {}  # "compute" has the whole time
        self._last_step: Optional[float] = None  # when it ended
        self._next_report = 0.0
        self._devices: Dict[torch.device, str] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Adds to a phase other than computing."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def stepped(self, group: Group, optimizer: torch.optim.Optimizer, factor: float) -> None:
        """Called at the end of each step of an optimizer. Reports it, if the last report was long
        enough ago."""
        now = time.perf_counter()
        if self._last_step is None:
            self._seconds = {"compute": 0.0}
        else:
            self.add("compute", now - self._last_step)
        self._last_step = now
        group.job._step = max(group.job._step, group.step - 1)
        if now < self._next_report:
            return
        self._next_report = now + _INTERVAL
        others = sum(value for phase, value in self._seconds.items() if phase != "compute")
        rate = optimizer.param_groups[0].get("lr")
        first = next(one for part in optimizer.param_groups for one in part["params"])
        try:
            group.job._report({
                "learning_rate": None if rate is None else float(rate) * factor,
                "device": self._name_of(_cuda.device_of(first)),
                "times": {**self._seconds, "compute": max(0.0, self._seconds["compute"] - others)}})
        except Error:
            pass  # training goes on without it

    def _name_of(self, device: torch.device) -> str:
        if device not in self._devices:
            name = _cuda.name_of(device).encode()[:_DEVICE_BYTES]
            self._devices[device] = name.decode("utf-8", "ignore")
        return self._devices[device]


_figures: "weakref.WeakKeyDictionary[Job, StepFigures]" = weakref.WeakKeyDictionary()


def figures_of(job: Job) -> StepFigures:
    """What the optimizers of a job have in common."""
    return _figures.setdefault(job, StepFigures())


def timed(phase: str) -> Callable[[Any], Any]:
    """For methods of objects that have `figures`: the time of a call counts as this phase."""

    def timed_method(method: Any) -> Any:

        @functools.wraps(method)
        def call(this: Any, *arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(this, *arguments, **named)
            finally:
                this.figures.add(phase, time.perf_counter() - begin)

        return call

    return timed_method


def read(batches: Iterable[_Batch], *, job: Optional[Job] = None) -> Iterator[_Batch]:
    """Yields the batches of a DataLoader or another iterable. The time in which the loop waits for
    the next one is shown as reading; otherwise it counts as computing."""
    figures = figures_of(job_or_default(job))
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        figures.add("read", time.perf_counter() - begin)
        yield batch
