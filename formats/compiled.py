"""Rounding as one operator of PyTorch, which torch.compile keeps in its graphs: the same kernels, the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._prims_common import compute_elementwise_output_strides

from roundoff.formats.format import Format
from roundoff.formats.modes import WORD_BITS, RandomBits

if TYPE_CHECKING:
    from roundoff.formats.modes import Overflow, Rounding


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
    return unwritten_like(x)


def unwritten_like(x: torch.Tensor) -> torch.Tensor:
    """As ``torch.empty_like``, but that it makes no constant of a tensor that stands for one."""
    return torch.empty_strided(x.shape, compute_elementwise_output_strides(x), dtype=x.dtype, device=x.device)


def as_operator(
    x: torch.Tensor,
    format: Format | str,
    rounding: Rounding | str,
    overflow: Overflow | str | None,
    random: RandomBits | torch.Tensor | None,
) -> torch.Tensor:
    """:func:`roundoff.round` by :func:`round_operator`, for code that torch.compile is tracing."""
    bits = random if isinstance(random, RandomBits) else None
    return round_operator(  # type: ignore[no-any-return]
        x.detach(),
        str(format),
        str(rounding),
        None if overflow is None else str(overflow),
        None if bits is None else bits.seed,
        0 if bits is None else bits.step,
        WORD_BITS if bits is None else bits.bits,
        None if isinstance(random, RandomBits) else random,
    )
