"""Random Hadamard transforms of both operands of a product, which spread outliers and leave the product what it was."""

from __future__ import annotations

from functools import cache

import torch

_GOLDEN = 2654435761  # 2^32 over the golden ratio, whose multiples hash integers (Knuth, vol. 3, 6.4)


def rotated(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Each ``size`` neighbours along ``axis`` times one orthogonal matrix: random signs, then Hadamard's matrix.

        y = x diag(s) H / sqrt(size)

    The product of two matrices that were both rotated along the axis that it sums over is the product of the two, but
    for rounding: H H^T = size I. The signs s are the same in every call, as those of NVIDIA's recipe are ("Pretraining
    Large Language Models with NVFP4", 2025, appendix). Sums are taken in the dtype of ``x``. A NaN or an infinity makes
    its neighbours NaN or infinite.

    Args:
        x: float32 or float64, any shape of at least one axis.
        axis: along which it is contracted; what is left of it behind the last ``size`` numbers stays as it is.
        size: a power of two.

    Returns:
        A new tensor of the shape of ``x``.
    """
    rows = x.movedim(axis, -1)
    whole = rows.shape[-1] // size * size
    parts = rows[..., :whole].reshape(*rows.shape[:-1], whole // size, size) @ _matrix(size, x.dtype, x.device)
    together: torch.Tensor = torch.cat([parts.flatten(-2), rows[..., whole:]], -1).movedim(-1, axis)
    return together


@cache
def _matrix(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < size:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    signs = torch.tensor([1.0 - 2.0 * ((number * _GOLDEN >> 31) & 1) for number in range(size)], dtype=torch.float64)
    matrix: torch.Tensor = signs[:, None] * hadamard / size**0.5
    return matrix.to(dtype).to(device)
