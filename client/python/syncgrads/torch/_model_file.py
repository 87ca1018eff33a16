"""Models in files of the format safetensors, which ps-worker also reads and writes."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from typing import Any, Dict, Mapping, Optional, Tuple, Union

import torch

from syncgrads.errors import DataLoss, InvalidArgument, NotFound

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
           "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
           "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# A tensor of a file, or the name of its dtype if that is not supported.
_Found = Union[torch.Tensor, str]


def save(model: torch.nn.Module, path: str, *, torch_names: bool = True,
         metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes the state_dict of a model to a file, as a whole or not at all.

    Names are those of the state_dict, which ps-worker uses for convolutions, batch norm, the named
    resnets, and dense layers with `torch_names`. With torch_names=False, a Linear has the names of
    other dense layers: NAME/kernel, which is the transposed weight, and NAME/bias."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().cpu()
        if tensor.dtype not in _NAMES:
            raise InvalidArgument(f"{name!r} is {tensor.dtype}; supported are "
                                  f"{', '.join(map(str, _NAMES))}")
        if not torch_names:
            name, tensor = _of_dense(model, name, tensor)
        tensors[name] = tensor.contiguous()
    header: Dict[str, Any] = {"__metadata__": dict(metadata or {})}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                size = tensor.numel() * tensor.element_size()
                if size > 0:
                    file.write((ctypes.c_char * size).from_address(tensor.data_ptr()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def _of_dense(model: torch.nn.Module, name: str,
              tensor: torch.Tensor) -> Tuple[str, torch.Tensor]:
    """The name and the values that a dense layer of ps-worker has for a tensor of a Linear."""
    layer, _, attribute = name.rpartition(".")
    if not isinstance(model.get_submodule(layer), torch.nn.Linear):
        return name, tensor
    if attribute == "weight":
        return f"{layer}/kernel", tensor.t()
    return f"{layer}/{attribute}", tensor


def load(model: torch.nn.Module, path: str) -> None:
    """Sets a model's parameters and buffers from a file that `save` or ps-worker has written, with
    the names of PyTorch or of ps-worker's dense layers. Other tensors in the file are ignored.

    Raises NotFound if the file lacks a tensor, InvalidArgument if one has another dtype or shape,
    and DataLoss if it is no such file. The model is then unchanged."""
    found = _read(path)
    state = model.state_dict()
    values: Dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        value = _find(model, name, found)
        if value is None and name.endswith(".num_batches_tracked"):
            continue  # ps-worker does not count
        if value is None:
            raise NotFound(f"{path} has no tensor {name!r}; it has {', '.join(found)}")
        if isinstance(value, str):
            raise InvalidArgument(f"{path}: {name!r} has the dtype {value}; supported are "
                                  f"{', '.join(_DTYPES)}")
        if value.dtype != tensor.dtype or value.shape != tensor.shape:
            raise InvalidArgument(
                f"{path}: {name!r} is {value.dtype}{list(value.shape)}, but that of the model is "
                f"{tensor.dtype}{list(tensor.shape)}")
        values[name] = value
    with torch.no_grad():
        for name, value in values.items():
            state[name].copy_(value)


def _find(model: torch.nn.Module, name: str,
          found: Mapping[str, _Found]) -> Optional[_Found]:
    if name in found:
        return found[name]
    other, _ = _of_dense(model, name, torch.empty(0, 0))
    value = found.get(other)
    if isinstance(value, torch.Tensor) and other.endswith("/kernel"):
        return value.t()
    return value


def _read(path: str) -> Dict[str, _Found]:
    with open(path, "rb") as file:
        content = bytearray(file.read())
    try:
        length, = struct.unpack_from("<Q", content)
        header = json.loads(content[8:8 + length].decode())
        header.pop("__metadata__", None)
        return {name: _tensor(content, 8 + length, **described)
                for name, described in header.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
        raise DataLoss(f"{path}: not a whole file of the format safetensors: {error!r}") from error


def _tensor(content: bytearray, start: int, dtype: str, shape: Any,
            data_offsets: Any) -> _Found:
    begin, end = data_offsets
    kind = _DTYPES.get(dtype)
    elements = 1
    for axis in shape:
        elements *= axis
    size = end - begin if kind is None else elements * torch.empty(0, dtype=kind).element_size()
    if not (0 <= begin and end - begin == size and start + end <= len(content)):
        raise ValueError(f"{dtype}{shape} at {begin} to {end} of {len(content) - start} bytes")
    if kind is None:
        return str(dtype)
    if size == 0:
        return torch.empty(shape, dtype=kind)
    values = torch.frombuffer(content, dtype=kind, count=elements, offset=start + begin)
    return values.reshape(shape)
