"""The backend "syncgrads" of torch.distributed: collectives through the servers."""

from __future__ import annotations

import datetime
import inspect
import itertools
import queue
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist

from syncgrads import Job
from syncgrads.errors import DeadlineExceeded, InvalidArgument, Unimplemented
from syncgrads.job import Pending
from syncgrads.torch import _job

_REDUCTIONS = {"SUM": "sum", "AVG": "average", "MIN": "min", "MAX": "max", "PRODUCT": "product"}
# What torch.distributed calls, and this backend has not.
_MISSING = ("allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce_coalesced",
            "alltoall", "alltoall_base", "gather", "monitored_barrier", "recv", "recv_anysource",
            "reduce_scatter", "reduce_scatter_tensor_coalesced", "scatter", "send",
            "_reduce_scatter_base")


class _Work(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """An operation in progress."""

    def __init__(self, name: str, pending: Pending, finish: Callable[[], Sequence[torch.Tensor]],
                 timeout: Optional[float]) -> None:
        super().__init__()
        self.name = name
        self._pending: Optional[Pending] = pending
        self._finish: Optional[Callable[[], Sequence[torch.Tensor]]] = finish
        self._timeout = timeout
        self._done = threading.Event()
        self._error: Optional[BaseException] = None
        self._value: List[torch.Tensor] = []
        self._future: Any = torch.futures.Future()

    def run(self) -> None:
        """Waits for the result, on the group's thread."""
        try:
            assert self._pending is not None and self._finish is not None
            self._pending.wait(self._timeout)
            with torch.no_grad():
                self._value = list(self._finish())
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
        self._pending = self._finish = None  # and what they keep

    def complete(self) -> None:
        """Lets those continue that wait for the result."""
        self._done.set()
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._value)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Waits until the result is there. The deadline is that of the group, unless `timeout` is
        more than 0. After DeadlineExceeded, the wait can be repeated."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise DeadlineExceeded(f"{self.name!r} has no result after {seconds} s; it continues")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def get_future(self) -> Any:
        return self._future


