"""The memory of arrays: numpy arrays, PyTorch tensors, and whatever has DLPack or the buffer
protocol. Nothing is copied, and neither numpy nor torch is imported."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Tuple

from syncgrads.errors import InvalidArgument

# The numbers of sg_dtype, and the bytes of an element.
DTYPES = {"f64": 1, "f32": 2, "f16": 3, "bf16": 4, "i64": 5, "i32": 6}
SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4}

# The names that numpy, PyTorch and others have for dtypes. Python's float and int are as in numpy.
_ALIASES = {"float64": "f64", "double": "f64", "float": "f64", "float32": "f32", "float16": "f16",
            "half": "f16", "bfloat16": "bf16", "int64": "i64", "long": "i64", "int": "i64",
            "int32": "i32"}
# The kind of the buffer protocol and of numpy, and the size of an element.
_BY_KIND = {"f8": "f64", "f4": "f32", "f2": "f16", "i8": "i64", "i4": "i32"}
_BUFFER_KINDS = {"d": "f", "f": "f", "e": "f", "q": "i", "l": "i", "i": "i"}
_DLPACK_KINDS = {(2, 64): "f64", (2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (0, 64): "i64",
                 (0, 32): "i32"}
_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost


class Array(NamedTuple):
    """The memory of an array. `owner` keeps it alive."""

    pointer: int
    dtype: str
    shape: Tuple[int, ...]
    writable: bool
    owner: Any

    @property
    def elements(self) -> int:
        count = 1
        for axis in self.shape:
            count *= axis
        return count

    @property
    def bytes(self) -> int:
        return self.elements * SIZES[self.dtype]


def dtype_of(dtype: Any) -> str:
    """Returns the library's name of a dtype: "f32" for numpy.float32 or torch.float32."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rsplit(".", 1)[-1]
    name = _ALIASES.get(name, name)
    if name not in DTYPES:
        raise InvalidArgument(f"dtype {dtype} is not supported; supported are {', '.join(DTYPES)}")
    return name


def array_of(values: Any, writable: bool = False) -> Array:
    """The memory of an array, which must be contiguous in row-major order, and on the CPU.

    Raises InvalidArgument for anything else."""
    array = _find(values)
    if writable and not array.writable:
        raise InvalidArgument(f"the {type(values).__name__} cannot be written to: pass a writable "
                              "array, such as x = numpy.array(x)")
    return array


def _find(values: Any) -> Array:
    if hasattr(values, "data_ptr"):
        return _of_torch(values)
    interface = getattr(values, "__array_interface__", None)
    if interface is not None:
        return _of_numpy(values, interface)
    try:
        return _of_buffer(values)
    except TypeError:
        pass
    if hasattr(values, "__dlpack__"):
        return _of_dlpack(values)
    raise InvalidArgument(f"a {type(values).__name__} is not an array: it has neither the buffer "
                          "protocol nor DLPack")


def _of_torch(tensor: Any) -> Array:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"the tensor is on {tensor.device}: copy it to the CPU first")
    if tensor.is_sparse:
        raise InvalidArgument("the tensor is sparse: only dense tensors are supported")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"the tensor of shape {tuple(tensor.shape)} is not contiguous")
    return Array(tensor.data_ptr(), dtype_of(tensor.dtype), tuple(tensor.shape), True, tensor)


def _of_numpy(values: Any, interface: Any) -> Array:
    shape = tuple(interface["shape"])
    order, kind = interface["typestr"][0], interface["typestr"][1:]
    dtype = _BY_KIND.get(kind)
    if kind == "V2" and values.dtype.name == "bfloat16":  # that of ml_dtypes
        dtype = "bf16"
    if dtype is None or order == ">":
        raise InvalidArgument(f"dtype {values.dtype} is not supported")
    strides = interface.get("strides")
    if strides is not None and not _is_row_major(shape, strides, SIZES[dtype]):
        raise InvalidArgument(f"the array of shape {shape} is not contiguous in row-major order")
    pointer, read_only = interface["data"]
    # The interface of a numpy scalar describes a copy, which its "__ref" keeps alive.
    writable = not read_only and "__ref" not in interface
    return Array(pointer, dtype, shape, writable, (values, interface))


def _is_row_major(shape: Tuple[int, ...], strides: Tuple[int, ...], size: int) -> bool:
    for axis, stride in zip(reversed(shape), reversed(strides)):
        if axis != 1 and stride != size:
            return False
        size *= axis
    return True


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


def _address_of(view: memoryview) -> int:
    buffer = _Buffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes = [ctypes.POINTER(_Buffer)]
    release.restype = None
    get(view, ctypes.byref(buffer), 0)
    address = buffer.buf
    release(ctypes.byref(buffer))
    return address or 0


def _of_buffer(values: Any) -> Array:
    view = memoryview(values)
    kind = _BUFFER_KINDS.get(view.format.lstrip("@=<"))
    dtype = _BY_KIND.get(f"{kind}{view.itemsize}")
    if dtype is None:
        raise InvalidArgument(f"elements of format {view.format!r} are not supported")
    if not view.c_contiguous:
        raise InvalidArgument(f"the buffer of shape {view.shape} is not contiguous")
    # The view keeps the memory where it is.
    return Array(_address_of(view), dtype, tuple(view.shape or ()), not view.readonly, view)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _of_dlpack(values: Any) -> Array:
    # The capsule is not consumed, so it frees what it holds when it is collected.
    capsule = values.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    if tensor.device_type not in _CPU_DEVICES:
        raise InvalidArgument("the array is not on the CPU: copy it there first")
    dtype = _DLPACK_KINDS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise InvalidArgument(f"DLPack's dtype {tensor.code} of {tensor.bits} bits is not "
                              "supported")
    shape = tuple(tensor.shape[:tensor.ndim])
    if tensor.strides:
        strides = tuple(stride * SIZES[dtype] for stride in tensor.strides[:tensor.ndim])
        if not _is_row_major(shape, strides, SIZES[dtype]):
            raise InvalidArgument(f"the array of shape {shape} is not contiguous")
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Array(pointer, dtype, shape, True, (capsule, values))
