"""The paper's baselines by name: other methods that make training in low precision work, instead of the six fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from roundoff.errors import check_name


@final
@dataclass(frozen=True)
class Baseline:
    """The changes of a baseline to the agent without fixes; docs/agents.md describes them.

    Attributes:
        coercion: NaN becomes 0, and an infinity the largest number of its sign, wherever values are kept.
        loss_scaling: gradients are computed times a dynamic scale, and divided by it before the optimizer.
        master_weights: parameters, gradients for the optimizer and its buffers are kept in full precision.
        initial_scale: where the loss scale begins; None for the config's ``initial_loss_scale``.
        growth_interval: finite steps after which it doubles; None for ``loss_scale_growth_interval``.
        eps_factor: the factor of ``adam_eps``.

    Source:
        Low-precision SAC, Section 4.3 and Appendix E.
    """

    coercion: bool = False
    loss_scaling: bool = False
    master_weights: bool = False
    initial_scale: float | None = None
    growth_interval: int | None = None
    eps_factor: float = 1.0


BASELINES = {
    "none": Baseline(),
    "naive": Baseline(),
    "coercion": Baseline(coercion=True),
    "loss_scaling": Baseline(loss_scaling=True),
    "master_weights": Baseline(loss_scaling=True, master_weights=True),
    # The defaults of torch.amp.GradScaler.
    "amp": Baseline(loss_scaling=True, initial_scale=2.0**16, growth_interval=2000),
    "eps": Baseline(eps_factor=10.0),
}
"""All baselines by name; ``none`` is the agent with whatever fixes are chosen, all others have none."""


def check_baseline(name: str) -> str:
    """Returns ``name`` if there is such a baseline.

    Raises:
        ValueError: it does not exist; the message names the nearest one.
    """
    return check_name("baseline", name, BASELINES)
