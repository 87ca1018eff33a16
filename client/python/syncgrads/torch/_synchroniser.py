"""Pushes gradients while backward computes them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Set

import torch
from torch.autograd import Variable

from syncgrads.errors import InvalidArgument
from syncgrads.group import Group
from syncgrads.torch._gradients import GradientMemory


class Synchroniser:
    """Pushes gradients while backward computes them, and ends the step when backward ends.

    Each gradient's result is written to the gradient itself. Gradients of a step are averaged over
    the members that had them."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor], passes: int) -> None:
        self.group = group
        self._parameters = list(parameters.values())
        self._registered = [(one.dtype, one.shape) for one in self._parameters]
        self._bytes = [one.numel() * one.element_size() for one in self._parameters]
        self._passes = passes  # of backward, in a step
        self._pass = 0
        self._in_backward = False
        self.is_synchronised = False  # the step that the optimizer makes next
        self._have_gradients: Set[int] = set()
        self._pushed: Set[int] = set()
        # Gradients that are not contiguous are sent as a copy.
        self._copies: Dict[int, torch.Tensor] = {}
        # Where the averages of skipped gradients arrive.
        self._results: Dict[int, torch.Tensor] = {}
        self._memory: Optional[GradientMemory] = None
        self._keep: List[Any] = []
        for number, parameter in enumerate(self._parameters):
            self._watch(number, parameter)

    def _watch(self, number: int, parameter: torch.Tensor) -> None:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
            parameter.register_post_accumulate_grad_hook(lambda _: self._on_gradient(number))
            return
        # The node that adds to parameter.grad. It lives as long as somebody refers to it.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(lambda *_: self._on_gradient(number))
        self._keep.append(accumulator)

    def _on_gradient(self, number: int) -> None:
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._on_backward_done)
        self._have_gradients.add(number)
        if self._pass + 1 == self._passes and number not in self._pushed:
            self._push(number)

    def _push(self, number: int) -> None:
        gradient = self._parameters[number].grad
        if gradient.is_sparse:
            raise InvalidArgument(
                f"the gradient of {self.group.tensors[number]!r} is sparse: only dense gradients "
                "are synchronised; make the layer with sparse=False")
        self._check(number, gradient)
        if not gradient.is_contiguous():
            gradient = self._copies[number] = gradient.contiguous()
        address = gradient.data_ptr()
        self.group.push_memory(number, address, self._bytes[number], address, gradient)
        self._pushed.add(number)

    def _check(self, number: int, tensor: torch.Tensor) -> None:
        """Raises InvalidArgument if a parameter or a gradient is not as it was registered."""
        dtype, shape = self._registered[number]
        if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_cpu:
            raise InvalidArgument(
                f"{self.group.tensors[number]!r} is {tensor.dtype}{list(tensor.shape)} on "
                f"{tensor.device}, but was registered as {dtype}{list(shape)} on the CPU: after a "
                "change of the model, make a new DistributedOptimizer with another name")

    def keep_in_place(self) -> None:
        """Moves the gradients to memory that servers on this host read in place. The optimizer sets
        them to zero there, so that they stay."""
        if self._memory is None:
            self._memory = GradientMemory(self.group.job, self._parameters)
        for number, parameter in enumerate(self._parameters):
            self._memory.take_in(number, parameter)

    def _on_backward_done(self) -> None:
        self._in_backward = False
        self._pass += 1
        if self._pass == self._passes:
            self.synchronise()

    def synchronise(self) -> None:
        """Pushes or skips what has not been pushed, and waits for all results."""
        for number in sorted(self._have_gradients - self._pushed):
            self._push(number)
        for number in range(len(self._parameters)):
            if number not in self._pushed and number not in self._results:
                self._skip(number)
        counted = self.group.wait_step()
        with torch.no_grad():
            for number, copy in self._copies.items():
                self._parameters[number].grad.copy_(copy)
            for number, result in self._results.items():
                if counted[number].most > 0:
                    self._take(number, result)
        self._forget()
        self.is_synchronised = True

    def _skip(self, number: int) -> None:
        """Skips a gradient that this worker has not computed, and receives that of the others."""
        parameter = self._parameters[number]
        self._check(number, parameter)
        result = self._results[number] = torch.empty(parameter.shape, dtype=parameter.dtype)
        self.group.skip(number, result)

    def _take(self, number: int, result: torch.Tensor) -> None:
        parameter = self._parameters[number]
        if parameter.grad is None:
            parameter.grad = result
        else:
            parameter.grad.copy_(result)

    def _forget(self) -> None:
        self._pass = 0
        self._in_backward = False
        self._have_gradients.clear()
        self._pushed.clear()
        self._copies.clear()
        self._results.clear()

    @property
    def has_begun(self) -> bool:
        """True if gradients of a step have been computed that is not synchronised."""
        return self._pass > 0 or bool(self._have_gradients)

    def give_up(self) -> None:
        """Ends a step in whose backward an exception was raised. What was pushed counts."""
        if not self._in_backward:
            return
        self._have_gradients.clear()
        for number in range(len(self._parameters)):
            if number not in self._pushed:
                self.group.skip(number)
        self.group.wait_step()
        self._forget()
