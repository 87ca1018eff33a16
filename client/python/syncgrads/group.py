"""A registered set of tensors that go through rounds together."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from syncgrads import _arrays, _library, _waits
from syncgrads._library import LIBRARY, check
from syncgrads.errors import DeadlineExceeded, InvalidArgument

if TYPE_CHECKING:
    from syncgrads.job import Job

# In seconds. The main thread first awaits a step for as long itself, without KeyboardInterrupt:
# passing a wait to another thread and back costs processor time.
_SOON = 0.2

# The name of a tensor or its id, which is its position in the group.
TensorKey = Union[str, int]


class Contributors(NamedTuple):
    """How many members contributed to a tensor."""

    least: int
    most: int
    left_out: bool


class _AllContributors(Sequence[Contributors]):
    """The contributors of each tensor. They are converted when they are read, because most callers
    read few of them."""

    def __init__(self, counted: Any) -> None:
        self._counted = counted

    def __len__(self) -> int:
        return len(self._counted)

    def __getitem__(self, tensors: Any) -> Any:
        if isinstance(tensors, slice):
            return [_converted(one) for one in self._counted[tensors]]
        return _converted(self._counted[tensors])

    def __repr__(self) -> str:
        return repr(list(self))


class Members(NamedTuple):
    """The members of a step, and this worker's place among them."""

    epoch: int
    rank: int
    world_size: int


class Outcome(NamedTuple):
    """The outcome of a step that has ended. `contributors` are ranks among `members`."""

    step: int
    epoch: int
    members: List[str]
    contributors: List[int]
    whole: bool


class OptimizerState(NamedTuple):
    """The state of an optimizer on the servers. slots[t][s] has the bytes of slot s of tensor t,
    and updates[t] counts the updates of tensor t."""

    slots: List[List[bytearray]]
    updates: List[int]


