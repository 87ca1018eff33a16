"""One worker's membership in a job, and its collectives."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from syncgrads import _arrays, _library, _text, _waits
from syncgrads._library import LIBRARY, check
from syncgrads.errors import DeadlineExceeded, Error, FailedPrecondition, InvalidArgument
from syncgrads.group import Group, _tensors_of

if TYPE_CHECKING:
    import numpy

REDUCTIONS = {"average": 1, "sum": 2, "min": 3, "max": 4, "product": 5}
_ALL_REDUCE, _REDUCE, _BROADCAST, _ALL_GATHER, _BARRIER = 1, 2, 3, 4, 5

# How long an operation may take, in seconds, unless a call says otherwise.
DEFAULT_TIMEOUT = 300.0

# An array, of which only dtype and shape matter; or dtype and shape.
TensorSpec = Union[Any, Tuple[Any, Sequence[int]]]


class Placement:
    """What a launcher has set in the environment: torchrun, mpirun, Slurm, Kubernetes. A number
    that is not known is None."""

    def __init__(self) -> None:
        found = _library.Placement(size=ctypes.sizeof(_library.Placement))
        check("sg_find_placement", found)
        self.rank = _known(found.rank)
        self.world_size = _known(found.world_size)
        self.local_rank = _known(found.local_rank)
        self.launcher = found.launcher.decode()


def _known(number: int) -> Optional[int]:
    return None if number < 0 else number


def _security_of_environment() -> Dict[str, Any]:
    """The options token and tls that the environment sets."""
    options: Dict[str, Any] = {}
    if os.environ.get("SYNCGRADS_TOKEN"):
        options["token"] = os.environ["SYNCGRADS_TOKEN"]
    elif os.environ.get("SYNCGRADS_TOKEN_FILE"):
        with open(os.environ["SYNCGRADS_TOKEN_FILE"], encoding="utf-8") as file:
            options["token"] = file.readline().rstrip()
    tls = {name: os.environ.get(f"SYNCGRADS_TLS_{name.upper()}") or None
           for name in ("ca", "certificate", "key", "server_name")}
    if any(tls.values()):
        options["tls"] = tls
    return options


def _finite(number: Any) -> Optional[float]:
    return None if number is None or not math.isfinite(number) else float(number)


def init(server: Optional[str] = None, job: Optional[str] = None, *, rank: Optional[int] = None,
         world_size: Optional[int] = None, timeout: float = DEFAULT_TIMEOUT,
         **options: Any) -> "Job":
    """Joins a job, and returns when it has all its members.

    `server` is the address of server 0, by default that in SYNCGRADS_SERVER. `job` is the job's
    name, by default that in SYNCGRADS_JOB, or else "default". If neither `rank` nor `world_size` is
    given, both are taken from the launcher (torchrun, mpirun, Slurm, Kubernetes). `options` are the
    other fields of ClientOptions in proto/client.proto: token, name, max_workers, min_workers,
    step_timeout_s, server_timeout_s, connections_per_server, shared_memory, and so on. `timeout` is
    also the default timeout of the job's other calls, in seconds.

    What `options` do not have is taken from the environment: `token` from SYNCGRADS_TOKEN, or from
    the first line of the file SYNCGRADS_TOKEN_FILE; `tls`, a mapping with the paths ca, certificate
    and key and the name server_name, from SYNCGRADS_TLS_CA, SYNCGRADS_TLS_CERTIFICATE,
    SYNCGRADS_TLS_KEY and SYNCGRADS_TLS_SERVER_NAME."""
    server = server or os.environ.get("SYNCGRADS_SERVER")
    if not server:
        raise InvalidArgument("the server's address is missing: pass server=\"HOST:PORT\", or set "
                              "SYNCGRADS_SERVER")
    if rank is None and world_size is None:
        placement = Placement()
        rank, world_size = placement.rank, placement.world_size
    made = Job({"coordinator": server, "job": job or os.environ.get("SYNCGRADS_JOB") or "default",
                "rank": rank, "world_size": world_size, **_security_of_environment(), **options},
               timeout)
    try:
        made.join(timeout)
    except BaseException:
        made.close()
        raise
    return made


class Job:
    """One worker's membership in a job: syncgrads.init makes it.

    Thread-safe. As a context manager, it leaves the job at the end; after an exception it closes
    without leaving, and the others go on without this worker."""

    def __init__(self, options: Mapping[str, Any], timeout: float = DEFAULT_TIMEOUT) -> None:
        handle = ctypes.c_void_p()
        check("sg_open", _text.to_text(options).encode(), handle)
        self._handle: Optional[ctypes.c_void_p] = handle
        self._timeout = timeout
        self._is_elastic = bool(options.get("max_workers"))
        # Arrays of operations that nobody has waited for: the library may still use them.
        self._abandoned: List[Any] = []
        # Groups, calls in progress and allocated memory refer to this object or to the handle, so
        # that nothing uses the client when it is freed. At the exit of the process it is only
        # abandoned.
        self._free = weakref.finalize(handle, _close, handle.value or 0, self._abandoned)
        self._free.atexit = False
        self._closed = self._has_left = False
        self._step = 0  # the last one of the optimizers of syncgrads.torch
        self._figures: Dict[str, Any] = {"step": 0}  # those of the last report
        self._figures_lock = threading.Lock()
        # Methods that are called before this worker leaves: results that were used in place change
        # afterwards.
        self._before_end: List["weakref.WeakMethod[Callable[[], None]]"] = []
        self._groups: Dict[str, Group] = {}
        self._groups_lock = threading.Lock()
        # Collectives in progress whose blocking call has ended, by their key.
        self._unfinished: Dict[tuple, Pending] = {}
        _open_jobs.add(self)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None and not self._closed:
                self.leave()
        finally:
            self.close()

    def join(self, timeout: Optional[float] = None) -> None:
        """Joins the job. Called by syncgrads.init."""
        seconds = self.seconds(timeout)
        _waits.wait_for(lambda: check("sg_join", self._checked(), seconds))

    def leave(self, timeout: Optional[float] = None) -> None:
        """Leaves the job. The servers no longer wait for this worker."""
        seconds = self.seconds(timeout)
        self._call_before_end()
        _waits.wait_for(lambda: check("sg_leave", self._checked(), seconds))
        self._has_left = True

    def close(self) -> None:
        """Aborts everything in progress. Unless this worker has left, the others wait for it
        until its lease has ended. Memory of allocate_gradients stays valid."""
        if not self._closed:
            self._call_before_end()
            self._closed = True
            LIBRARY.sg_abandon(self._handle)

    def _call_before_end(self) -> None:
        for reference in self._before_end:
            method = reference()
            if method is not None:
                method()

    @property
    def rank(self) -> int:
        """This worker's rank in the newest epoch."""
        return self._member().rank

    @property
    def is_elastic(self) -> bool:
        """True if workers may leave and join while the job runs (max_workers)."""
        return self._is_elastic

    @property
    def world_size(self) -> int:
        """The number of members in the newest epoch."""
        return self._member().world_size

    @property
    def name(self) -> str:
        """This worker's name in the job."""
        return self._member().name.decode("utf-8", "replace")

    @property
    def is_newcomer(self) -> bool:
        """True if this worker joined an elastic job that was running."""
        return bool(self._member().newcomer)

    @property
    def status(self) -> Optional[Error]:
        """None while this worker is a member; else why the membership is over."""
        if self._has_left:
            return FailedPrecondition("this worker has left the job: call syncgrads.init again")
        try:
            check("sg_status", self._checked())
        except Error as error:
            return error
        return None

    def notices(self) -> List[str]:
        """Takes the lines that the library has noted since the last call: about the transport of
        payloads, autotune, and codecs that were replaced."""
        lines = []
        buffer = ctypes.create_string_buffer(_library.MESSAGE_SIZE)
        while LIBRARY.sg_take_notice(self._checked(), buffer, len(buffer)) == 0:
            lines.append(buffer.value.decode("utf-8", "replace"))
        return lines

    def take_checkpoint_request(self) -> bool:
        """True if a checkpoint has been requested since the last call."""
        return bool(LIBRARY.sg_take_checkpoint_request(self._checked()))

    def report_checkpoint(self, step: int, path: str) -> None:
        """Reports the checkpoint that this worker has written after `step`."""
        check("sg_report_checkpoint", self._checked(), step, 0, path.encode())

    def report_failed_checkpoint(self, step: int, why: str) -> None:
        """Reports why there is no checkpoint after `step`."""
        check("sg_report_checkpoint", self._checked(), step, 2, why.encode())

    def report(self, step: Optional[int] = None, loss: Any = None, *, learning_rate: Any = None,
               device: Optional[str] = None, seconds: Optional[Mapping[str, float]] = None,
               validation: Optional[Mapping[str, Any]] = None) -> None:
        """Reports what this worker has to show after `step`, for the servers' page and psctl. Does
        not wait, and is cheap enough for every step: the newest report is sent once a second. What
        a report leaves out is that of the last one. The optimizers of syncgrads.torch report
        everything but `loss` and `validation`.

        `loss` is that of the last batch. `seconds` is how long the worker was in each phase since it
        began: "read", "compute", "push", "wait" and "apply". `validation` has the scores of an
        evaluation after this step, such as {"loss": 0.2, "accuracy": 0.97}. A loss, a learning rate
        and a score that are not finite are left out."""
        given = {"step": step, "loss": loss, "learning_rate": learning_rate, "device": device,
                 "times": seconds, "validation": validation}
        self._report({key: value for key, value in given.items() if value is not None})

    def _report(self, given: Mapping[str, Any]) -> None:
        """As report. A figure that is None is none from now on."""
        with self._figures_lock:
            figures = {**self._figures, **given}
            figures["step"] = given.get("step") or self._step or self._figures["step"]
            for number in ("loss", "learning_rate"):
                figures[number] = _finite(figures.get(number))
            if given.get("times") is not None:
                figures["times"] = {f"{phase}_us": round(time * 1e6)
                                    for phase, time in given["times"].items()}
            if given.get("validation") is not None:
                figures["validation"] = {"step": figures["step"], "scores": [
                    {"name": name, "value": float(value)}
                    for name, value in given["validation"].items() if math.isfinite(value)]}
            check("sg_report_figures", self._checked(), _text.to_text(figures).encode())
            self._figures = figures

    def set_learning_rate_factor(self, factor: float, timeout: Optional[float] = None) -> None:
        """Sets the factor by which the learning rates of the job are multiplied, as psctl set
        learning-rate-factor does: those of optimizers on the servers, and those of groups with
        members_scale_rate. Returns when every server uses it: steps to which no worker has
        contributed by then have this factor. One worker calls it, for all."""
        seconds = self.seconds(timeout)
        _waits.wait_for(
            lambda: check("sg_set_learning_rate_factor", self._checked(), factor, seconds))

    def register(self, name: str, tensors: Mapping[str, TensorSpec], *,
                 reduction: Optional[str] = None, optimizer: Optional[Mapping[str, Any]] = None,
                 compression: Optional[Mapping[str, Any]] = None, timeout: Optional[float] = None,
                 **fields: Any) -> Group:
        """Registers a group: all members register the same tensors in the same order.

        The rule is `reduction` ("average" by default, "sum", "min", "max", "product"), or
        `optimizer`, which the servers apply: {"adam": {"learning_rate": 0.001}}. `compression` is
        that of every tensor: {"push": {"codec": "INT8"}}. `fields` are the other fields of
        GroupSpec in proto/types.proto: policy={"quorum": {"least": 3, "grace_ms": 50}},
        chunk_bytes, one_epoch, non_finite="SKIP", clip_norm, members_scale_rate."""
        if reduction is not None and optimizer is not None:
            raise InvalidArgument(f"group {name!r} has both a reduction and an optimizer")
        described = [_described(tensor, spec) for tensor, spec in tensors.items()]
        rule: Mapping[str, Any] = {"optimizer": optimizer} if optimizer is not None else {
            "reduction": reduction or "average"}
        text = _text.to_text({
            "name": name, "rule": rule, "tensors": described, **fields,
            "compression": None if compression is None else [compression] * len(described)})
        handle = ctypes.c_void_p()
        seconds = self.seconds(timeout)
        _waits.wait_for(
            lambda: check("sg_register", self._checked(), text.encode(), seconds, handle))
        with self._groups_lock:
            if name not in self._groups:
                self._groups[name] = Group(self, handle, name,
                                           [tuple(one["shape"]) for one in described],
                                           [one["dtype"].lower() for one in described],
                                           [one["name"] for one in described],
                                           "quorum" in (fields.get("policy") or {}))
            return self._groups[name]

    def allocate_bytes(self, size: int) -> Any:
        """Allocates `size` bytes that servers on this host read in place, as an object with the
        buffer protocol. The memory is filled with zeros, and freed when nothing refers to it and to
        the job."""
        pointer = ctypes.c_void_p()
        check("sg_allocate_gradients", self._checked(), max(size, 1), pointer)
        memory = (ctypes.c_char * size).from_address(pointer.value or 0)
        memory._job = self  # type: ignore[attr-defined]  # keeps the memory
        return memory

    def allocate_gradients(self, shape: Union[int, Sequence[int]],
                           dtype: Any = "f32") -> "numpy.ndarray":
        """Allocates a numpy array in memory that servers on this host read in place: pushing from
        it copies nothing."""
        import numpy  # pylint: disable=import-outside-toplevel

        axes = (shape,) if isinstance(shape, int) else tuple(shape)
        name = _arrays.dtype_of(dtype)
        if name == "bf16":
            raise InvalidArgument("numpy has no bf16: use allocate_bytes")
        array = _arrays.Array(0, name, axes, True, None)
        memory = self.allocate_bytes(array.bytes)
        return numpy.frombuffer(memory, dtype=f"{name[0]}{_arrays.SIZES[name]}").reshape(axes)

    # --- Collectives. All members call them with the same name, dtype and number of elements. By
    # --- default the name consists of dtype and size. The arrays must not be changed meanwhile.
    # --- After DeadlineExceeded or KeyboardInterrupt an operation continues, and the same call with
    # --- the same arrays waits for it again.

    def all_reduce(self, values: Any, reduction: str = "sum", *, out: Any = None,
                   name: Optional[str] = None, timeout: Optional[float] = None) -> Any:
        """Reduces the values of all members, in rank order. Writes the result to `out`; to `values`
        if it is None. Returns the array with the result."""
        self._finish(self.start_all_reduce(values, reduction, out=out, name=name), timeout)
        return values if out is None else out

    def start_all_reduce(self, values: Any, reduction: str = "sum", *, out: Any = None,
                         name: Optional[str] = None) -> "Pending":
        """Starts an all-reduce, and returns what waits for it."""
        source = _arrays.array_of(values, writable=out is None)
        target = source if out is None else _arrays.array_of(out, writable=True)
        return self._start(_ALL_REDUCE, name, source, target, reduction)

    def all_reduce_skip(self, out: Any, reduction: str = "sum", *, name: Optional[str] = None,
                        timeout: Optional[float] = None) -> int:
        """Takes part in an all-reduce without a contribution. Returns how many members
        contributed; if that is 0, `out` is not written."""
        target = _arrays.array_of(out, writable=True)
        return self._finish(self._start(_ALL_REDUCE, name, None, target, reduction), timeout)

    def reduce(self, values: Any, reduction: str = "sum", root: int = 0, *, out: Any = None,
               name: Optional[str] = None, timeout: Optional[float] = None) -> Any:
        """Reduces to the root, where the result is written to `out`; to `values` if it is None.
        Returns the array with the result, at other members None."""
        self._finish(self.start_reduce(values, reduction, root, out=out, name=name), timeout)
        if self.rank != root:
            return None
        return values if out is None else out

    def start_reduce(self, values: Any, reduction: str = "sum", root: int = 0, *, out: Any = None,
                     name: Optional[str] = None) -> "Pending":
        """Starts a reduce, and returns what waits for it."""
        is_root = self.rank == root
        source = _arrays.array_of(values, writable=is_root and out is None)
        target = source
        if is_root and out is not None:
            target = _arrays.array_of(out, writable=True)
        if not is_root:
            target = target._replace(pointer=0)
        return self._start(_REDUCE, name, source, target, reduction, root)

    def broadcast(self, values: Any, root: int = 0, *, name: Optional[str] = None,
                  timeout: Optional[float] = None) -> Any:
        """Copies the root's values to every member's. Returns `values`."""
        self._finish(self.start_broadcast(values, root, name=name), timeout)
        return values

    def start_broadcast(self, values: Any, root: int = 0, *,
                        name: Optional[str] = None) -> "Pending":
        """Starts a broadcast, and returns what waits for it."""
        target = _arrays.array_of(values, writable=True)
        return self._start(_BROADCAST, name, None, target, None, root)

    def broadcast_all(self, arrays: Mapping[str, Any], root: int = 0, *,
                      name: str = "broadcast_all", timeout: Optional[float] = None) -> None:
        """Broadcasts several arrays in one operation, such as the parameters of a model."""
        self._finish(self.start_broadcast_all(arrays, root, name=name), timeout)

    def start_broadcast_all(self, arrays: Mapping[str, Any], root: int = 0, *,
                            name: str = "broadcast_all") -> "Pending":
        """Starts a broadcast of several arrays, and returns what waits for it."""
        tensors, keep = _tensors_of(arrays)
        return self._begin(
            ("broadcast_all", name), (root, *[tensor.data for tensor in tensors]), keep,
            "sg_start_broadcast_all", name.encode(), tensors, len(tensors), root)

    def all_gather(self, values: Any, out: Any, *, name: Optional[str] = None,
                   timeout: Optional[float] = None) -> int:
        """Writes the values of all members to `out`, in rank order. `out` has room for the values
        of world_size members. Returns the number of contributions."""
        return self._finish(self.start_all_gather(values, out, name=name), timeout)

    def start_all_gather(self, values: Any, out: Any, *, name: Optional[str] = None) -> "Pending":
        """Starts an all-gather, and returns what waits for it."""
        source = _arrays.array_of(values)
        target = _arrays.array_of(out, writable=True)
        world_size = self.world_size
        if target.dtype != source.dtype or target.elements != source.elements * world_size:
            raise InvalidArgument(
                f"all_gather of {source.elements} {source.dtype} from {world_size} members needs "
                f"{source.elements * world_size} {source.dtype}, but `out` has {target.elements} "
                f"{target.dtype}")
        return self._start(_ALL_GATHER, name, source, target)

    def barrier(self, name: str = "barrier", *, timeout: Optional[float] = None) -> None:
        """Returns when every member has called it."""
        self._finish(self.start_barrier(name), timeout)

    def start_barrier(self, name: str = "barrier") -> "Pending":
        """Starts a barrier, and returns what waits for it."""
        return self._start(_BARRIER, name, None, None)

    def _start(self, operation: int, name: Optional[str], source: Optional[_arrays.Array],
               target: Optional[_arrays.Array], reduction: Optional[str] = None,
               root: int = 0) -> "Pending":
        described, given = source or target, name
        call = _library.Collective(size=ctypes.sizeof(_library.Collective), operation=operation,
                                   root=root)
        if described is not None:
            call.dtype = _arrays.DTYPES[described.dtype]
            call.elements = described.elements
            name = name or f"{described.dtype}[{described.elements}]"
        if source is not None:
            call.input = source.pointer
        if target is not None:
            call.output = target.pointer
            call.output_elements = target.elements
        if (operation in (_ALL_REDUCE, _REDUCE) and source is not None and target is not None and
                (source.dtype, source.elements) != (target.dtype, target.elements)):
            raise InvalidArgument(f"{name!r}: the values are {source.elements} {source.dtype}, but "
                                  f"`out` is {target.elements} {target.dtype}")
        if reduction is not None:
            if reduction not in REDUCTIONS:
                raise InvalidArgument(f"unknown reduction {reduction!r}; known are "
                                      f"{', '.join(REDUCTIONS)}")
            call.reduction = REDUCTIONS[reduction]
        call.name = (name or "").encode()
        # A repeated call has the same array for the result, but a scalar has another address.
        arguments = (root, call.dtype, call.elements, source is None, call.output or call.input)
        pending = self._begin((operation, reduction, call.name), arguments, (source, target),
                              "sg_start", call)
        pending.is_named_by_default = described is not None and not given
        return pending

    def _begin(self, key: tuple, arguments: tuple, keep: Any, function: str,
               *parameters: Any) -> "Pending":
        """Starts an operation. If a blocking call with the same key and arguments has ended before
        its operation, continues with that. There is one operation of a key at a time."""
        pending = self._unfinished.get(key)
        if pending is None or pending._arguments != arguments:
            handle = ctypes.c_void_p()
            check(function, self._checked(), *parameters, handle)
            pending = Pending(self, handle, keep, key, arguments)
        self._unfinished.pop(key, None)
        return pending

    def _finish(self, pending: "Pending", timeout: Optional[float]) -> int:
        """Waits for the operation of a blocking call."""
        try:
            return pending.wait(timeout)
        except BaseException as error:
            # After other errors of the library, the operation has ended.
            if isinstance(error, DeadlineExceeded) or not isinstance(error, Error):
                self._unfinished[pending._key] = pending
            raise

    def seconds(self, timeout: Optional[float]) -> float:
        """The timeout of a call: the job's if it is None."""
        return self._timeout if timeout is None else timeout

    def check_open(self) -> None:
        """Raises FailedPrecondition if the job is closed."""
        if self._closed:
            raise FailedPrecondition("the job is closed: call syncgrads.init again")

    def _checked(self) -> Any:
        self.check_open()
        return self._handle

    def _member(self) -> _library.Member:
        member = _library.Member(size=ctypes.sizeof(_library.Member))
        check("sg_get_member", self._checked(), member)
        return member


