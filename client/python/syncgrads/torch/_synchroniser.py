"""Pushes gradients while backward computes them."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Sequence, Set

import torch
from torch.autograd import Variable

from syncgrads.errors import Aborted, FailedPrecondition, InvalidArgument
from syncgrads.group import Contributors, Group
from syncgrads.torch._gradients import GradientMemory


# The least number of bytes of the gradients that are pushed in one call, but for the last.
_CALL_BYTES = 1 << 20
# Smaller gradients are pushed from where autograd has put them: the client copies them in less time
# than PyTorch needs for a copy.
_LEAST_MOVED_BYTES = 16 << 10


class Synchroniser:
    """Pushes gradients while backward computes them, and ends the step when backward ends.

    Large gradients are moved to memory that servers on the same host read in place. The averages
    replace the gradients. They are averages over the members that had the gradient."""

    def __init__(self, group: Group, parameters: Mapping[str, torch.Tensor], passes: int) -> None:
        self.group = group
        self._parameters = list(parameters.values())
        self._registered = [(one.dtype, one.shape, one.numel() * one.element_size())
                            for one in self._parameters]
        self._passes = passes  # of backward, in a step
        self._pass = 0
        self._in_backward = False
        self.is_synchronised = False  # the step that the optimizer makes next
        # Elastic jobs: if the members have changed, the step is made again, with other rows.
        self.repeats_steps = False
        self.is_repeated = False
        # Gradients that this pass has computed and that are not in the sets yet.
        self._computed: List[int] = []
        self._computed_bytes = 0
        self._have_gradients: Set[int] = set()
        self._pushed: Set[int] = set()
        self._skipped: Set[int] = set()
        # Where large gradients are when they are pushed, and where the averages of skipped ones
        # arrive.
        self._memory = GradientMemory(group.job, self._parameters)
        self._keep: List[Any] = []
        for number, parameter in enumerate(self._parameters):
            self._watch(number, parameter)

    def _watch(self, number: int, parameter: torch.Tensor) -> None:
        size = self._registered[number][2]

        # Called for each gradient of each step, so it does little.
        def on_gradient(*_: Any) -> None:
            if not self._in_backward:
                self._begin_backward(number)
            self._computed.append(number)
            self._computed_bytes += size
            if self._computed_bytes >= _CALL_BYTES:
                self._take_computed()

        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
            parameter.register_post_accumulate_grad_hook(on_gradient)
            return
        # The node that adds to parameter.grad. It lives as long as somebody refers to it.
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(on_gradient)
        self._keep.append(accumulator)

    def _begin_backward(self, number: int) -> None:
        if self.is_synchronised:
            self._begin_again(number)
        self._in_backward = True
        Variable._execution_engine.queue_callback(self._on_backward_done)

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

    def _take_computed(self) -> None:
        """Pushes the gradients that have been computed, if this is the step's last pass."""
        computed, self._computed, self._computed_bytes = self._computed, [], 0
        self._have_gradients.update(computed)
        if self._pass + 1 == self._passes:
            self._push(computed)

    def _push(self, numbers: Iterable[int]) -> None:
        """Pushes the gradients that have not been pushed, in one call."""
        due, addresses, keep = [], [], []
        for number in numbers:
            if number in self._pushed:
                continue
            parameter = self._parameters[number]
            gradient = parameter.grad
            dtype, shape, size = self._registered[number]
            if gradient.is_sparse:
                raise InvalidArgument(
                    f"the gradient of {self.group.tensors[number]!r} is sparse: only dense "
                    "gradients are synchronised; make the layer with sparse=False")
            if gradient.dtype is not dtype or gradient.shape != shape or not gradient.is_cpu:
                raise self._changed(number, gradient)
            if size < _LEAST_MOVED_BYTES and gradient.is_contiguous():
                keep.append(gradient)
                addresses.append(gradient.data_ptr())
            else:
                addresses.append(self._memory.take_in(number, parameter))
            self._pushed.add(number)
            due.append(number)
        if due:
            self.group.push_memory(due, addresses, (self._memory, keep))

    def _changed(self, number: int, tensor: torch.Tensor) -> InvalidArgument:
        """The exception for a parameter or a gradient that is not as it was registered."""
        dtype, shape, _ = self._registered[number]
        return InvalidArgument(
            f"{self.group.tensors[number]!r} is {tensor.dtype}{list(tensor.shape)} on "
            f"{tensor.device}, but was registered as {dtype}{list(shape)} on the CPU: after a "
            "change of the model, make a new DistributedOptimizer with another name")

    def _on_backward_done(self) -> None:
        self._take_computed()
        self._pass += 1
        if self._pass == self._passes:
            self._push_or_skip_rest()
        self._in_backward = False
        if self._pass == self._passes:
            self._end_step()

    def synchronise(self) -> None:
        """Pushes or skips what has not been pushed, and waits for all results."""
        self._push_or_skip_rest()
        self._end_step()

    def _push_or_skip_rest(self) -> None:
        self._push(sorted(self._have_gradients - self._pushed))
        for number in self._missing():
            self._skip(number)

    def _missing(self) -> List[int]:
        """The gradients that have neither been pushed nor skipped."""
        if len(self._pushed) == len(self._parameters):
            return []
        return [number for number in range(len(self._parameters))
                if number not in self._pushed and number not in self._skipped]

    def _end_step(self) -> None:
        counted = self._wait_step()
        self.is_synchronised = True
        if counted is None:
            self.is_repeated = True
            self._forget()
            return
        for number in self._skipped:
            if counted[number].most > 0:
                self._parameters[number].grad = self._memory.tensors[number]
        self._forget()

    def _wait_step(self) -> Optional[Sequence[Contributors]]:
        """As Group.wait_step. None if the step has to be made again."""
        try:
            return self.group.wait_step()
        except Aborted:
            if not self.repeats_steps:
                raise
            self.group.restart_step()
            return None

    def _skip(self, number: int) -> None:
        """Skips a gradient that this worker has not computed, and receives that of the others."""
        parameter = self._parameters[number]
        dtype, shape, _ = self._registered[number]
        if parameter.dtype is not dtype or parameter.shape != shape or not parameter.is_cpu:
            raise self._changed(number, parameter)
        self.group.skip(number, self._memory.tensors[number])
        self._skipped.add(number)

    def _forget(self) -> None:
        self._pass = 0
        self._in_backward = False
        self._computed, self._computed_bytes = [], 0
        self._have_gradients.clear()
        self._pushed.clear()
        self._skipped.clear()

    @property
    def has_begun(self) -> bool:
        """True if gradients of a step have been computed that is not synchronised."""
        return self._pass > 0 or bool(self._have_gradients)

    def give_up(self) -> None:
        """Ends a step in whose backward an exception was raised. What was pushed counts."""
        if not self._in_backward:
            return
        for number in self._missing():
            self.group.skip(number)
        self._wait_step()
        self._forget()
