"""Operations that make several products of the same operands, which contract them along different axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..aten.contracted_axes import LAST, OVER_POSITIONS, Contraction, of_input_gradient
from ..composites.attention import SEEN

Compute = Callable[[Sequence[Any]], Any]
See = Callable[[str, Tensor, Contraction], Tensor]
Separate = Callable[..., Any]

_aten = torch.ops.aten


def _convolution_backward(
    compute: Compute, see: See, gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradient of the input, of the weight and of the bias, each of operands rounded for it."""
    rest = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    results: list[Tensor | None] = [None, None, None]
    if mask[0]:
        axes = of_input_gradient(transposed=transposed, groups=groups)
        factors = see("grad_output", gradient, axes["grad_output"]), x, see("weight", weight, axes["weight"])
        results[0] = compute([*factors, *rest, [True, False, False]])[0]
    if mask[1] or mask[2]:
        of_positions = see("grad_output", gradient, OVER_POSITIONS)
        factors = of_positions, see("input", x, OVER_POSITIONS) if mask[1] else x, weight
        _, *results[1:] = compute([*factors, *rest, [False, mask[1], mask[2]]])
    return tuple(results)


def _of_attention(formula: Callable[..., Any]) -> Separate:
    def separate(_compute: Compute, see: See, *args: Any, **kwargs: Any) -> Any:
        def along(name: str, x: Tensor, axis: int) -> Tensor:
            return see(name, x, LAST if axis == -1 else Contraction(axis))

        return formula(*args, **kwargs, see=along)

    return separate


_SEPARATE: dict[Any, Separate] = {
    _aten.convolution_backward: _convolution_backward,
    **{operation: _of_attention(formula) for operation, formula in SEEN.items()},
}


def separate_products(operation: OpOverload) -> Separate | None:
    """A function that computes an operation product by product; None if all its products contract an operand alike.

    It takes ``compute(args)``, which runs the operation itself; ``see(name, x, contraction)``, which gives the operand
    as it is seen by a product; and the operation's arguments. It returns the operation's results, or
    ``NotImplemented`` for unsupported arguments.
    """
    return _SEPARATE.get(operation.overloadpacket)
