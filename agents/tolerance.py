"""The function of which most rewards of the control suite consist, faster for one number, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_control.utils import rewards


def tolerance(
    x: Any,
    bounds: tuple[float, float] = (0.0, 0.0),
    margin: float = 0.0,
    sigmoid: str = "gaussian",
    value_at_margin: float = 0.1,
) -> Any:
    """``dm_control.utils.rewards.tolerance``: 1 within the bounds, ``value_at_margin`` where ``x`` is ``margin`` away.

    For a number, or an array of one, bounds are compared without arrays, and what lies outside is given to the suite's
    own formula. Everything else is computed by the suite's function.

    Args:
        x: a number or an array.
        bounds: lower and upper.
        margin: how far from the bounds the value has fallen to ``value_at_margin``; at 0 it falls to 0 at once.
        sigmoid: how it falls; one of the suite's names.
        value_at_margin: see above.

    Returns:
        float for a number, else an array like ``x``. NaN for NaN, but 0 if the margin is 0.
    """
    lower, upper = bounds
    is_number = isinstance(x, float)
    if not (is_number or (isinstance(x, np.ndarray) and x.size == 1)) or lower > upper or margin < 0:
        return rewards.tolerance(x, bounds, margin, sigmoid, value_at_margin)
    number = x if is_number else x.item()
    if lower <= number <= upper:
        value: Any = 1.0
    elif margin == 0:
        value = 0.0
    else:
        distance: Any = np.float64((lower - number if number < lower else number - upper) / margin)
        if not is_number:  # the formula computes the square of an array otherwise than that of a number
            distance = np.array(distance, ndmin=x.ndim)
        value = rewards._sigmoids(distance, value_at_margin, sigmoid)  # noqa: SLF001  its version is fixed
    return float(value) if is_number else np.array(value, ndmin=x.ndim)