class _ProcessGroup(dist.ProcessGroup):
    """All members of a job. Groups have numbers, from 0, that are parts of the names of their
    operations."""

    def __init__(self, job: Job, rank: int, size: int, number: int,
                 timeout: Optional[float]) -> None:
        super().__init__(rank, size)
        self._timeout = timeout  # of each operation, in seconds; None: the job's
        self._job = job
        self._prefix = f"torch{number or ''}"
        self._rank = rank
        self._size = size
        # Every operation is here until it is complete, because PyTorch keeps only the part of it
        # that is not Python.
        self._works: Dict[int, _Work] = {}
        # The last operation of each name, also when it is complete: functions of PyTorch that are
        # not Python may still wait for it.
        self._by_name: Dict[str, _Work] = {}
        self._queue: "queue.SimpleQueue[Optional[_Work]]" = queue.SimpleQueue()
        # The thread does not keep this object, and with it the job.
        threading.Thread(target=_complete, args=(self._queue, self._works), name="syncgrads group",
                         daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def _start(self, name: str, carried: Optional[torch.Tensor], start: Callable[[str], Pending],
               finish: Callable[[], Sequence[torch.Tensor]]) -> _Work:
        if carried is not None and carried.numel() == 0:
            start = self._job.start_barrier
        before = self._by_name.get(name)
        if before is not None:
            before._done.wait()  # operations of one name follow each other
        pending = start(f"{self._prefix}/{name}")
        pending.is_named_by_default = carried is not None
        work = _Work(name, pending, finish, self._timeout)
        self._by_name[name] = self._works[id(work)] = work
        self._queue.put(work)
        return work

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        return "syncgrads"

    def name(self) -> str:
        return "syncgrads"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        tensor = _only(tensors, "all_reduce")
        reduction = _reduction(opts, tensor)
        carried = _job.carrier(tensor)
        return self._start(
            f"all_reduce/{reduction}/{_described(carried)}", carried,
            lambda name: self._job.start_all_reduce(carried, reduction, name=name),
            lambda: [_job.put_back(tensor, carried)])

    def reduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        tensor = _only(tensors, "reduce")
        reduction, root = _reduction(opts, tensor), opts.rootRank
        carried = _job.carrier(tensor)
        return self._start(
            f"reduce/{reduction}/{root}/{_described(carried)}", carried,
            lambda name: self._job.start_reduce(carried, reduction, root, name=name),
            lambda: [_job.put_back(tensor, carried) if self._rank == root else tensor])

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        tensor = _only(tensors, "broadcast")
        root = opts.rootRank
        if _is_packed(tensor):
            packed = _packed(tensor)
            return self._start(f"broadcast/{root}/{_described(packed)}", packed,
                               lambda name: self._job.start_broadcast(packed, root, name=name),
                               lambda: [tensor.copy_(_unpacked(packed, tensor, root))])
        carried = _job.carrier(tensor)
        return self._start(f"broadcast/{root}/{_described(carried)}", carried,
                           lambda name: self._job.start_broadcast(carried, root, name=name),
                           lambda: [_job.put_back(tensor, carried)])

    def allgather(self, outputs: List[List[torch.Tensor]], tensors: List[torch.Tensor],
                  opts: Any = None) -> _Work:  # pylint: disable=unused-argument
        tensor, out = _only(tensors, "all_gather"), outputs[0]
        return self._gather(tensor, lambda gathered: [
            one.copy_(part.reshape(one.shape)) for one, part in zip(out, gathered)])

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor,
                        opts: Any = None) -> _Work:  # pylint: disable=unused-argument
        return self._gather(tensor, lambda gathered: [output.copy_(gathered.reshape(output.shape))])

    def _gather(self, tensor: torch.Tensor,
                finish: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> _Work:
        is_packed = _is_packed(tensor)
        carried = _packed(tensor) if is_packed else _job.carrier(tensor)
        gathered = torch.empty((self._size, carried.numel()), dtype=carried.dtype)

        def unpack() -> torch.Tensor:
            return torch.stack([_unpacked(one, tensor, rank) for rank, one in enumerate(gathered)])

        return self._start(f"all_gather/{_described(carried)}", carried,
                           lambda name: self._job.start_all_gather(carried, gathered, name=name),
                           lambda: finish(unpack() if is_packed else gathered))

    def barrier(self, opts: Any = None) -> _Work:  # pylint: disable=unused-argument
        return self._start("barrier", None, self._job.start_barrier, list)


def _complete(started: "queue.SimpleQueue[Optional[_Work]]", works: Dict[int, _Work]) -> None:
    """Completes the operations of a group in their order, until the group is freed."""
    while True:
        work = started.get()
        if work is None:
            return
        work.run()
        # Before anybody continues, who may look for operations that are not complete.
        del works[id(work)]
        work.complete()
        del work


def _refuse(operation: str) -> Callable[..., Any]:
    def refused(_: Any, *_arguments: Any, **_named: Any) -> Any:
        raise Unimplemented(f"the backend \"syncgrads\" has no {operation}; it has all_reduce, "
                            "reduce, broadcast, all_gather and barrier")
    return refused


for _operation in _MISSING:
    setattr(_ProcessGroup, _operation, _refuse(_operation))


class _SomeMembers(dist.ProcessGroup):
    """Some members of a job."""

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        return "syncgrads"


def _refuse_group(*_arguments: Any, **_named: Any) -> Any:
    raise Unimplemented("the backend \"syncgrads\" has groups of all members only: for some of "
                        "them, join another job, or use another backend")


for _operation in (*_MISSING, "allreduce", "reduce", "broadcast", "allgather", "_allgather_base",
                   "barrier"):
    setattr(_SomeMembers, _operation, _refuse_group)


def _only(tensors: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise Unimplemented(f"{operation} of {len(tensors)} tensors at once")
    return tensors[0].detach()


def _reduction(opts: Any, tensor: torch.Tensor) -> str:
    name = str(getattr(opts.reduceOp, "op", opts.reduceOp)).rsplit(".", maxsplit=1)[-1]
    if name not in _REDUCTIONS:
        raise Unimplemented(f"the backend \"syncgrads\" has no reduction {name}; it has "
                            f"{', '.join(_REDUCTIONS)}")
    if tensor.is_complex() and name not in ("SUM", "AVG"):
        raise Unimplemented(f"the backend \"syncgrads\" has no reduction {name} of complex numbers")
    return _REDUCTIONS[name]


# Tensors of dtypes that the servers have not, and of few elements, are packed: their bytes follow a
# number that describes them, and are filled up to a power of two. Each name is a group of the job,
# which has at most max_groups, and objects of many sizes must not use them up.
_PACKED_BYTES = 1 << 12
_CODES = {dtype: code for code, dtype in enumerate((
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool))}


def _is_packed(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and tensor.dtype in _CODES and (
        tensor.dtype not in _job.SUPPORTED or
        tensor.numel() * tensor.element_size() <= _PACKED_BYTES)


def _head(tensor: torch.Tensor) -> int:
    return tensor.numel() << 8 | _CODES[tensor.dtype]


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of int64 with the bytes of a tensor."""
    values = tensor.detach().cpu().contiguous().flatten()
    size = values.numel() * values.element_size()
    packed = torch.zeros(1 + (1 << max(-(-size // 8) - 1, 0).bit_length()), dtype=torch.int64)
    packed[0] = _head(tensor)
    packed[1:].view(torch.uint8)[:size] = values.view(torch.uint8)
    return packed


def _unpacked(packed: torch.Tensor, like: torch.Tensor, rank: int) -> torch.Tensor:
    """The tensor that rank `rank` has packed, which has the dtype and size of `like`.

    Raises InvalidArgument if it has others."""
    head = int(packed[0])
    if head != _head(like):
        names = {code: dtype for dtype, code in _CODES.items()}
        raise InvalidArgument(
            f"this worker has {like.numel()} elements of {like.dtype}, but rank {rank} has "
            f"{head >> 8} of {names.get(head & 255, 'another dtype')}: pass tensors of one dtype "
            "and size on all")
    size = like.numel() * like.element_size()
    return packed[1:].view(torch.uint8)[:size].view(like.dtype).reshape(like.shape)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).rsplit('.', maxsplit=1)[-1]}[{tensor.numel()}]"


_numbers: "weakref.WeakKeyDictionary[Job, Iterator[int]]" = weakref.WeakKeyDictionary()


def _make(_store: Any, rank: int, size: int, timeout: datetime.timedelta) -> dist.ProcessGroup:
    """The group of init_process_group("syncgrads"): all members of the job of syncgrads.torch.init,
    which it calls if nobody has. Its timeout is the job's, unless the caller has given one. A group
    of some members is made, because new_group waits for all of them, and has no operations."""
    given = timeout.total_seconds() if timeout != dist.constants.default_pg_timeout else None
    if not _job.has_default():
        options: Dict[str, Any] = {} if given is None else {"timeout": given}
        _job.init(rank=rank, world_size=size, **options)
    job = _job.job_or_default(None)
    if dist.is_initialized() and size != job.world_size:
        return _SomeMembers(rank, size)
    if (job.rank, job.world_size) != (rank, size):
        raise InvalidArgument(
            f"the process group has rank {rank} of {size}, but the job has rank {job.rank} of "
            f"{job.world_size}: the backend \"syncgrads\" has groups of all members only")
    number = next(_numbers.setdefault(job, itertools.count()))
    return _ProcessGroup(job, rank, size, number, given)


def register_backend() -> None:
    """Lets torch.distributed know the backend "syncgrads"."""
    if hasattr(dist.Backend, "SYNCGRADS"):
        return
    register = dist.Backend.register_backend
    has_devices = "devices" in inspect.signature(register).parameters  # PyTorch 2.0
    register("syncgrads", _make, **({"devices": ["cpu"]} if has_devices else {}))