class Group:
    """A registered set of tensors. Made by Job.register.

    Arrays that are pushed are used until a wait for their tensor has returned, and are kept alive
    until the step has ended. They must not be changed meanwhile."""

    def __init__(self, job: "Job", handle: ctypes.c_void_p, name: str,
                 shapes: Sequence[tuple], dtypes: Sequence[str], names: Sequence[str],
                 has_quorum: bool = False) -> None:
        self.job = job
        self.has_quorum = has_quorum  # a step may end without this worker
        self.name = name
        self.tensors = tuple(names)
        self.shapes = tuple(shapes)
        self.dtypes = tuple(dtypes)
        self._handle = handle
        self._ids: Dict[str, int] = {tensor: t for t, tensor in enumerate(names)}
        self._in_use: List[Any] = []  # what this step's buffers belong to
        self._state: List[Any] = []
        self._waiting = _waits.RepeatableWait()
        # Whether the last step was awaited for less than _SOON, and what a wait that may be
        # repeated is for: the step, and where its contributors are written.
        self._ends_soon = True
        self._ending: Optional[tuple] = None
        self._last_counted: Sequence[Contributors] = ()  # of the last step that has ended
        # Called before each wait_step, during which the registered state is read.
        self.before_wait: Optional[Callable[[], None]] = None

    @property
    def step(self) -> int:
        """The number of the current step."""
        return LIBRARY.sg_step(self._checked())

    @property
    def steps_behind(self) -> int:
        """The number of steps that a quorum has closed without this worker."""
        return LIBRARY.sg_steps_behind(self._checked())

    @property
    def learning_rate_factor(self) -> float:
        """The factor by which the job's learning rates are multiplied in the step of the newest
        result (psctl set learning-rate-factor); 1 before the first one. The same on all workers.
        In a group with members_scale_rate, multiply the learning rate that you apply the result
        with."""
        return LIBRARY.sg_learning_rate_factor(self._checked())

    def id_of(self, tensor: TensorKey) -> int:
        """The id of a tensor. Raises InvalidArgument if there is none of this name or number."""
        if isinstance(tensor, str):
            if tensor not in self._ids:
                raise InvalidArgument(f"group {self.name!r} has no tensor {tensor!r}: all tensors "
                                      "are registered before the first step")
            return self._ids[tensor]
        if not 0 <= tensor < len(self.tensors):
            raise InvalidArgument(f"tensor {tensor} of group {self.name!r}, which has "
                                  f"{len(self.tensors)} tensors")
        return tensor

    def set_weight(self, weight: float) -> None:
        """Sets this worker's weight in the averages of this step."""
        check("sg_set_weight", self._checked(), weight)

    def send_uncompressed(self) -> None:
        """Sends this worker's contribution to this step uncompressed."""
        check("sg_send_uncompressed", self._checked())

    def push(self, tensor: TensorKey, values: Any, out: Any = None) -> None:
        """Contributes `values` to this step. The result is written to `out`; if it is None, to
        `values`. Does not wait."""
        number = self.id_of(tensor)
        source = self._fitting(number, values, writable=out is None)
        target = source if out is None else self._fitting(number, out, writable=True)
        self._use((source, target))
        check("sg_push", self._checked(), number, source.pointer, source.bytes, target.pointer)

    def push_memory(self, numbers: Sequence[int], addresses: Sequence[int],
                    owner: Any, in_place: bool = False) -> None:
        """As push_many, without its checks, which cost microseconds for each tensor: the values of
        tensor numbers[i] are at addresses[i], with its dtype and size, and are replaced by the
        result. `owner` keeps them alive. If `in_place`, the values are not replaced: use_results
        returns where the results are."""
        count = len(numbers)
        pointers = (ctypes.c_void_p * count)(*addresses)
        results = (ctypes.c_void_p * count)(*[_library.IN_PLACE] * count) if in_place else pointers
        self._use(owner)
        check("sg_push_many", self._checked(), (ctypes.c_uint32 * count)(*numbers), pointers,
              results, count, None)

    def push_copies(self, numbers: Sequence[int], sources: Sequence[int], addresses: Sequence[int],
                    owner: Any, in_place: bool = False) -> None:
        """As push_memory, but first copies the values of tensor numbers[i] from sources[i] to
        addresses[i], unless these are equal. The sources are not used after the call."""
        count = len(numbers)
        self._use(owner)
        check("sg_copy_and_push_many", self._checked(), (ctypes.c_uint32 * count)(*numbers),
              (ctypes.c_void_p * count)(*sources), (ctypes.c_void_p * count)(*addresses), in_place,
              count, None)

    def use_results(self, numbers: Sequence[int], addresses: Sequence[int]) -> Sequence[int]:
        """After wait_step, for tensors that were pushed in place: returns where the
        result of tensor numbers[i] is and may be changed. That is in memory of a server on this
        host, where changes are seen by this process only, or at addresses[i], where it is copied.

        A result that was not copied is valid until the tensor is pushed or skipped again or the
        worker leaves; its memory, until the job is freed. Each call takes back what earlier calls
        have returned: changes are lost."""
        count = len(numbers)
        places = (ctypes.c_void_p * count)(*addresses)
        check("sg_use_results", self._checked(), (ctypes.c_uint32 * count)(*numbers), places, count)
        return places  # type: ignore[return-value]

    def skip(self, tensor: TensorKey, out: Any = None) -> None:
        """Contributes nothing to this step. The result is written to `out`, unless it is None."""
        number = self.id_of(tensor)
        target = None if out is None else self._fitting(number, out, writable=True)
        self._use(target)
        check("sg_skip", self._checked(), number, None if target is None else target.pointer)

    def push_many(self, values: Mapping[TensorKey, Any],
                  out: Optional[Mapping[TensorKey, Any]] = None) -> None:
        """Pushes several tensors in one call, in their order. A tensor whose value is None is
        skipped. Results are written to `out`; to the values themselves if it is None."""
        numbers = [self.id_of(tensor) for tensor in values]
        results = dict(zip(numbers, values.values())) if out is None else {
            self.id_of(tensor): result for tensor, result in out.items()}
        unknown = results.keys() - numbers
        if unknown:
            raise InvalidArgument(
                f"`out` has tensor {self.tensors[min(unknown)]!r} of group {self.name!r}, which "
                "`values` has not: pass its value, or None to skip it")
        count = len(values)
        ids = (ctypes.c_uint32 * count)(*numbers)
        sources = (ctypes.c_void_p * count)()
        targets = (ctypes.c_void_p * count)()
        for i, (number, value) in enumerate(zip(numbers, values.values())):
            result = results.get(number)
            if value is not None:
                source = self._fitting(number, value, writable=out is None)
                sources[i] = source.pointer
                self._use(source)
            if result is not None:
                target = self._fitting(number, result, writable=True)
                targets[i] = target.pointer
                self._use(target)
        check("sg_push_many", self._checked(), ids, sources, targets, count, None)

    def wait(self, tensor: TensorKey, timeout: Optional[float] = None) -> Contributors:
        """Waits until the tensor's result is in its buffer."""
        number = self.id_of(tensor)
        seconds = self.job.seconds(timeout)
        counted = _library.Contributors()
        _waits.wait_for(lambda: check("sg_wait", self._checked(), number, seconds, counted))
        return _converted(counted)

    def next_completion(self, timeout: Optional[float] = None) -> str:
        """Waits until the result of any tensor that was pushed or skipped in this step is in its
        buffer, and returns the tensor's name: each tensor once in a step. Raises NotFound if all
        have been returned."""
        seconds = self.job.seconds(timeout)
        number = ctypes.c_uint32()
        _waits.wait_for(
            lambda: check("sg_next_completion", self._checked(), seconds, number, None))
        return self.tensors[number.value]

    @property
    def is_step_answered(self) -> bool:
        """True if wait_step need not wait for answers."""
        return bool(LIBRARY.sg_is_step_answered(self._checked()))

    def wait_step(self, timeout: Optional[float] = None) -> Sequence[Contributors]:
        """Waits until every tensor of this step has its result, and begins the next step. Returns
        the contributors of each tensor. If KeyboardInterrupt ended an earlier call, this call
        continues with its timeout."""
        if self.before_wait is not None and not self._waiting.has_begun:
            self.before_wait()
        seconds = self.job.seconds(timeout)
        if (self._ends_soon and seconds > _SOON and not self._waiting.has_begun and
                _waits.is_main_thread()):
            try:
                return self._end_step(_SOON)
            except DeadlineExceeded:
                self._ends_soon = False
        began = time.monotonic()
        counted = self._waiting.run(lambda: self._end_step(seconds), lambda: self.is_step_answered)
        self._ends_soon = time.monotonic() - began < _SOON
        return counted

    def ensure_ended(self, step: int) -> Sequence[Contributors]:
        """As wait_step, but returns at once if `step`, the last one whose tensors were pushed, has
        ended: KeyboardInterrupt may have been raised after an earlier call."""
        if self.step == step or self._waiting.has_begun or self._ending is not None:
            return self.wait_step()
        return self._last_counted

    def _end_step(self, seconds: float) -> Sequence[Contributors]:
        """Ends the step. If KeyboardInterrupt is raised when the step has ended, the next call
        returns the value."""
        if self._ending is None:
            self._ending = (self.step, (_library.Contributors * len(self.tensors))())
        step, counted = self._ending
        if self.step == step:
            try:
                check("sg_wait_step", self._checked(), seconds, counted, len(self.tensors))
            except Exception:
                self._ending = None
                raise
        self._last_counted = _AllContributors(counted)
        self._ending = None
        self._in_use.clear()
        return self._last_counted

    def _use(self, owner: Any) -> None:
        """Keeps what a buffer of this step belongs to."""
        self._in_use.append(owner)
        self._ending = None

    def end(self, timeout: Optional[float] = None) -> None:
        """Declares that this worker has no more data."""
        seconds = self.job.seconds(timeout)
        _waits.wait_for(lambda: check("sg_end", self._checked(), seconds))

    def register_state(self, state: Mapping[str, Any], timeout: Optional[float] = None) -> bool:
        """Elastic jobs only: registers the arrays that a newcomer needs, by name. Returns True if
        this worker is a newcomer: the arrays then have the others' state. They must not be
        replaced afterwards, only changed in place."""
        tensors, keep = _tensors_of(state)
        received = ctypes.c_int()
        seconds = self.job.seconds(timeout)
        self._state.append(keep)
        _waits.wait_for(lambda: check("sg_register_state", self._checked(), tensors, len(tensors),
                                      seconds, received))
        return bool(received.value)

    def begin_step(self) -> Members:
        """The members of the current step."""
        members = _library.StepMembers()
        check("sg_begin_step", self._checked(), members)
        return Members(members.epoch, members.rank, members.world_size)

    def restart_step(self, timeout: Optional[float] = None) -> None:
        """Begins the current step again, with nothing pushed, after wait_step raised Aborted or a
        server has refused a contribution."""
        seconds = self.job.seconds(timeout)
        _waits.wait_for(lambda: check("sg_restart_step", self._checked(), seconds))
        self._in_use.clear()

    def last_step(self, timeout: Optional[float] = None) -> Outcome:
        """The outcome of the step that wait_step ended last."""
        seconds = self.job.seconds(timeout)
        size = 64
        while True:
            ranks = (ctypes.c_uint32 * size)()
            names = ctypes.create_string_buffer(256 * size)
            outcome = _library.Outcome(
                size=ctypes.sizeof(_library.Outcome), ranks=ranks, ranks_capacity=size,
                names=ctypes.cast(names, ctypes.c_void_p), names_capacity=len(names))
            _waits.wait_for(lambda: check("sg_last_step", self._checked(), seconds, outcome))
            if outcome.world_size <= size:
                break
            size = outcome.world_size
        members = names.raw.decode("utf-8", "replace").split("\0")[:outcome.world_size]
        return Outcome(outcome.step, outcome.epoch, members, list(ranks[:outcome.contributors]),
                       bool(outcome.whole))

    def broadcast(self, parameters: Sequence[Any], root: int = 0, *,
                  state: Optional[OptimizerState] = None,
                  timeout: Optional[float] = None) -> None:
        """Optimizer on the servers only: sets the initial parameters to the root's. `parameters`
        has one array for each tensor, in the order of the group. The optimizer continues from the
        root's `state`; if that is None, from zeros."""
        if len(parameters) != len(self.tensors):
            raise InvalidArgument(f"{len(parameters)} parameters for group {self.name!r}, which "
                                  f"has {len(self.tensors)} tensors")
        arrays = [self._fitting(t, one, writable=True) for t, one in enumerate(parameters)]
        pointers = (ctypes.c_void_p * len(arrays))(*[one.pointer for one in arrays])
        converted = None if state is None else _State(state)
        pointer = None if converted is None else converted.struct
        seconds = self.job.seconds(timeout)
        self._in_use.append((arrays, converted))
        _waits.wait_for(lambda: check("sg_broadcast_parameters", self._checked(), root, pointers,
                                      len(pointers), pointer, seconds))

    def read_optimizer(self, timeout: Optional[float] = None) -> OptimizerState:
        """Optimizer on the servers only: its state after the step that wait_step ended last. Must
        be called before the first push of the next step."""
        slots = LIBRARY.sg_optimizer_slots(self._checked())
        state = OptimizerState([[bytearray(self._bytes_of(t)) for _ in range(slots)]
                                for t in range(len(self.tensors))], [0] * len(self.tensors))
        converted = _State(state)
        seconds = self.job.seconds(timeout)

        def read() -> None:
            snapshot = ctypes.c_void_p()
            check("sg_take_snapshot", self._checked(), seconds, snapshot)
            try:
                check("sg_read_snapshot", snapshot, converted.struct)
            finally:
                LIBRARY.sg_free_snapshot(snapshot)

        _waits.wait_for(read)
        return OptimizerState(state.slots, list(converted.updates))

    def _bytes_of(self, tensor: int) -> int:
        return _arrays.Array(0, self.dtypes[tensor], self.shapes[tensor], True, None).bytes

    def _fitting(self, tensor: int, values: Any, writable: bool) -> _arrays.Array:
        array = _arrays.array_of(values, writable)
        fits = array.shape == self.shapes[tensor] or (
            len(array.shape) <= 1 and array.bytes == self._bytes_of(tensor))
        if array.dtype != self.dtypes[tensor] or not fits:
            raise InvalidArgument(
                f"tensor {self.tensors[tensor]!r} of group {self.name!r} was registered as "
                f"{self.dtypes[tensor]}{list(self.shapes[tensor])}, but the array is "
                f"{array.dtype}{list(array.shape)}: pass an array of this dtype and shape, or a "
                "flat one")
        return array

    def _checked(self) -> ctypes.c_void_p:
        self.job.check_open()
        return self._handle


