"""The job's learning rate factor (psctl set learning-rate-factor) in the steps of an optimizer."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch


def rate_options(optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
    """The options of Job.register that let the factor apply to an optimizer: without a learning
    rate, psctl refuses to set it."""
    return {"members_scale_rate": any("lr" in group for group in optimizer.param_groups)}


@contextlib.contextmanager
def multiplied_rate(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Multiplies the learning rates of an optimizer, and restores them at the end of the block.
    Schedulers therefore see and change the rate without the factor, also those that a hook of the
    optimizer's step calls, if they assign a rate."""
    rates = [] if factor == 1 else [
        (group, group["lr"], group["lr"] * factor)
        for group in optimizer.param_groups if "lr" in group]
    for group, _, multiplied in rates:
        group["lr"] = multiplied
    try:
        yield
    finally:
        for group, rate, multiplied in rates:
            if group["lr"] is multiplied:
                group["lr"] = rate
