"""Kernels of operations that take a fact from the dtype: in a simulation they take it from the format.

PyTorch's own half-precision kernels round random values to the nearest, and keep them below the open end of a range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...formats import QtorchFormat, Rounding
from ..aten.tables import plain_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from ...formats import Format

    Kernel = Callable[..., Any]


def of_the_format(operation: OpOverload, kernel: Kernel, fmt: Format) -> Kernel:
    """The kernel of an operation with the facts of the format in the place of the dtype's.

    Formats of qtorch have one way to round, and keep PyTorch's kernel.
    """
    adapt = _ADAPTED.get(plain_name(operation.overloadpacket.__name__))
    return kernel if adapt is None or isinstance(fmt, QtorchFormat) else adapt(kernel, fmt)


def _below_end(kernel: Kernel, fmt: Format) -> Kernel:
    """Draws from a range without its upper end: values that rounding could take there become the neighbour inside.

    Rounding down gives the neighbour. The other draws are rounded in the policy's mode; all draws are, if no value of
    the format is in the range. Draws are finite.
    """

    def drawn_below_end(*args: Any, **kwargs: Any) -> torch.Tensor:
        drawn: torch.Tensor = kernel(*args, **kwargs)
        # Only uniform_ has a tensor and numbers: (self, from, to).
        numbers = [x for x in args if isinstance(x, float)]
        low = kwargs.get("from", numbers[0] if numbers else 0.0)
        high = kwargs.get("to", numbers[1] if len(numbers) > 1 else 1.0)
        x = torch.view_as_real(drawn) if drawn.is_complex() else drawn
        wide = x.to(torch.float32) if x.itemsize == 2 else x  # float16 and bfloat16
        inside = fmt.rounded(wide, Rounding.DOWN)
        leaves = (fmt.rounded(wide, Rounding.UP) >= high) & (inside >= low) & (inside < high)
        x.copy_(torch.where(leaves, inside, wide))
        return drawn

    return drawn_below_end


def _above_zero(kernel: Kernel, fmt: Format) -> Kernel:
    """Draws values above zero: none is less than the smallest value of the format."""
    smallest = fmt.smallest
    if smallest is None:
        return kernel

    def drawn_above_zero(*args: Any, **kwargs: Any) -> torch.Tensor:
        drawn: torch.Tensor = kernel(*args, **kwargs)
        return drawn.clamp_(min=smallest)

    return drawn_above_zero


_ADAPTED: dict[str, Callable[[Kernel, Format], Kernel]] = {
    "rand": _below_end,
    "rand_like": _below_end,
    "uniform": _below_end,
    "exponential": _above_zero,
}
"""Operations, without ``_`` behind."""
