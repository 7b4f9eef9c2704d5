"""Rounding as one operator of PyTorch, which torch.compile keeps in its graphs: the same kernels, the same bits."""

from __future__ import annotations

import torch

from roundoff.formats.format import Format
from roundoff.formats.modes import RandomBits


@torch.library.custom_op("roundoff::round", mutates_args=())
def round_operator(
    x: torch.Tensor,
    format: str,
    rounding: str,
    overflow: str | None,
    seed: int | None,
    step: int,
    bits: int,
    given: torch.Tensor | None,
) -> torch.Tensor:
    """:func:`roundoff.round` with all arguments as an operator may have them: no seed means no RandomBits."""
    from roundoff.formats.rounding import round  # noqa: PLC0415  it knows this module

    random = given if seed is None else RandomBits(seed, step, bits)
    return round(x, Format.parse(format), rounding=rounding, overflow=overflow, random=random)


@round_operator.register_fake
def _shape(
    x: torch.Tensor,
    format: str,  # noqa: ARG001
    rounding: str,  # noqa: ARG001
    overflow: str | None,  # noqa: ARG001
    seed: int | None,  # noqa: ARG001
    step: int,  # noqa: ARG001
    bits: int,  # noqa: ARG001
    given: torch.Tensor | None,  # noqa: ARG001
) -> torch.Tensor:
    return torch.empty_like(x)
