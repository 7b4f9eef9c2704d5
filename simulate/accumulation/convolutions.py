"""Convolutions of one to three dimensions, and their gradients, as products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from .arithmetic import RoundedSums, ShapesUnfitError, gapless


def _per_dimension(values: Sequence[int], rank: int) -> list[int]:
    """One value for each spatial dimension; a single one applies to all."""
    return list(values) * rank if len(values) == 1 else list(values)


def _padded(x: torch.Tensor, before: Sequence[int], after: Sequence[int]) -> torch.Tensor:
    """Zeros around the spatial dimensions; negative widths cut."""
    # torch's pad takes the last dimension first.
    widths = [width for pair in reversed(list(zip(before, after, strict=True))) for width in pair]
    return torch.nn.functional.pad(x, widths) if any(widths) else x


def _with_gaps(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """``stride - 1`` zeros between the elements of the spatial dimensions."""
    if all(step == 1 for step in stride):
        return x
    sizes = [max(0, (size - 1) * step + 1) for size, step in zip(x.shape[2:], stride, strict=True)]
    result = x.new_zeros(*x.shape[:2], *sizes)
    inner = result
    for dimension, step in enumerate(stride, start=2):
        inner = inner[(slice(None),) * dimension + (slice(None, None, step),)]  # A view.
    inner.copy_(x)
    return result


def _windows(
    x: torch.Tensor, kernel: Sequence[int], outputs: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """A view (N, C, *outputs, *kernel) of the padded ``x``: the elements under the kernel at every output."""
    space = x.stride()[2:]
    strides = [
        *x.stride()[:2],
        *(step * factor for step, factor in zip(space, stride, strict=True)),
        *(step * factor for step, factor in zip(space, dilation, strict=True)),
    ]
    return x.as_strided([*x.shape[:2], *outputs, *kernel], strides, x.storage_offset())


def _grouped(x: torch.Tensor, dimension: int, groups: int) -> torch.Tensor:
    """A view with the channels' dimension split in groups."""
    shape = (*x.shape[:dimension], groups, x.shape[dimension] // groups, *x.shape[dimension + 1 :])
    channels = x.stride(dimension)
    strides = (*x.stride()[:dimension], channels * shape[dimension + 1], *x.stride()[dimension:])
    return x.as_strided(shape, strides, x.storage_offset())


def _outputs(sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Returns the number of positions of a kernel in each spatial dimension of a padded input."""
    return [
        max(0, (size - (taps - 1) * gap - 1) // step + 1)
        for size, taps, step, gap in zip(sizes, kernel, stride, dilation, strict=True)
    ]


def _correlate(
    arithmetic: RoundedSums, x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], dilation: Sequence[int],
    groups: int, outputs: Sequence[int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """The plain convolution of a padded input: sums over channel, then kernel position, row-major.

    ``outputs`` is the number of positions to compute in each dimension, if fewer than all.
    """
    kernel = weight.shape[2:]
    rank = len(kernel)
    outputs = _outputs(x.shape[2:], kernel, stride, dilation) if outputs is None else outputs
    batch, out_channels = x.shape[0], weight.shape[0]
    windows = _grouped(_windows(x, kernel, outputs, stride, dilation), 1, groups)
    # (N, g, C/g, *outputs, *kernel) -> (g, C/g, *kernel, N, *outputs)
    order = [1, 2, *range(3 + rank, 3 + 2 * rank), 0, *range(3, 3 + rank)]
    depth = prod(weight.shape[1:])
    columns = windows.permute(order).reshape(groups, depth, batch * prod(outputs))
    rows = weight.reshape(groups, out_channels // groups, depth)
    result = arithmetic.contract(rows, columns)
    return result.reshape(out_channels, batch, *outputs).transpose(0, 1)


def _transposed(
    arithmetic: RoundedSums, x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], extra: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    """The transposed convolution: the plain one of the spread-out input with the flipped kernel."""
    kernel = weight.shape[2:]
    rank = len(kernel)
    # The padding at which every overlap of kernel and input counts, less the given one.
    before = [gap * (taps - 1) - pad for taps, pad, gap in zip(kernel, padding, dilation, strict=True)]
    after = [width + more for width, more in zip(before, extra, strict=True)]
    spread = _padded(_with_gaps(x, stride), before, after)
    # (C, O/g, *kernel) -> (O, C/g, *kernel)
    flipped = _grouped(weight.flip(list(range(2, 2 + rank))), 0, groups).transpose(1, 2).flatten(0, 1)
    return _correlate(arithmetic, spread, flipped, [1] * rank, dilation, groups)


def _laid_out(result: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """``result`` with the memory format that torch's own convolution gives it."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(result.dim())
    if last and any(x.is_contiguous(memory_format=last) and not x.is_contiguous() for x in operands):
        return result.contiguous(memory_format=last)
    return gapless(result)


def forward(
    arithmetic: RoundedSums,
    input: torch.Tensor,  # noqa: A002  the name in the schema
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """``aten::convolution``: the contraction, then the bias by one rounded addition.

    Raises:
        ShapesUnfitError: the kernel does not fit the input.
    """
    rank = weight.dim() - 2
    if input.dim() != weight.dim() or rank < 1 or groups < 1 or weight.shape[0] % groups:
        raise ShapesUnfitError
    if input.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        raise ShapesUnfitError
    stride, padding, dilation = (_per_dimension(values, rank) for values in (stride, padding, dilation))
    if min(*stride, *dilation) < 1 or (min(padding) < 0 and not transposed):
        raise ShapesUnfitError
    if not transposed and any(
        size + 2 * pad < gap * (taps - 1) + 1
        for size, pad, gap, taps in zip(input.shape[2:], padding, dilation, weight.shape[2:], strict=True)
    ):
        raise ShapesUnfitError
    if transposed:
        extra = _per_dimension(output_padding, rank)
        result = _transposed(arithmetic, input, weight, stride, padding, dilation, extra, groups)
    else:
        result = _correlate(arithmetic, _padded(input, padding, padding), weight, stride, dilation, groups)
    if bias is not None:
        result = arithmetic.add(result, bias.view(-1, *[1] * rank))
    return _laid_out(result, input, weight)


def backward(
    arithmetic: RoundedSums,
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002  the name in the schema
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,  # noqa: ARG001  the operation's signature
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],  # noqa: ARG001  follows from the shapes
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """``aten::convolution_backward``: gradients of input, weight and bias, None where the mask says so."""
    rank = weight.dim() - 2
    kernel = weight.shape[2:]
    stride, padding, dilation = (_per_dimension(values, rank) for values in (stride, padding, dilation))
    for_input = for_weight = for_bias = None
    if output_mask[0]:
        if transposed:
            padded = _padded(grad_output, padding, padding)
            for_input = _correlate(arithmetic, padded, weight, stride, dilation, groups, input.shape[2:])
        else:
            # Input beyond the last window gets gradient 0, like the output padding of a transposed convolution.
            reach = [
                (size - 1) * step - 2 * pad + gap * (taps - 1) + 1
                for size, step, pad, gap, taps in zip(
                    grad_output.shape[2:], stride, padding, dilation, kernel, strict=True
                )
            ]
            extra = [size - covered for size, covered in zip(input.shape[2:], reach, strict=True)]
            for_input = _transposed(arithmetic, grad_output, weight, stride, padding, dilation, extra, groups)
        for_input = _laid_out(for_input, input, weight)
    if output_mask[1]:
        # A transposed convolution exchanges the roles of input and output.
        rows, under = (input, grad_output) if transposed else (grad_output, input)
        padded = _padded(under, padding, padding)
        # Sums over batch, then output position, of `rows` (N, O, *outputs) times the padded `x` under the kernel
        rank = len(kernel)
        outputs = rows.shape[2:]
        depth = rows.shape[0] * prod(outputs)
        windows = _grouped(_windows(padded, kernel, outputs, stride, dilation), 1, groups)
        # (N, g, C/g, *outputs, *kernel) -> (g, N, *outputs, C/g, *kernel)
        order = [1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)]
        columns = windows.permute(order).reshape(groups, depth, padded.shape[1] // groups * prod(kernel))
        left = rows.transpose(0, 1).reshape(groups, rows.shape[1] // groups, depth)
        result = arithmetic.contract(left, columns)
        for_weight = result.reshape(rows.shape[1], padded.shape[1] // groups, *kernel)
        for_weight = _laid_out(for_weight, input, weight)
    if output_mask[2]:
        for_bias = arithmetic.total(grad_output.transpose(0, 1).flatten(1).mT)
    return for_input, for_weight, for_bias
