"""Loads libsyncgrads.so and declares its functions (client/c/syncgrads.h)."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from ctypes import (POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32,
                    c_uint64, c_void_p)
from typing import Any

from syncgrads.errors import error_of

MESSAGE_SIZE = 4096


class Contributors(ctypes.Structure):
    _fields_ = [("least", c_uint32), ("most", c_uint32), ("left_out", c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int32), ("axes", c_uint32),
                ("shape", POINTER(c_int64)), ("data", c_void_p)]


class Placement(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("rank", c_int64), ("world_size", c_int64),
                ("local_rank", c_int64), ("launcher", ctypes.c_char * 32)]


class Member(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("world_size", c_uint32),
                ("newcomer", c_uint32), ("name", ctypes.c_char * 256)]


class StepMembers(ctypes.Structure):
    _fields_ = [("epoch", c_uint64), ("rank", c_uint32), ("world_size", c_uint32)]


class Outcome(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("step", c_uint64), ("epoch", c_uint64),
                ("world_size", c_uint32), ("contributors", c_uint32), ("whole", c_uint32),
                ("ranks_capacity", c_uint32), ("ranks", POINTER(c_uint32)), ("names", c_void_p),
                ("names_capacity", c_size_t)]


class Piece(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


class OptimizerState(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tensors", c_uint32), ("slots", c_uint32),
                ("values", POINTER(c_void_p)), ("updates", POINTER(c_uint64))]


class Collective(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("operation", c_int32), ("dtype", c_int32),
                ("reduction", c_int32), ("root", c_uint32), ("name", c_char_p),
                ("input", c_void_p), ("output", c_void_p), ("elements", c_uint64),
                ("output_elements", c_uint64)]


# SG_IN_PLACE
IN_PLACE = 1

# The parameters of each function that returns a code, without the two of the message.
_FUNCTIONS = {
    "sg_find_placement": [POINTER(Placement)],
    "sg_open": [c_char_p, POINTER(c_void_p)],
    "sg_join": [c_void_p, c_double],
    "sg_leave": [c_void_p, c_double],
    "sg_status": [c_void_p],
    "sg_get_member": [c_void_p, POINTER(Member)],
    "sg_report_checkpoint": [c_void_p, c_uint64, c_int, c_char_p],
    "sg_report_figures": [c_void_p, c_char_p],
    "sg_set_learning_rate_factor": [c_void_p, c_double, c_double],
    "sg_allocate_gradients": [c_void_p, c_size_t, POINTER(c_void_p)],
    "sg_register": [c_void_p, c_char_p, c_double, POINTER(c_void_p)],
    "sg_set_weight": [c_void_p, c_double],
    "sg_send_uncompressed": [c_void_p],
    "sg_push": [c_void_p, c_uint32, c_void_p, c_size_t, c_void_p],
    "sg_skip": [c_void_p, c_uint32, c_void_p],
    "sg_push_many": [c_void_p, POINTER(c_uint32), POINTER(c_void_p), POINTER(c_void_p), c_size_t,
                     POINTER(c_size_t)],
    "sg_copy_and_push_many": [c_void_p, POINTER(c_uint32), POINTER(c_void_p), POINTER(c_void_p),
                              c_int, c_size_t, POINTER(c_size_t)],
    "sg_wait": [c_void_p, c_uint32, c_double, POINTER(Contributors)],
    "sg_next_completion": [c_void_p, c_double, POINTER(c_uint32), POINTER(Contributors)],
    "sg_wait_step": [c_void_p, c_double, POINTER(Contributors), c_size_t],
    "sg_get_result": [c_void_p, c_uint32, POINTER(Piece), c_size_t, POINTER(c_size_t)],
    "sg_use_results": [c_void_p, POINTER(c_uint32), POINTER(c_void_p), c_size_t],
    "sg_end": [c_void_p, c_double],
    "sg_register_state": [c_void_p, POINTER(Tensor), c_size_t, c_double, POINTER(c_int)],
    "sg_begin_step": [c_void_p, POINTER(StepMembers)],
    "sg_restart_step": [c_void_p, c_double],
    "sg_last_step": [c_void_p, c_double, POINTER(Outcome)],
    "sg_take_snapshot": [c_void_p, c_double, POINTER(c_void_p)],
    "sg_read_snapshot": [c_void_p, POINTER(OptimizerState)],
    "sg_broadcast_parameters": [c_void_p, c_uint32, POINTER(c_void_p), c_size_t,
                                POINTER(OptimizerState), c_double],
    "sg_start": [c_void_p, POINTER(Collective), POINTER(c_void_p)],
    "sg_finish": [c_void_p, c_double, POINTER(c_uint32)],
    "sg_start_broadcast_all": [c_void_p, c_char_p, POINTER(Tensor), c_size_t, c_uint32,
                               POINTER(c_void_p)],
}
# The other functions: the result and the parameters.
_PLAIN_FUNCTIONS = {
    "sg_version": (c_char_p, []),
    "sg_abandon": (None, [c_void_p]),
    "sg_close": (None, [c_void_p]),
    "sg_take_notice": (c_int, [c_void_p, c_char_p, c_size_t]),
    "sg_take_checkpoint_request": (c_int, [c_void_p]),
    "sg_step": (c_uint64, [c_void_p]),
    "sg_steps_behind": (c_uint64, [c_void_p]),
    "sg_learning_rate_factor": (c_double, [c_void_p]),
    "sg_is_step_answered": (c_int, [c_void_p]),
    "sg_optimizer_slots": (c_uint32, [c_void_p]),
    "sg_free_snapshot": (None, [c_void_p]),
    "sg_is_ready": (c_int, [c_void_p]),
    "sg_free_pending": (None, [c_void_p]),
}


def _path() -> str:
    """SYNCGRADS_LIBRARY if it is set; else the library of the wheel; else the system's."""
    given = os.environ.get("SYNCGRADS_LIBRARY")
    if given:
        return given
    inside = pathlib.Path(__file__).parent / "lib" / "libsyncgrads.so"
    return str(inside) if inside.exists() else "libsyncgrads.so"


def _load() -> ctypes.CDLL:
    # RTLD_LOCAL, which is the default: its libraries do not serve other modules of the process.
    library = ctypes.CDLL(_path())
    for name, parameters in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = c_int
        function.argtypes = [*parameters, c_char_p, c_size_t]
    for name, (result, parameters) in _PLAIN_FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = parameters
    return library


LIBRARY = _load()


class _Message(threading.local):
    """One buffer for each thread."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(MESSAGE_SIZE)


_message = _Message()


def check(name: str, *arguments: Any) -> None:
    """Calls a function that returns a code. Raises the code's exception if it is not OK."""
    buffer = _message.buffer
    code = getattr(LIBRARY, name)(*arguments, buffer, MESSAGE_SIZE)
    if code != 0:
        raise error_of(code, buffer.value.decode("utf-8", "replace"))
