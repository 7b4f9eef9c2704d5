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
# Not in the paper, so not in "all": each must be named.
OPTIONAL_FIXES = (
    "noise_log_prob", "scaled_norms", "stochastic_compensation", STOCHASTIC_TARGETS, STOCHASTIC_MOMENTS, EXACT_ERRORS,
)  # fmt: skip

COMPENSATION_OF = ("weights", "averages")
"""The parts of ``stochastic_compensation``; one of them has the name with ``_of_`` and the part."""
_FIX_OF_PART = {f"stochastic_compensation_of_{part}": "stochastic_compensation" for part in COMPENSATION_OF}
PARTS_OF_FIXES = tuple(_FIX_OF_PART)
"""Parts of fixes, which can also be chosen separately."""
_KNOWN = (*FIXES, *OPTIONAL_FIXES, *PARTS_OF_FIXES)  # The order of results.

NEED_SINGLE_STEPS = ("compound_loss_scaling", "kahan_gradients")
"""Fixes that need every single step; they are not possible for a sum of several steps."""

COMPENSATED_STEPS = "kahan_gradients"
"""Keeps the rounding errors of weights, and adds them later."""
COMPENSATED_AVERAGES = "kahan_momentum"
"""Keeps the rounding errors of averages, and adds them later."""
ROOTS_OF_MOMENTS = "hadam"
"""Keeps the root of the second moments."""
_REQUIRED_FIX = {"weights": COMPENSATED_STEPS, "averages": COMPENSATED_AVERAGES}


def is_stochastic(fixes: Collection[str], part: str) -> bool:
    """Whether increments of ``weights`` or ``averages`` are compensated with stochastic rounding."""
    return not {"stochastic_compensation", f"stochastic_compensation_of_{part}"}.isdisjoint(fixes)


def draws_random_bits(fixes: Collection[str]) -> bool:
    """Whether some fix rounds stochastically under any policy."""
    simple = {STOCHASTIC_TARGETS, STOCHASTIC_MOMENTS}
    return not simple.isdisjoint(fixes) or any(is_stochastic(fixes, part) for part in COMPENSATION_OF)


def parse_fixes(value: object) -> tuple[str, ...]:
    """Reads a selection of fixes: ``"all"``, ``"none"``, or names.

    Args:
        value: ``"all"``, ``"none"``, or a list (any iterable) of names from :data:`FIXES`, :data:`OPTIONAL_FIXES` and
            :data:`PARTS_OF_FIXES`, in any order; ``"all"`` in a list means the six.

    Returns:
        The chosen names, each once, in the order of Table 1, optional ones last, and a fix in place of all its parts;
        so equal selections have equal results.

    Raises:
        ValueError: a name does not exist (the nearest one is named) or comes twice, by itself or as part of another;
            the target of a fix is missing; or ``value`` is something else.
    """
    allowed = f'allowed are "all" (without {", ".join(OPTIONAL_FIXES)}), "none", or a list of {", ".join(_KNOWN)}'
    if isinstance(value, str):  # Only ``all`` and ``none`` are texts.
        if value in ("all", "none"):
            return FIXES if value == "all" else ()
        if value in _KNOWN:
            raise ValueError(f'fixes must be a list, got the text "{value}": write [{value}]; {allowed}')
        raise ValueError(f'unknown fixes "{value}"; {allowed}')
    if not isinstance(value, Iterable):
        raise ValueError(f"fixes must be text or a list, got {value!r}; {allowed}")  # noqa: TRY004 pydantic wants it
    names = [name for item in value for name in (FIXES if item == "all" else (item,))]
    for name in names:
        if name not in _KNOWN:
            raise ValueError(f"unknown fix {name!r}{suggestion(name, _KNOWN)}; {allowed}")
        if names.count(name) > 1:
            raise ValueError(f'the fix "{name}" is named twice')
    chosen = _combine_parts(names)
    return tuple(name for name in _KNOWN if name in chosen)


def _combine_parts(names: list[str]) -> list[str]:
    """Returns names with a fix in place of all its parts; raises ValueError if fixes contradict each other."""
    for name in names:
        if _FIX_OF_PART.get(name) in names:
            raise ValueError(
                f'the fix "{name}" is part of "{_FIX_OF_PART[name]}", which is also named; leave one of them out'
            )
    for part, fix in _REQUIRED_FIX.items():
        if is_stochastic(names, part) and fix not in names:
            other = next(name for name in PARTS_OF_FIXES if not name.endswith(part))
            raise ValueError(
                f"stochastic_compensation of {part} changes how {fix} rounds, which is not there: add {fix}, or"
                f" name only {other}"
            )
    if set(PARTS_OF_FIXES) <= set(names):  # All parts are the fix itself.
        return [*(name for name in names if name not in PARTS_OF_FIXES), "stochastic_compensation"]
    return names


@final
@dataclass(frozen=True)
class Baseline:
    """The changes of a baseline to the agent without fixes; docs/agents.md describes them.

    Attributes:
        coercion: NaN becomes 0, and an infinity the largest number of its sign, in all stored values.
        loss_scaling: the loss is multiplied by a dynamic scale, and gradients are divided by it before the optimizer.
        master_weights: parameters, gradients for the optimizer and its buffers are kept in full precision.
        initial_scale: the first loss scale; None for the config's ``initial_loss_scale``.
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
    "naive": Baseline(),  # No change: the agent without fixes.
    "coercion": Baseline(coercion=True),
    "loss_scaling": Baseline(loss_scaling=True),
    "master_weights": Baseline(loss_scaling=True, master_weights=True),
    # The defaults of torch.amp.GradScaler.
    "amp": Baseline(loss_scaling=True, initial_scale=2.0**16, growth_interval=2000),
    "eps": Baseline(eps_factor=10.0),
}
"""All baselines by name; ``none`` is the agent with the chosen fixes, all others have no fixes."""


def check_baseline(name: str) -> str:
    """Returns ``name`` if there is such a baseline.

    Raises:
        ValueError: it does not exist; the message names the nearest one.
    """
    return check_name("baseline", name, BASELINES)
