"""Pushes gradients while backward computes them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch
from torch.autograd import Variable

from syncgrads.errors import FailedPrecondition, InvalidArgument
from syncgrads.group import Group
from syncgrads.torch._gradients import GradientMemory


# The least number of bytes of the gradients that are pushed in one call, but for the last.
_CALL_BYTES = 1 << 20


class Synchroniser:
    """Pushes gradients while backward computes them, and ends the step when backward ends.

    Each gradient's result is written to the gradient itself. Gradients of a step are averaged over
    the members that had them."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor], passes: int) -> None:
        self.group = group
        self._parameters = list(parameters.values())
        self._registered = [(one.dtype, one.shape, one.numel() * one.element_size())
                            for one in self._parameters]
        self._passes = passes  # of backward, in a step
        self._pass = 0
        self._in_backward = False
        self.is_synchronised = False  # the step that the optimizer makes next
        self._have_gradients: Set[int] = set()
        self._pushed: Set[int] = set()
        # Gradients that the next call pushes: number, address, and what keeps it alive.
        self._due: List[Tuple[int, int, torch.Tensor]] = []
        self._due_bytes = 0
        # Gradients that are not contiguous are sent as a copy.
        self._copies: Dict[int, torch.Tensor] = {}
        # Where the averages of skipped gradients arrive.
        self._results: Dict[int, torch.Tensor] = {}
        self._memory: Optional[GradientMemory] = None
        self._keep: List[Any] = []
        for number, parameter in enumerate(self._parameters):
            self._watch(number, parameter)

    def _watch(self, number: int, parameter: torch.Tensor) -> None:
        def on_gradient(*_: Any) -> None:
            if not self._in_backward:
                if self.is_synchronised:
                    self._begin_again(number)
                self._in_backward = True
                Variable._execution_engine.queue_callback(self._on_backward_done)
            self._have_gradients.add(number)
            if self._pass + 1 == self._passes and number not in self._pushed:
                self._push(number)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
            parameter.register_post_accumulate_grad_hook(on_gradient)
            return
        # The node that adds to parameter.grad. It lives as long as somebody refers to it.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(on_gradient)
        self._keep.append(accumulator)

    def _begin_again(self, number: int) -> None:
        """Begins a step though the optimizer has not made the last one, as GradScaler does. Raises
        FailedPrecondition if the averages of the last step are still there."""
        for other, parameter in enumerate(self._parameters):
            if other != number and parameter.grad is not None and parameter.grad.any():
                raise FailedPrecondition(
                    f"backward computes the gradient of {self.group.tensors[number]!r}, but the "
                    "gradients are averages already: call step() or zero_grad() first; for several "
                    "backward passes in a step, use backward_passes_per_step; for checkpointing, "
                    "use_reentrant=False")
        self.is_synchronised = False

    def _push(self, number: int) -> None:
        """Pushes a gradient, when some have come together: one call costs less than several."""
        gradient = self._parameters[number].grad
        dtype, shape, size = self._registered[number]
        if gradient.is_sparse:
            raise InvalidArgument(
                f"the gradient of {self.group.tensors[number]!r} is sparse: only dense gradients "
                "are synchronised; make the layer with sparse=False")
        if gradient.dtype is not dtype or gradient.shape != shape or not gradient.is_cpu:
            raise self._changed(number, gradient)
        if not gradient.is_contiguous():
            gradient = self._copies[number] = gradient.contiguous()
        self._pushed.add(number)
        self._due.append((number, gradient.data_ptr(), gradient))
        self._due_bytes += size
        if self._due_bytes >= _CALL_BYTES:
            self._push_due()

    def _push_due(self) -> None:
        if not self._due:
            return
        numbers, addresses, gradients = zip(*self._due)
        self._due.clear()
        self._due_bytes = 0
        self.group.push_memory(numbers, addresses, gradients)

    def _changed(self, number: int, tensor: torch.Tensor) -> InvalidArgument:
        """The exception for a parameter or a gradient that is not as it was registered."""
        dtype, shape, _ = self._registered[number]
        return InvalidArgument(
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
        self._push_due()
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
        dtype, shape, _ = self._registered[number]
        if parameter.dtype is not dtype or parameter.shape != shape or not parameter.is_cpu:
            raise self._changed(number, parameter)
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
        self._push_due()
        for number in range(len(self._parameters)):
            if number not in self._pushed:
                self.group.skip(number)
        self.group.wait_step()
        self._forget()
