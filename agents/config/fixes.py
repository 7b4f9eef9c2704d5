"""The six numerical fixes by name, in the order of Table 1 of the paper, the optional ones, and the baselines.

A baseline is another method for training in low precision, which replaces the six fixes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import final

from roundoff.errors import check_name, suggestion

FIXES = ("hadam", "softplus_fix", "normal_fix", "kahan_momentum", "compound_loss_scaling", "kahan_gradients")

STOCHASTIC_TARGETS = "stochastic_targets"
STOCHASTIC_MOMENTS = "stochastic_moments"
EXACT_ERRORS = "exact_errors"
# Not the paper's: only on where it is named, "all" leaves it out.
OPTIONAL_FIXES = (
    "noise_log_prob",
    "scaled_norms",
    "stochastic_compensation",
    STOCHASTIC_TARGETS,
    STOCHASTIC_MOMENTS,
    EXACT_ERRORS,
)

COMPENSATION_OF = ("weights", "averages")
"""The parts of ``stochastic_compensation``; one of them has the name with ``_of_`` and the part."""
_PARTS = {f"stochastic_compensation_of_{what}": "stochastic_compensation" for what in COMPENSATION_OF}
PARTS_OF_FIXES = tuple(_PARTS)
"""Fixes that others consist of."""
_KNOWN = (*FIXES, *OPTIONAL_FIXES, *PARTS_OF_FIXES)

NEED_SINGLE_STEPS = ("compound_loss_scaling", "kahan_gradients")
"""Keys that several steps applied at once do not have."""

COMPENSATED_STEPS = "kahan_gradients"
"""Keeps what weights lose, and adds it later."""
COMPENSATED_AVERAGES = "kahan_momentum"
"""Keeps what averages lose, and adds it later."""
ROOTS_OF_MOMENTS = "hadam"
"""Keeps the root of the second moments."""
_NEEDED = {"weights": COMPENSATED_STEPS, "averages": COMPENSATED_AVERAGES}


def is_stochastic(fixes: Collection[str], what: str) -> bool:
    """Whether the compensation of ``weights`` or ``averages`` is one of increments that are rounded stochastically."""
    return not {"stochastic_compensation", f"stochastic_compensation_of_{what}"}.isdisjoint(fixes)


def draws_random_bits(fixes: Collection[str]) -> bool:
    """Whether some fix rounds stochastically, whatever the policy."""
    simple = {STOCHASTIC_TARGETS, STOCHASTIC_MOMENTS}
    return not simple.isdisjoint(fixes) or any(is_stochastic(fixes, what) for what in COMPENSATION_OF)


def parse_fixes(value: object) -> tuple[str, ...]:
    """Reads a selection of fixes: ``"all"``, ``"none"``, or names.

    Args:
        value: ``"all"``, ``"none"``, or a list (any iterable) of names from :data:`FIXES`, :data:`OPTIONAL_FIXES` and
            :data:`PARTS_OF_FIXES`, in any order; ``"all"`` in a list means the six.

    Returns:
        The chosen names, each once, in the order of Table 1, optional ones last, and a whole where all its parts are
        named; that makes equal selections equal.

    Raises:
        ValueError: a name does not exist (the nearest one is named) or comes twice, by itself or as part of another;
            the target of a fix is missing; or ``value`` is something else.
    """
    allowed = f'allowed are "all" (without {", ".join(OPTIONAL_FIXES)}), "none", or a list of {", ".join(_KNOWN)}'
    if isinstance(value, str):
        if value in ("all", "none"):
            return FIXES if value == "all" else ()
        if value in _KNOWN:
            raise ValueError(f'fixes must be a list, got the text "{value}": write [{value}]; {allowed}')
        raise ValueError(f'unknown fixes "{value}"; {allowed}')
    if not isinstance(value, Iterable):
        raise ValueError(f"fixes must be text or a list, got {value!r}; {allowed}")  # noqa: TRY004 pydantic wants it
    names = [name for one in value for name in (FIXES if one == "all" else (one,))]
    for name in names:
        if name not in _KNOWN:
            raise ValueError(f"unknown fix {name!r}{suggestion(name, _KNOWN)}; {allowed}")
        if names.count(name) > 1:
            raise ValueError(f'the fix "{name}" comes twice')
    return tuple(name for name in _KNOWN if name in _with_whole_ones(names))


def _with_whole_ones(names: list[str]) -> list[str]:
    """Names with a whole fix in place of all its parts; raises ValueError where fixes do not go together."""
    for name in names:
        if _PARTS.get(name) in names:
            raise ValueError(
                f'the fix "{name}" is part of "{_PARTS[name]}", which is named, too; leave one of them out'
            )
    for what, needed in _NEEDED.items():
        if is_stochastic(names, what) and needed not in names:
            other = next(part for part in PARTS_OF_FIXES if not part.endswith(what))
            raise ValueError(
                f"stochastic_compensation of {what} changes how {needed} rounds, which is not there: add {needed}, or"
                f" name {other} alone"
            )
    if set(PARTS_OF_FIXES) <= set(names):
        return [*(name for name in names if name not in PARTS_OF_FIXES), "stochastic_compensation"]
    return names


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