class Pending:
    """A collective in progress. Its arrays must not be changed before `wait` has returned."""

    def __init__(self, job: Job, handle: ctypes.c_void_p, keep: Any, key: tuple,
                 arguments: tuple) -> None:
        self._job = job
        self._handle = handle
        self._keep = keep
        self._key = key
        self._arguments = arguments
        # True if the name has the dtype and the number of elements.
        self.is_named_by_default = False
        self._waiting = _waits.RepeatableWait()
        self._free_at_end(keep)

    @property
    def is_ready(self) -> bool:
        """True if `wait` would return at once."""
        self._job.check_open()
        return bool(LIBRARY.sg_is_ready(self._handle))

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the operation. Returns the number of members that contributed."""
        seconds = self._job.seconds(timeout)
        try:
            return self._waiting.run(lambda: self._finish(seconds), lambda: self.is_ready)
        except DeadlineExceeded as error:
            if not self.is_named_by_default:
                raise
            raise DeadlineExceeded(
                f"{error}; a member whose array has another dtype or size waits for an operation "
                "of another name: pass arrays of one dtype and size on all, or the same name=, "
                "with which the difference is an error") from None

    def _finish(self, seconds: float) -> int:
        count = ctypes.c_uint32()
        check("sg_finish", self._handle, seconds, count)
        self._keep = None
        self._free.detach()
        self._free_at_end(None)
        return count.value

    def _free_at_end(self, keep: Any) -> None:
        # Keeps the client, but not the job, which may refer to this object.
        job = self._job
        self._free = weakref.finalize(self, _free_pending, job._handle, job._abandoned,
                                      self._handle, keep)
        self._free.atexit = False


_open_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()


def _close(client: int, abandoned: List[Any]) -> None:
    LIBRARY.sg_close(client)
    abandoned.clear()


def _free_pending(_: ctypes.c_void_p, abandoned: List[Any], handle: ctypes.c_void_p,
                  keep: Any) -> None:
    LIBRARY.sg_free_pending(handle)
    if keep is not None:
        abandoned.append(keep)


@atexit.register
def _close_jobs() -> None:
    """Ends the waits of other threads before the interpreter ends."""
    for job in list(_open_jobs):
        job.close()


def _described(name: str, spec: TensorSpec) -> Dict[str, Any]:
    """A TensorSpec of proto/types.proto."""
    if isinstance(spec, tuple) and len(spec) == 2 and not hasattr(spec, "dtype"):
        dtype, shape = _arrays.dtype_of(spec[0]), spec[1]
    elif hasattr(spec, "dtype") and hasattr(spec, "shape"):
        dtype, shape = _arrays.dtype_of(spec.dtype), spec.shape
    else:
        array = _arrays.array_of(spec)
        dtype, shape = array.dtype, array.shape
    return {"name": name, "dtype": dtype.upper(), "shape": [int(axis) for axis in shape]}
