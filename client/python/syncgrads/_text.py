"""Writes the protobuf text format, in which the C library takes options and groups."""

from __future__ import annotations

import math
from typing import Any, Mapping

# The enum values that proto/types.proto has; all other text is a string.
_ENUM_FIELDS = frozenset(["dtype", "reduction", "codec", "non_finite"])


def to_text(fields: Mapping[str, Any]) -> str:
    """Returns a message with these fields. A field that is None is left out; a list is a repeated
    field; a mapping is a message."""
    return " ".join(_field(name, value) for name, value in fields.items() if value is not None)


def _field(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{name} {{ {to_text(value)} }}"
    if isinstance(value, (list, tuple)):
        return " ".join(_field(name, one) for one in value)
    return f"{name}: {_scalar(name, value)}"


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(value) if math.isfinite(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, str):
        return value.upper() if name in _ENUM_FIELDS else _quoted(value)
    raise TypeError(f"field {name!r} is a {type(value).__name__}, must be a number, bool or str")


def _quoted(text: str) -> str:
    escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in b"\"'\\" else f"\\{byte:03o}"
                      for byte in text.encode())
    return f'"{escaped}"'
