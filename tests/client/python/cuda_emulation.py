"""An emulation of the calls to CUDA that syncgrads.torch makes. Work that is queued on a stream is
executed later, in an order of the test's choice that the events allow: gradients are NaN until the
work that computes them has been executed. Tensors are on the CPU; their dtypes say on which device
they pretend to be."""

import collections
import contextlib
import random
import threading
import types
import unittest.mock
import weakref

import torch

from syncgrads.torch import _cuda

DEVICES = {torch.float32: torch.device("cuda", 0), torch.float16: torch.device("cuda", 1)}
CPU = torch.device("cpu")


def device_of(tensor):
    return DEVICES.get(tensor.dtype, tensor.device)


class Mark:
    """A place in the queue of a stream, which work reaches."""

    def __init__(self, stream):
        self.stream = stream
        self.is_reached = False

    def reach(self):
        self.is_reached = True


class Emulation:
    """The streams of all devices. `order` is "early" (work is executed as soon as possible),
    "late" (when somebody must wait for it), or the seed of random orders."""

    def __init__(self, order):
        self._order = order
        self._random = random.Random(order)
        self._lock = threading.RLock()
        self._streams = []
        self._current = threading.local()
        self.futures = []  # the marks of completed futures
        self.pinned = {}
        self.programs = {device: self.Stream(device) for device in DEVICES.values()}

    @contextlib.contextmanager
    def installed(self):
        """Replaces the calls, by those of this object."""
        patches = [unittest.mock.patch.object(torch.cuda, name, getattr(self, name))
                   for name in ("Stream", "Event", "stream", "current_stream", "cudart")]
        patches += [unittest.mock.patch.object(_cuda, "copy", self.copy),
                    unittest.mock.patch.object(_cuda, "device_of", device_of),
                    unittest.mock.patch.object(_cuda, "name_of", str),
                    unittest.mock.patch.object(_cuda, "new_future", self.new_future)]
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield self

    def Stream(self, device):  # pylint: disable=invalid-name
        with self._lock:
            self._streams.append(Stream(self, device))
            return self._streams[-1]

    def Event(self, blocking):  # pylint: disable=invalid-name
        assert blocking
        return Event(self)

    def current_stream(self, device):
        return self._of_thread().get(device, self.programs[device])

    def set_stream(self, stream):
        self._of_thread()[stream.device] = stream

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_stream(stream.device)
        within, self._current.within = getattr(self._current, "within", None), stream
        self.set_stream(stream)
        yield
        self.set_stream(before)
        self._current.within = within

    def _of_thread(self):
        if not hasattr(self._current, "streams"):
            self._current.streams = {}
        return self._current.streams

    def copy(self, target, source):
        # A device's memory is used again when nothing refers to it.
        source_of = weakref.ref(source) if source.data_ptr() not in self.pinned else lambda: source

        def run():
            alive = source_of()
            target.copy_(torch.full_like(target, float("nan")) if alive is None else alive)

        self.queue(self._current.within, run)

    def new_future(self, device):
        emulation = self

        class Future(torch.futures.Future):
            def set_result(self, result):
                emulation.futures.append(emulation.mark(emulation.current_stream(device)))
                super().set_result(result)

        return Future()

    def cudart(self):
        def register(address, size, flags):
            assert flags == 1 and address not in self.pinned
            self.pinned[address] = size
            return 0

        return types.SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=self.pinned.pop)

    def mark(self, stream):
        mark = Mark(stream)
        self.queue(stream, mark.reach)
        return mark

    def queue(self, stream, run, after=None):
        """Queues work, which is not executed before the mark `after` is reached."""
        with self._lock:
            stream.work.append((run, after))
            self.advance()

    def advance(self):
        """Executes work of random streams; in the order "early" all that can be executed."""
        with self._lock:
            while self._order != "late":
                ready = [stream for stream in self._streams if stream.work and
                         (stream.work[0][1] is None or stream.work[0][1].is_reached)]
                if not ready or (self._order != "early" and self._random.random() < 0.5):
                    return
                self._random.choice(ready).work.popleft()[0]()

    def reach(self, mark):
        """Executes what must have been executed before a mark is reached, and nothing else."""
        with self._lock:
            while not mark.is_reached:
                run, after = mark.stream.work[0]
                if after is not None:
                    self.reach(after)
                mark.stream.work.popleft()
                run()

    def finish(self):
        """Executes all work."""
        for stream in self._streams:
            self.reach(self.mark(stream))


class Stream:

    def __init__(self, emulation, device):
        self._emulation = emulation
        self.device = device
        self.work = collections.deque()

    def wait_event(self, event):
        self.wait_mark(event.mark)

    def wait_stream(self, stream):
        self.wait_mark(self._emulation.mark(stream))

    def wait_mark(self, mark):
        if mark is not None:
            self._emulation.queue(self, lambda: None, mark)


class Event:

    def __init__(self, emulation):
        self._emulation = emulation
        self.mark = None

    def record(self, stream):
        self.mark = self._emulation.mark(stream)

    def query(self):
        self._emulation.advance()
        return self.mark is None or self.mark.is_reached

    def synchronize(self):
        if self.mark is not None:
            assert self.mark.stream not in self._emulation.programs.values(), \
                "the host waits for a stream of the program"
            self._emulation.reach(self.mark)