class _State:
    """An OptimizerState as the C library takes it."""

    def __init__(self, state: OptimizerState) -> None:
        count = len(state.slots)
        slots = len(state.slots[0]) if count > 0 else 0
        self._state = state
        self._views = [(ctypes.c_char * len(slot)).from_buffer(slot)
                       for tensor in state.slots for slot in tensor]
        self._values = (ctypes.c_void_p * (count * slots))(
            *[ctypes.addressof(view) for view in self._views])
        self.updates = (ctypes.c_uint64 * count)(*state.updates)
        self.struct = _library.OptimizerState(ctypes.sizeof(_library.OptimizerState), count, slots,
                                              self._values, self.updates)


def _converted(counted: _library.Contributors) -> Contributors:
    return Contributors(counted.least, counted.most, bool(counted.left_out))


def _tensors_of(arrays: Mapping[str, Any]) -> Any:
    """Returns sg_tensors, and what keeps their memory alive."""
    tensors = (_library.Tensor * len(arrays))()
    keep: List[Any] = [tensors]
    for tensor, (name, values) in zip(tensors, arrays.items()):
        try:
            array = _arrays.array_of(values, writable=True)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name!r}: {error}") from None
        shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
        tensor.name = name.encode()
        tensor.dtype = _arrays.DTYPES[array.dtype]
        tensor.axes = len(array.shape)
        tensor.shape = shape
        tensor.data = array.pointer
        keep += [array, shape]
    return tensors, keep
