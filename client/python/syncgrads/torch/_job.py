"""The job of this process, and the parameters of a model as tensors of a group."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Set, Tuple

import torch

import syncgrads
from syncgrads import Job
from syncgrads.errors import FailedPrecondition, InvalidArgument
from syncgrads.group import Group

SUPPORTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)

_default_job: Optional[Job] = None


def init(server: Optional[str] = None, job: Optional[str] = None, **options: Any) -> Job:
    """Joins a job as syncgrads.init does. The functions of syncgrads.torch use this job unless they
    are given another one."""
    global _default_job  # pylint: disable=global-statement
    _default_job = syncgrads.init(server, job, **options)
    return _default_job


def has_default() -> bool:
    """True if init has been called."""
    return _default_job is not None


def job_or_default(job: Optional[Job]) -> Job:
    """The given job, or that of init. Raises FailedPrecondition if there is none."""
    job = job or _default_job
    if job is None:
        raise FailedPrecondition("there is no job: call syncgrads.torch.init first")
    return job


def check_began_job(job: Job, name: str) -> None:
    """Raises FailedPrecondition if this worker is a newcomer of an elastic job: the others do not
    take part in what the function of this name does together."""
    if job.is_newcomer:
        raise FailedPrecondition(
            f"this worker has joined an elastic job that was running, and syncgrads.torch.{name} "
            "cannot bring it up to date: use syncgrads.torch.elastic, on all workers")


def broadcast(tensors: Mapping[str, torch.Tensor], root: int = 0, *, job: Optional[Job] = None,
              name: str = "initial") -> None:
    """Copies the root's tensors to every member's, in one operation: model.state_dict(), for
    example. Tensors of dtypes such as bool are sent as int64."""
    with torch.no_grad():
        carried = {key: carrier(tensor) for key, tensor in tensors.items() if tensor.numel() > 0}
        if carried:
            job_or_default(job).broadcast_all(carried, root, name=name)
        for key, received in carried.items():
            put_back(tensors[key], received)


def carrier(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy that can be sent: contiguous, on the CPU, of a dtype that the
    servers have. A complex number is two real ones."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    elif tensor.dtype not in SUPPORTED:
        tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
    return tensor.cpu().contiguous()


def put_back(tensor: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
    """Copies what was received in the carrier of a tensor to the tensor, and returns it."""
    if carried.data_ptr() != tensor.data_ptr():
        tensor.copy_(torch.view_as_complex(carried) if tensor.is_complex() else carried)
    return tensor


def trained(named: Iterable[Tuple[str, torch.Tensor]]) -> Dict[str, torch.Tensor]:
    """The parameters that need gradients, each once, without empty ones."""
    parameters: Dict[str, torch.Tensor] = {}
    seen: Set[int] = set()
    for name, parameter in named:
        if parameter.requires_grad and parameter.numel() > 0 and id(parameter) not in seen:
            seen.add(id(parameter))
            parameters[name] = parameter
    if not parameters:
        raise InvalidArgument("no parameter of the model needs a gradient")
    return parameters


def register(job: Job, name: str, parameters: Mapping[str, torch.Tensor],
             options: Mapping[str, Any]) -> Group:
    """Registers the group of the gradients of these parameters.

    Raises InvalidArgument for an optimizer on the servers: the results would be parameters."""
    if options.get("optimizer") is not None:
        raise InvalidArgument(
            f"group {name!r} has an optimizer on the servers, but the trainer has one: leave out "
            "`optimizer`; or use job.register and group.push, or syncgrads.torch.DiLoCo")
    specs = {key: (one.dtype, tuple(one.shape)) for key, one in parameters.items()}
    fields: Dict[str, Any] = {"non_finite": "ALLOW", **options}
    return job.register(name, specs, **fields)
