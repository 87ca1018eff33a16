"""Gradients on CUDA devices: copied to host memory for a push, and back, on a stream of their own.

No stream of the program waits for a copy to host memory, and the host waits for no stream of the
program. Whoever uses a copy is ordered after it: the host waits for the event of the copy, a stream
by Stream.wait_event. The tests replace the calls to torch.cuda, and the functions of this module
that say so, by an emulation (tests/client/python/cuda_test.py).
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, Tuple

import torch

from syncgrads.errors import InvalidArgument, ResourceExhausted

# A target, and the tensor that is copied to it.
Pair = Tuple[torch.Tensor, torch.Tensor]

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor. Emulated in tests."""
    return tensor.device


def name_of(device: torch.device) -> str:
    """What people call a device: "cpu", or the name of a GPU. Emulated in tests."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def new_future(device: torch.device) -> Any:
    """A future of a tensor on a device: a stream that waits for it also waits for the work that was
    queued on the current stream when its value was set. Emulated in tests."""
    return torch.futures.Future(devices=[device])


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Queues a copy on the current stream. One of the tensors is in host memory. Emulated in
    tests."""
    target.copy_(source, non_blocking=True)


def pin(owner: Any, memory: Any, address: int, size: int) -> None:
    """Page-locks `size` bytes of host memory until `owner` is freed, so that copies run while the
    host does something else. Keeps `memory`, to which they belong, until then.

    Raises ResourceExhausted if CUDA refuses."""
    runtime = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(address, size, _PORTABLE))
    if code != 0:
        raise ResourceExhausted(f"cudaHostRegister: CUDA's error {code} for {size} bytes of host "
                                "memory")
    # At the exit of the process, CUDA may have ended before.
    weakref.finalize(owner, _unpin, runtime, address, memory).atexit = False


def _unpin(runtime: Any, address: int, _memory: Any) -> None:
    runtime.cudaHostUnregister(address)


class Copies:
    """Copies between the memory of one CUDA device and host memory, in the order in which they were
    queued: a copy to host memory does not replace what an earlier copy still has to read.

    Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._last: Any = None  # the event of the last copies

    def start(self, pairs: Iterable[Pair], after: Iterable[Any] = ()) -> Any:
        """Queues copies after the work that is queued on the streams `after`. Returns the event
        that completes with them; until then, the caller keeps the tensors."""
        for stream in after:
            self.stream.wait_stream(stream)
        with torch.cuda.stream(self.stream):
            for target, source in pairs:
                copy(target, source)
            event = torch.cuda.Event(blocking=True)  # the host sleeps in waits
            event.record(self.stream)
        self._last = event
        return event

    def wait(self) -> None:
        """Waits until all copies are done. Call it before the host writes to host memory that was
        copied, unless it has waited for a later copy."""
        if self._last is not None:
            self._last.synchronize()


def copies_for(tensors: Iterable[torch.Tensor]) -> Dict[torch.device, Copies]:
    """The copies of each CUDA device that has some of the tensors.

    Raises InvalidArgument if a tensor is neither on the CPU nor on a CUDA device."""
    devices = dict.fromkeys(map(device_of, tensors))
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise InvalidArgument(f"a parameter is on {device}: parameters must be on the CPU or on "
                                  "CUDA devices")
    return {device: Copies(device) for device in devices if device.type == "cuda"}
