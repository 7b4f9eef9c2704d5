"""The six numerical fixes by name, in the order of Table 1 of the paper, and what may be added to them."""

from __future__ import annotations

from collections.abc import Iterable

from roundoff.errors import suggestion

FIXES = (
    "hadam",
    "softplus_fix",
    "normal_fix",
    "kahan_momentum",
    "compound_loss_scaling",
    "kahan_gradients",
)

# Not the paper's: only on where it is named, "all" leaves it out.
OPTIONAL_FIXES = ("noise_log_prob", "scaled_norms")

NEED_SINGLE_STEPS = ("compound_loss_scaling", "kahan_gradients")
"""What several steps that are applied at once know nothing of."""

COMPENSATED_STEPS = "kahan_gradients"
"""Keeps what weights lose, and adds it later."""


def parse_fixes(value: object) -> tuple[str, ...]:
    """Reads a selection of fixes: ``"all"``, ``"none"``, or names.

    Args:
        value: ``"all"``, ``"none"``, or a list (any iterable) of names from :data:`FIXES`
            and :data:`OPTIONAL_FIXES`, in any order.

    Returns:
        The chosen names, each once, in the order of Table 1, optional ones last; that makes equal selections equal.

    Raises:
        ValueError: a name does not exist (the nearest one is named) or comes twice, or ``value`` is something else.
    """
    known = FIXES + OPTIONAL_FIXES
    allowed = f'allowed are "all" (without {", ".join(OPTIONAL_FIXES)}), "none", or a list of {", ".join(known)}'
    if isinstance(value, str):
        if value in ("all", "none"):
            return FIXES if value == "all" else ()
        if value in known:
            raise ValueError(f'fixes must be a list, got the text "{value}": write [{value}]; {allowed}')
        raise ValueError(f'unknown fixes "{value}"; {allowed}')
    if not isinstance(value, Iterable):
        raise ValueError(f"fixes must be text or a list, got {value!r}; {allowed}")  # noqa: TRY004 pydantic wants it
    names = list(value)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown fix {name!r}{suggestion(name, known)}; {allowed}")
        if names.count(name) > 1:
            raise ValueError(f'the fix "{name}" comes twice')
    return tuple(name for name in known if name in names)
