"""Gradients in memory that servers on the same host read in place."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any, Collection, Dict, List, Optional, Sequence, Set

import torch

from syncgrads import Job
from syncgrads.errors import InvalidArgument, ResourceExhausted
from syncgrads.group import Group
from syncgrads.torch import _cuda
from syncgrads.torch._job import job_or_default, trained

# The address of each tensor is a multiple of this, for vector instructions and cache lines.
_ALIGNMENT = 64


class GradientMemory:
    """One tensor for each of some parameters, of its dtype and shape, in one piece of host memory
    that servers on the same host read in place; in ordinary memory if the system has none left that
    can be shared. Filled with zeros. Page-locked if a parameter is on a CUDA device."""

    def __init__(self, job: Job, parameters: Sequence[torch.Tensor]) -> None:
        places = []
        end = 0
        for parameter in parameters:
            places.append(end)
            end += -(-parameter.numel() * parameter.element_size() // _ALIGNMENT) * _ALIGNMENT
        size = max(end, 1)
        try:
            memory: Any = job.allocate_bytes(size)
        except ResourceExhausted:
            memory = mmap.mmap(-1, size)
        self.tensors: List[torch.Tensor] = [
            torch.frombuffer(memory, dtype=parameter.dtype, count=parameter.numel(),
                             offset=place).reshape(parameter.shape)
            if parameter.numel() > 0
            else torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
            for place, parameter in zip(places, parameters)]
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]
        # Parameters with another order of elements, such as channels_last. Optimizers that are
        # fused need gradients of the same order, so these are copied and not moved.
        self.turned = {number for number, parameter in enumerate(parameters)
                       if is_turned(parameter) and _cuda.device_of(parameter).type == "cpu"}
        self.copied: Set[int] = set()  # by take_in, since the last lay_out
        if any(_cuda.device_of(parameter).type == "cuda" for parameter in parameters):
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            _cuda.pin(self, memory, whole.data_ptr(), size)

    def take_in(self, number: int, parameter: torch.Tensor) -> int:
        """Moves the gradient of a parameter to this memory, unless it is there. Returns its
        address."""
        gradient, address = parameter.grad, self.addresses[number]
        assert gradient is not None
        if gradient.data_ptr() != address:
            own = self.tensors[number]
            # Faster than torch.no_grad, which is on within backward, unless it makes a graph.
            own.copy_(gradient.detach() if gradient.requires_grad else gradient)
            if number in self.turned:
                self.copied.add(number)
            else:
                parameter.grad = own
        return address

    def lay_out(self, parameters: Sequence[torch.Tensor], copied: Collection[int]) -> None:
        """Copies averages from this memory to the gradients of parameters with another order of
        elements: of those of which take_in has made a copy, and of those that were skipped."""
        with torch.no_grad():
            for number in self.turned:
                parameter, own = parameters[number], self.tensors[number]
                if number in copied and parameter.grad is not None:
                    parameter.grad.copy_(own)
                elif parameter.grad is own:
                    parameter.grad = torch.empty_like(parameter).copy_(own)


class UsedResults:
    """Averages as gradients, in the memory in which servers on the same host have written them.

    A page that the program writes becomes its own copy. That takes longer than copying the averages
    to memory of this process would have taken. So a program that changes its gradients, for example
    clips them, gets copies from the next step on."""

    def __init__(self, group: Group, parameters: Sequence[torch.Tensor]) -> None:
        self._group = group
        self._parameters = parameters
        self._bytes = [one.numel() * one.element_size() for one in parameters]
        # The views that have been made of each parameter's results, by address.
        self._views: List[Dict[int, torch.Tensor]] = [{} for _ in parameters]
        # The gradients that are views now: their numbers, the views, and the versions that they had.
        self._given: List[int] = []
        self._given_views: List[torch.Tensor] = []
        self._versions: List[int] = []
        # Under a quorum, servers that have been started again do not wait for who reads results.
        self.is_on = not group.has_quorum and all(
            _cuda.device_of(parameter).type == "cpu" for parameter in parameters)
        group.job._before_end.append(weakref.WeakMethod(self.keep))

    def check_unchanged(self) -> None:
        """Called before gradients are pushed. Turns this off if the program has changed one."""
        if self.is_on and [view._version for view in self._given_views] != self._versions:
            self.is_on = False

    def give(self, numbers: Sequence[int], addresses: Sequence[int]) -> None:
        """Lets gradients be the averages of the step that has ended. `numbers` are those that were
        pushed in place, and are now at `addresses`, where averages are copied if they must be."""
        parameters = self._parameters
        self._given.clear()
        self._given_views.clear()
        copied = 0
        for number, before, address in zip(numbers, addresses,
                                           self._group.use_results(numbers, addresses)):
            if address == before:
                copied += self._bytes[number]
                continue
            view = self._views[number].get(address)
            if view is None:
                view = self._view(number, address)
            parameters[number].grad = view
            self._given.append(number)
            self._given_views.append(view)
        self._versions = [view._version for view in self._given_views]
        # Averages that must be copied, such as those that are sent, are better copied while others
        # arrive.
        self.is_on = self.is_on and 2 * copied <= sum(self._bytes)

    def _view(self, number: int, address: int) -> torch.Tensor:
        """A tensor at `address` with the strides of the gradient."""
        parameter = self._parameters[number]
        assert parameter.grad is not None  # what was pushed
        memory = (ctypes.c_char * self._bytes[number]).from_address(address)
        memory._job = self._group.job  # type: ignore[attr-defined]  # keeps the memory
        view = torch.frombuffer(memory, dtype=parameter.dtype).as_strided(
            parameter.shape, parameter.grad.stride())
        self._views[number][address] = view
        return view

    def keep(self) -> None:
        """Copies the gradients that are views to memory of this process."""
        for number in self._given:
            self.keep_one(number)

    def keep_one(self, number: int) -> None:
        """Copies a gradient to memory of this process if it is a view."""
        gradient = self._parameters[number].grad
        if gradient is not None and gradient.data_ptr() in self._views[number]:
            self._parameters[number].grad = gradient.detach().clone()


def is_turned(parameter: torch.Tensor) -> bool:
    """True if the elements of a parameter are one piece of memory, but not in row-major order."""
    return (not parameter.is_contiguous() and
            torch.empty_like(parameter).stride() == parameter.stride())


def allocate_gradients(model: torch.nn.Module, *, job: Optional[Job] = None) -> None:
    """Lets the gradients of a model be in memory that servers on the same host read in place, so
    that a push copies nothing. Parameters that have no gradient get one of zeros. Gradients stay
    there as long as they are set to zero by zero_grad(set_to_none=False).

    Raises InvalidArgument if a parameter is not on the CPU, or not contiguous."""
    named = trained(model.named_parameters())
    for name, parameter in named.items():
        if not parameter.is_contiguous():
            raise InvalidArgument(f"{name!r} of shape {list(parameter.shape)} is not contiguous, "
                                  "and its gradient would be: call "
                                  "model.to(memory_format=torch.contiguous_format) first")
        if _cuda.device_of(parameter).type != "cpu":
            raise InvalidArgument(f"{name!r} is on {parameter.device}, and so must its gradient "
                                  "be: allocate_gradients is for parameters on the CPU")
    parameters = list(named.values())
    memory = GradientMemory(job_or_default(job), parameters)
    for number, parameter in enumerate(parameters):
        if parameter.grad is None:
            parameter.grad = memory.tensors[number]
        else:
            memory.take_in(number, parameter)
