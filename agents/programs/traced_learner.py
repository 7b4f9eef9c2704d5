"""The updates of a learner from states as functions of tensors, to trace and compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from ..algorithms.learner import Learner
from ..algorithms.part import Metrics, Part
from ..experience.on_policy import Minibatch
from ..experience.replay import Batch


@final
class TracedLearner:
    """A learner as programs see it: tensors, which they change, and functions of such tensors.

    Args:
        learner: as it is, new or resumed.

    Attributes:
        learner: the same.
        tensors: all that an update reads and writes: of each optimizer and each average its tensors, by its name, and
            under ``numbers`` the hyper-parameters that are data to programs.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.tensors: dict[str, Any] = {name: one.tensors for name, one in learner.optimizers.items()}
        self.tensors |= {name: average.tensors for name, average in learner.traceable_averages.items()}
        options: dict[str, Any] = {"dtype": learner.dtype, "device": learner.device}
        self.tensors["numbers"] = {name: torch.as_tensor(value, **options) for name, value in learner.numbers.items()}

    def program(self, part: Part) -> Callable[..., Metrics]:
        """A part as a function of ``tensors`` and of the result of :func:`as_tensors`."""

        def compute(tensors: dict[str, Any], *inputs: torch.Tensor) -> Metrics:
            learner = self.learner.bound_to(tensors)
            rest = inputs[part.batch :]
            return learner.compute(part, ((learner.unpacked(inputs[0]),) if part.batch else ()) + rest)

        return compute


def as_tensors(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs of a part, with the batch as its rows."""
    return tuple(x.rows if isinstance(x, (Batch, Minibatch)) else x for x in inputs)
