"""The exceptions: one class for each code of the C library."""

from __future__ import annotations

from typing import Dict, Type


class Error(Exception):
    """An error of the C library or of a server. `str(error)` is its message."""

    code = 2
    name = "UNKNOWN"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Cancelled(Error):
    """The job was abandoned or closed while the call waited."""


class Unknown(Error):
    """An error with none of the other codes."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong. The same call cannot succeed."""


class DeadlineExceeded(Error, TimeoutError):
    """The timeout has passed. The message names what was waited for; a wait can be repeated."""


class NotFound(Error, LookupError):
    """The named thing does not exist."""


class AlreadyExists(Error):
    """A live worker has this name or rank."""


class PermissionDenied(Error, PermissionError):
    """The token is not the job's."""


class ResourceExhausted(Error):
    """The job or a server is full."""


class FailedPrecondition(Error):
    """The call is not allowed in this state, or the membership is over: join again."""


class Aborted(Error):
    """The step has other members than expected, or the job is closed."""


class OutOfRange(Error):
    """No member has data left: the step does not exist."""


class Unimplemented(Error):
    """The operation is not supported."""


class Internal(Error):
    """A bug of this library."""


class Unavailable(Error):
    """A server cannot be reached."""


class DataLoss(Error):
    """Data was lost or damaged."""


class Unauthenticated(Error):
    """There are no valid credentials."""


_CLASSES = (Cancelled, Unknown, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists,
            PermissionDenied, ResourceExhausted, FailedPrecondition, Aborted, OutOfRange,
            Unimplemented, Internal, Unavailable, DataLoss, Unauthenticated)
_NAMES = ("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
          "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
          "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
          "UNAUTHENTICATED")
_BY_CODE: Dict[int, Type[Error]] = {}
for _code, (_class, _name) in enumerate(zip(_CLASSES, _NAMES), start=1):
    _class.code = _code
    _class.name = _name
    _BY_CODE[_code] = _class


def error_of(code: int, message: str) -> Error:
    """Returns the exception for a code that is not OK."""
    return _BY_CODE.get(code, Unknown)(message)
