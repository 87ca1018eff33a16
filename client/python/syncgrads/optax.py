"""optax over syncgrads' servers (docs/python.md).

    import syncgrads.optax

    optimizer = syncgrads.optax.distributed(optax.adam(0.001), job)

Tested against stand-ins of the few functions of JAX and optax that it calls.
"""

from __future__ import annotations

from typing import Any, List, Optional

import jax
import jax.experimental
import numpy
import optax

from syncgrads.group import Group
from syncgrads.job import Job

__all__ = ["distributed"]


class _Averages:
    """Averages lists of gradients over the members of a job. Registers their group when it gets
    the first."""

    def __init__(self, job: Job, name: str, options: Any) -> None:
        self._job = job
        self._name = name
        self._options = options
        self._group: Optional[Group] = None

    def __call__(self, *gradients: Any) -> List[numpy.ndarray]:
        arrays = [numpy.asarray(gradient, order="C") for gradient in gradients]
        if self._group is None:
            specs = {str(number): array for number, array in enumerate(arrays)}
            self._group = self._job.register(self._name, specs, **self._options)
        averages = [numpy.zeros_like(array) for array in arrays]
        self._group.push_many(dict(enumerate(arrays)), dict(enumerate(averages)))
        self._group.wait_step()
        return averages


def distributed(transformation: Any, job: Job, *, name: str = "gradients", **options: Any) -> Any:
    """Returns an optax.GradientTransformation that averages gradients over the members of a job,
    and then does what `transformation` does with the averages. Works within jax.jit, where each
    step calls back to Python. `options` are those of Job.register.

    Parameters must be equal on all workers at the beginning: job.broadcast_all."""
    averages = _Averages(job, name, options)

    def update(gradients: Any, state: Any, parameters: Any = None) -> Any:
        leaves, structure = jax.tree_util.tree_flatten(gradients)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        averaged = jax.experimental.io_callback(averages, shapes, *leaves, ordered=True)
        return transformation.update(jax.tree_util.tree_unflatten(structure, averaged), state,
                                     parameters)

    return optax.GradientTransformation(transformation.init, update)
