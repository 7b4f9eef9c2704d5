"""Keeping the variance inside a layer normalization from overflowing: standardized weights, and outputs scaled down."""

from __future__ import annotations

import torch

# Of the reference implementation of weight standardization: no unit is divided by 0.
_EPS = 1e-5


def standardize_units(weight: torch.Tensor) -> torch.Tensor:
    """Weight standardization: every unit's weights, minus their mean, divided by their standard deviation.

    w_ij <- (w_ij - mean_j w_ij) / (std_j w_ij + 1e-5). The units' scales become equal, so that even layer normalization
    notices: this is another parametrization, which can represent less.

    Args:
        weight: (out, in), any floating-point type, in >= 2.

    Returns:
        The same shape and dtype; a unit whose weights are all equal becomes 0. NaN spreads over its unit.

    Source:
        Qiao et al., "Weight Standardization", equations 2 to 4; Low-precision SAC, Section 4.6 and Appendix G.
    """
    std, mean = torch.std_mean(weight, dim=1, keepdim=True)
    return (weight - mean) / (std + _EPS)


def standardize_matrix(weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardizes all weights of a layer together, and its bias with them.

    W <- (W - mean(W)) / s, b <- b / s, s = std(W) + 1e-5. All outputs are divided by s, and the same number is taken
    from each: layer normalization gives what it gave without, in exact arithmetic and but for its eps.

    Args:
        weight: (out, in), any floating-point type.
        bias: (out,).

    Returns:
        Weight and bias in the same shapes. NaN spreads over both.

    Source:
        Low-precision SAC, Appendix G: "since layer-norm is invariant under rescaling the input and adding a constant
        term, these modifications will not change layernorm in infinite precision", which holds for this form.
    """
    std, mean = torch.std_mean(weight)
    scale = std + _EPS
    return (weight - mean) / scale, bias / scale


def scale_down(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Scales rows whose largest magnitude exceeds a limit down to it.

    x_i <- x_i min(1, limit / max_j |x_ij|). The factor counts as a constant in the gradient: layer normalization, for
    whose input this is meant, has no slope along it. Squares of the results stay below limit^2.

    Args:
        x: (rows, n), any floating-point type.
        limit: > 0.

    Returns:
        The same shape and dtype. A row with NaN becomes NaN; infinity becomes NaN, and the rest of its row 0.

    Source:
        Low-precision SAC, Appendix G: "further down-scale output larger than 10 to 10".
    """
    with torch.no_grad():
        # Divided by the larger of the two, no quotient overflows, and one below the limit is exactly 1.
        factor = limit / x.abs().amax(dim=1, keepdim=True).clamp(min=limit)
    return x * factor
