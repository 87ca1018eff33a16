"""Gradients in memory that servers on the same host read in place."""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch

from syncgrads import Job
from syncgrads.torch._job import job_or_default, trained

# The address of each tensor is a multiple of this, for vector instructions and cache lines.
_ALIGNMENT = 64


class GradientMemory:
    """One tensor for each of some parameters, of its dtype and shape, in one piece of memory that
    servers on the same host read in place. Filled with zeros."""

    def __init__(self, job: Job, parameters: Sequence[torch.Tensor]) -> None:
        places = []
        end = 0
        for parameter in parameters:
            places.append(end)
            size = parameter.numel() * parameter.element_size()
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        memory = job.allocate_bytes(end)
        self.tensors: List[torch.Tensor] = [
            torch.frombuffer(memory, dtype=parameter.dtype, count=parameter.numel(),
                             offset=place).reshape(parameter.shape)
            if parameter.numel() > 0 else torch.empty_like(parameter)
            for place, parameter in zip(places, parameters)]

    def take_in(self, number: int, parameter: torch.Tensor) -> None:
        """Moves the gradient of a parameter, if it has one, to this memory."""
        gradient, own = parameter.grad, self.tensors[number]
        if gradient is None or gradient.is_sparse or gradient.data_ptr() == own.data_ptr():
            return
        with torch.no_grad():
            own.copy_(gradient)
        parameter.grad = own


def allocate_gradients(model: torch.nn.Module, *, job: Optional[Job] = None) -> None:
    """Gives each parameter of a model that needs a gradient one of zeros, or moves the gradient
    that it has, to memory that servers on the same host read in place: backward adds to it, and a
    push copies nothing. Gradients stay there as long as they are set to zero by
    zero_grad(set_to_none=False)."""
    parameters = list(trained(model.named_parameters()).values())
    memory = GradientMemory(job_or_default(job), parameters)
    for number, parameter in enumerate(parameters):
        if parameter.grad is None:
            parameter.grad = memory.tensors[number]
        else:
            memory.take_in(number, parameter)
