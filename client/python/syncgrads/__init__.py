"""Synchronises data-parallel training through syncgrads' servers.

    import numpy as np
    import syncgrads

    with syncgrads.init("localhost:7000", rank=0, world_size=2) as job:
        total = job.all_reduce(np.ones(3, np.float32))
        group = job.register("model", {"w": w})
        for step in range(100):
            group.push("w", gradient_of(w), out=mean)
            group.wait_step()
            w -= 0.1 * mean

docs/python.md is the guide, and syncgrads.torch is for PyTorch. Arrays are numpy arrays, tensors,
or whatever has the buffer protocol or DLPack. No array is copied. This module imports neither numpy
nor torch.
"""

from syncgrads import _library
from syncgrads.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error,
                              FailedPrecondition, Internal, InvalidArgument, NotFound, OutOfRange,
                              PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
                              Unimplemented, Unknown)
from syncgrads.group import Contributors, Group, Members, OptimizerState, Outcome
from syncgrads.job import Job, Pending, Placement, init

__version__ = _library.LIBRARY.sg_version().decode()

__all__ = [
    "Aborted", "AlreadyExists", "Cancelled", "Contributors", "DataLoss", "DeadlineExceeded",
    "Error", "FailedPrecondition", "Group", "Internal", "InvalidArgument", "Job", "Members",
    "NotFound", "OptimizerState", "OutOfRange", "Outcome", "Pending", "PermissionDenied",
    "Placement", "ResourceExhausted", "Unauthenticated", "Unavailable", "Unimplemented", "Unknown",
    "init"
]
