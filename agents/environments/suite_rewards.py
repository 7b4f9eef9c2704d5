"""The function of which most rewards of the control suite consist, faster for one number, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from dm_control.utils import rewards

_SCALES: dict[str, Callable[[float], np.float64]] = {
    "gaussian": lambda value: np.sqrt(-2 * np.log(value)),
    "linear": lambda value: np.float64(1 - value),
    "quadratic": lambda value: np.sqrt(1 - value),
}
"""The point at which the formula for 1 has a given value, by which distances are multiplied."""


def tolerance(
    x: Any,
    bounds: tuple[float, float] = (0.0, 0.0),
    margin: float = 0.0,
    sigmoid: str = "gaussian",
    value_at_margin: float = 0.1,
) -> Any:
    """``dm_control.utils.rewards.tolerance``: 1 within the bounds, ``value_at_margin`` where ``x`` is ``margin`` away.

    For a number, or an array of one, of float64, it is computed without arrays where the suite's rewards mostly are:
    within the bounds, and by the three commonest formulas. Everything else is computed by the suite.

    Args:
        x: a number or an array.
        bounds: lower and upper.
        margin: how far from the bounds the value has fallen to ``value_at_margin``; at 0 it falls to 0 at once.
        sigmoid: how it falls; one of the suite's names.
        value_at_margin: see above.

    Returns:
        float for a number, else an array like ``x``. For NaN what the suite gives: NaN or 0, as the formula is.
    """
    lower, upper = bounds
    is_number = isinstance(x, float)
    is_one = is_number or (isinstance(x, np.ndarray) and x.size == 1 and x.dtype == np.float64)
    if not is_one or lower > upper or margin < 0:
        return rewards.tolerance(x, bounds, margin, sigmoid, value_at_margin)
    number = x if is_number else x.item()
    if lower <= number <= upper:
        value: Any = 1.0
    elif margin == 0:
        value = 0.0
    else:
        distance = np.float64((lower - number if number < lower else number - upper) / margin)
        if sigmoid in _SCALES:
            value = _fallen(distance * _scale(sigmoid, value_at_margin), sigmoid, is_number=is_number)
        else:
            given = distance if is_number else np.array(distance, ndmin=x.ndim)
            value = rewards._sigmoids(given, value_at_margin, sigmoid)  # noqa: SLF001  its version is fixed
    return float(value) if is_number else np.array(value, ndmin=x.ndim)


@cache
def _scale(sigmoid: str, value: float) -> np.float64:
    rewards._sigmoids(0.0, value, sigmoid)  # noqa: SLF001  refuses values that it cannot have
    return _SCALES[sigmoid](value)


def _fallen(x: np.float64, sigmoid: str, *, is_number: bool) -> float:
    if sigmoid == "linear":
        return 1 - x if abs(x) < 1 else 0.0
    square = x**2 if is_number else x * x  # NumPy raises numbers to powers, but multiplies arrays
    if sigmoid == "quadratic":
        return 1 - square if abs(x) < 1 else 0.0
    gaussian: float = np.exp(-0.5 * square)
    return gaussian
