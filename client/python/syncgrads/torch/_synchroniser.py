"""Pushes gradients while backward computes them."""

from __future__ import annotations

import collections
import threading
import weakref
from typing import (Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set,
                    Tuple)

import torch
from torch.autograd import Variable

from syncgrads import Job
from syncgrads.errors import Aborted, FailedPrecondition, InvalidArgument
from syncgrads.group import Contributors, Group
from syncgrads.torch import _cuda
from syncgrads.torch._figures import figures_of, timed
from syncgrads.torch._gradients import GradientMemory, UsedResults


# The least number of bytes of the gradients that are pushed in one call, but for the last.
_CALL_BYTES = 1 << 20


# The live synchronisers of each job, by the names of their groups.
_live: "weakref.WeakKeyDictionary[Job, weakref.WeakValueDictionary[str, Synchroniser]]" = (
    weakref.WeakKeyDictionary())


def check_unused(job: Job, name: str) -> None:
    """Raises FailedPrecondition if a group of this name has a Synchroniser."""
    if name in _live.get(job, ()):
        raise FailedPrecondition(f"the name {name!r} has a DistributedOptimizer already: give this "
                                 "one another name")


class _Room:
    """How many bytes of gradients fit into the next call. 0: no pass has begun."""

    bytes = 0


class Synchroniser:
    """Pushes gradients while backward computes them, and ends the step when backward ends.

    Gradients are moved to memory that servers on the same host read in place. Those on CUDA devices
    are copied there, beside backward, and the averages are copied back: the stream that is current
    when backward returns waits for them. The averages replace the gradients. They are averages over
    the members that had the gradient."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor], passes: int) -> None:
        _live.setdefault(group.job, weakref.WeakValueDictionary())[group.name] = self
        self.group = group
        self.figures = figures_of(group.job)
        self._parameters = list(parameters.values())
        self._registered = [(one.dtype, one.shape, _cuda.device_of(one),
                             one.numel() * one.element_size()) for one in self._parameters]
        self._passes = passes  # of backward, in a step
        self._pass = 0
        self._in_backward = False
        self._is_waiting = False  # every gradient has been pushed or skipped
        self._awaited_step = 0
        self.is_synchronised = False  # the step that the optimizer makes next
        # Elastic jobs: if the members have changed, the step is made again, with other rows.
        self.repeats_steps = False
        self.is_repeated = False
        self.restarts = 0  # how often a step was begun again
        # Gradients that this pass has computed and that are not in the sets yet. Hooks append to
        # it on any thread, without a lock.
        self._computed: Deque[int] = collections.deque()
        self._room = _Room()
        self._have_gradients: Set[int] = set()
        self._pushed: Set[int] = set()
        self._skipped: Set[int] = set()
        # Where gradients are when they are pushed, and where the averages of skipped ones arrive.
        self._memory = GradientMemory(group.job, self._parameters)
        self._places = [
            (one, one.dtype, one.shape, _cuda.device_of(one), own, address)
            for one, own, address in zip(self._parameters, self._memory.tensors,
                                         self._memory.addresses)]
        # Autograd calls hooks on a thread for each device.
        self._lock = threading.RLock()
        self._copies = _cuda.copies_for(self._parameters)
        self._used = UsedResults(group, self._parameters)
        # Averages for parameters with another order of elements are copied anyway.
        self._used.is_on = self._used.is_on and not self._memory.turned
        self._in_place: List[int] = []  # the gradients that were pushed with results in place
        # What wait_step has returned, until the end of the step is complete.
        self._counted: Optional[Sequence[Contributors]] = None
        # The streams that compute the gradients that are in _computed.
        self._streams: Dict[torch.device, Set[Any]] = collections.defaultdict(set)
        # Gradients whose copies to host memory have been queued: the event that completes with
        # them, their numbers, and what is copied.
        self._copied: Deque[Tuple[Any, List[int], List[_cuda.Pair]]] = collections.deque()
        self._keep: List[Any] = []
        for number, parameter in enumerate(self._parameters):
            self._watch(number, parameter)

    def _watch(self, number: int, parameter: torch.Tensor) -> None:
        on_gradient = self._hook(number)
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
            parameter.register_post_accumulate_grad_hook(on_gradient)
            return
        # The node that adds to parameter.grad. It lives as long as somebody refers to it.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(on_gradient)
        self._keep.append(accumulator)

    def _hook(self, number: int) -> Callable[..., None]:
        """Returns what autograd calls for a gradient of each step, which therefore does little."""
        # The parameters do not keep this object, and with it page-locked memory.
        this = weakref.ref(self)
        room, append = self._room, self._computed.append
        _, _, device, size = self._registered[number]

        def on_gradient(*_: Any) -> None:
            room.bytes -= size
            if room.bytes > 0:
                append(number)
                return
            synchroniser = this()
            if synchroniser is not None:
                synchroniser._on_gradients(number)

        def on_device(*_: Any) -> None:
            synchroniser = this()
            if synchroniser is not None:
                with synchroniser._lock:
                    synchroniser._streams[device].add(torch.cuda.current_stream(device))
                    on_gradient()

        return on_device if device in self._copies else on_gradient

    def _on_gradients(self, last: int) -> None:
        """Called for the first gradient of a pass, and when those that have been computed are large
        enough for a call."""
        with self._lock:
            if not self._in_backward:
                self._begin_backward(last)
            self._computed.append(last)
            if self._room.bytes <= 0:
                self._take_computed()

    def _begin_backward(self, number: int) -> None:
        if self._pass == self._passes:
            self._in_backward = True  # step() refuses this gradient, which is added to others
            raise FailedPrecondition(
                f"backward computes the gradient of {self.group.tensors[number]!r}, but an "
                "exception has ended the wait for the averages of the last step: call the "
                "optimizer's zero_grad() first")
        if self.is_synchronised:
            self._begin_again(number)
        self._in_backward = True
        self._used.check_unchanged()
        self._room.bytes = _CALL_BYTES - self._registered[number][3]
        Variable._execution_engine.queue_callback(self._on_backward_done)

    def _begin_again(self, number: int) -> None:
        """Begins a step though the optimizer has not made the last one, as GradScaler does. Raises
        FailedPrecondition if the averages of the last step are still there."""
        for other, parameter in enumerate(self._parameters):
            if other != number and parameter.grad is not None and parameter.grad.any():
                raise FailedPrecondition(
                    f"backward computes the gradient of {self.group.tensors[number]!r}, but the "
                    "gradients are averages already: call step() or zero_grad() first; for several "
                    "backward passes in a step, use backward_passes_per_step; for checkpointing, "
                    "use_reentrant=False")
        self.is_synchronised = False

    def _take_computed(self) -> None:
        """Pushes the gradients that have been computed, if this is the step's last pass."""
        self._room.bytes = _CALL_BYTES
        computed = [self._computed.popleft() for _ in range(len(self._computed))]
        self._have_gradients.update(computed)
        if self._pass + 1 == self._passes:
            self._push(computed)

    @timed("push")
    def _push(self, numbers: Iterable[int]) -> None:
        """Pushes the gradients that have not been pushed, in one call; those on CUDA devices when
        they have been copied."""
        due: List[int] = []
        sources, addresses, moved, keep = [], [], [], []
        on_devices: Dict[torch.device, List[int]] = {}
        memory = self._memory
        # Each line of the loop costs microseconds for each step of a large model.
        pushed, places, copies = self._pushed, self._places, self._copies
        for number in numbers:
            if number in pushed:
                continue
            parameter, dtype, shape, device, own, address = places[number]
            gradient = parameter.grad
            if gradient is None:
                continue  # set to None between the passes of a step: it is skipped
            if (gradient.dtype is not dtype or gradient.shape != shape or gradient.is_sparse or
                    (_cuda.device_of(gradient) != device if copies else not gradient.is_cpu)):
                raise self._changed(number, gradient)
            if copies and device in copies:
                on_devices.setdefault(device, []).append(number)
                continue
            source = gradient.data_ptr()
            if source != address:
                if gradient.is_contiguous():
                    moved.append((parameter, own))
                    keep.append(gradient)
                else:
                    source = memory.take_in(number, parameter)
            due.append(number)
            sources.append(source)
            addresses.append(address)
        pushed.update(due, *on_devices.values())
        if due:
            for parameter, own in moved:
                parameter.grad = own
            # One call copies them: PyTorch would need microseconds for each, and would read the
            # memory that it writes. The memory of `keep` is then free for the next gradients, while
            # it is in the processor's cache.
            in_place = self._used.is_on
            self.group.push_copies(due, sources, addresses, memory, in_place)
            if in_place:
                self._in_place.extend(due)
        for device, copied in on_devices.items():
            self._copy_to_host(device, copied)
        self._push_copied(waits=False)

    def _copy_to_host(self, device: torch.device, numbers: List[int]) -> None:
        """Queues copies of gradients to host memory, after the work that computes them."""
        pairs = [(self._memory.tensors[number], self._parameters[number].grad.detach())
                 for number in numbers]
        # The current stream: when backward has ended, it waits for those that computed gradients.
        streams = self._streams.pop(device, set()) | {torch.cuda.current_stream(device)}
        self._copied.append((self._copies[device].start(pairs, streams), numbers, pairs))

    def _push_copied(self, waits: bool) -> None:
        """Pushes the gradients that have been copied to host memory, or all, when they have."""
        while self._copied:
            event, numbers, _ = self._copied[0]
            if not waits and not event.query():
                return
            event.synchronize()
            self._copied.popleft()
            self.group.push_memory(numbers, [self._memory.addresses[one] for one in numbers],
                                   self._memory)

    def _changed(self, number: int, tensor: torch.Tensor) -> InvalidArgument:
        """The exception for a parameter or a gradient that is not as it was registered."""
        if tensor.is_sparse:
            return InvalidArgument(
                f"the gradient of {self.group.tensors[number]!r} is sparse: only dense gradients "
                "are synchronised; make the layer with sparse=False")
        dtype, shape, device, _ = self._registered[number]
        return InvalidArgument(
            f"{self.group.tensors[number]!r} is {tensor.dtype}{list(tensor.shape)} on "
            f"{_cuda.device_of(tensor)}, but was registered as {dtype}{list(shape)} on {device}: "
            "after a change of the model, make a new DistributedOptimizer with another name")

    def _on_backward_done(self) -> None:
        self._take_computed()
        self._pass += 1
        if self._pass == self._passes:
            self._push_or_skip_rest()
            # If the loss has parameters of several optimizers, the order of these callbacks is not
            # the same on all workers. All of them push before one waits.
            Variable._execution_engine.queue_callback(self._on_pushed)
        else:
            self._end_backward()

    def _on_pushed(self) -> None:
        self._end_backward()
        self._end_step()

    def _end_backward(self) -> None:
        self._in_backward = False
        self._room.bytes = 0

    def synchronise(self) -> None:
        """Pushes or skips what has not been pushed, and waits for all results."""
        self._push_or_skip_rest()
        self._end_step()

    def _push_or_skip_rest(self) -> None:
        self._push(sorted(self._have_gradients - self._pushed))
        for number in self._missing():
            self._skip(number)

    def _missing(self) -> List[int]:
        """The gradients that have neither been pushed nor skipped."""
        if len(self._pushed) == len(self._parameters):
            return []
        return [number for number in range(len(self._parameters))
                if number not in self._pushed and number not in self._skipped]

    def _end_step(self) -> None:
        # KeyboardInterrupt may have ended an earlier call, before or after the end of the step.
        if not self.is_synchronised:
            self._push_copied(waits=True)
            self._counted = self._wait_step()
            self.is_synchronised = True
        counted = self._counted
        self.is_repeated = counted is None
        if counted is None:
            self._forget()
            return
        if self._in_place:
            self._used.give(self._in_place,
                            [self._memory.addresses[number] for number in self._in_place])
        received = [number for number in self._skipped if counted[number].most > 0]
        if self.repeats_steps:
            # An older member may have a gradient of zeros, and a newcomer has none.
            for number in self._skipped.difference(received):
                self._parameters[number].grad = None
        for number in received:
            parameter = self._parameters[number]
            on_device = self._registered[number][2] in self._copies
            parameter.grad = (torch.empty_like(parameter) if on_device
                              else self._memory.tensors[number])
        for device in self._copies:
            self._copy_to_device(device, received)
        self._forget()

    def _copy_to_device(self, device: torch.device, received: Sequence[int]) -> None:
        """Copies averages to the gradients on a device. Its current stream waits for them."""
        pairs = [(self._parameters[number].grad.detach(), self._memory.tensors[number])
                 for number in (*self._pushed, *received)
                 if self._registered[number][2] == device]
        stream = torch.cuda.current_stream(device)
        stream.wait_event(self._copies[device].start(pairs, [stream]))

    @timed("wait")
    def _wait_step(self) -> Optional[Sequence[Contributors]]:
        """As Group.wait_step. None if the step has to be made again."""
        if not self._is_waiting:
            self._awaited_step = self.group.step
            self._is_waiting = True
        try:
            return self.group.ensure_ended(self._awaited_step)
        except Exception as error:
            self._is_waiting = False  # the step has not ended, and may begin again
            if not (self.repeats_steps and isinstance(error, Aborted)):
                raise
            self.group.restart_step()
            self.restarts += 1
            return None

    def _skip(self, number: int) -> None:
        """Skips a gradient that this worker has not computed, and receives that of the others."""
        parameter = self._parameters[number]
        dtype, shape, device, _ = self._registered[number]
        if (parameter.dtype is not dtype or parameter.shape != shape or
                _cuda.device_of(parameter) != device):
            raise self._changed(number, parameter)
        if device in self._copies:
            self._copies[device].wait()  # one of them may read where the average arrives
        self._used.keep_one(number)  # the memory of the old average may change
        self._skipped.add(number)
        self.group.skip(number, self._memory.tensors[number])

    def _skip_unpushed(self) -> None:
        """Skips what has not been pushed or skipped, if the sets may be wrong: KeyboardInterrupt may
        have been raised between a call of the group and the line that notes it."""
        for number in range(len(self._parameters)):
            try:
                self.group.skip(number)
            except FailedPrecondition:
                pass  # it has been pushed or skipped; the wait raises other reasons

    def _forget(self) -> None:
        self._is_waiting = False
        self._pass = 0
        self._in_backward = False
        self._room.bytes = 0
        self._computed.clear()
        self._streams.clear()
        self._have_gradients.clear()
        self._pushed.clear()
        self._skipped.clear()
        self._in_place.clear()
        self._counted = None

    @property
    def has_begun(self) -> bool:
        """True if gradients of a step have been computed that is not synchronised."""
        return self._pass > 0 or bool(self._have_gradients)

    @property
    def is_interrupted(self) -> bool:
        """True if an exception has ended backward, or its wait for the averages."""
        return self._in_backward or bool(self._pushed or self._skipped)

    def give_up(self) -> None:
        """Ends a step if an exception was raised in its backward, or while backward waited for the
        averages: what was pushed counts. Forgets what earlier passes of a step have computed."""
        if self.is_interrupted:
            self._in_backward = True  # until the step has ended, also if the wait is interrupted
            self._copied.clear()
            if not self.is_synchronised:
                if not self._is_waiting:
                    self._skip_unpushed()
                self._wait_step()
        self._forget()
