"""Rounding as one operator of PyTorch: the same kernels, the same bits.

torch.compile and make_fx keep it in their graphs; torch.vmap, fake tensors and wrapper subclasses have rules for it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides

from .errors import FormatError
from .format import Format, check_roundable
from .memory import is_virtual, unsimulated
from .modes import WORD_BITS, Overflow, RandomBits, Rounding, check_choices
from .names import format_called


@torch.library.custom_op("roundoff::round", mutates_args=())
def round_operator(
    x: torch.Tensor, format: str, rounding: str, overflow: str | None, seed: int | None, step: int, bits: int,
    given: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Rounds as :func:`roundoff.round`, with arguments of the types that operators allow; no seed: no RandomBits."""
    fmt, random = format_called(format), given if seed is None else RandomBits(seed, step, bits)
    mode, policy = check_choices(rounding, overflow, random)
    check_roundable(x, fmt)
    return _round_to(fmt, x.detach(), mode, policy, random)


@unsimulated
def _round_to(fmt: Format, *options: Any) -> torch.Tensor:
    return fmt.rounded(*options)


@round_operator.register_fake
def _round_fake(
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
    """Does the same as ``torch.empty_like``, but never makes a constant of the result during tracing."""
    return torch.empty_strided(x.shape, compute_elementwise_output_strides(x), dtype=x.dtype, device=x.device)


@round_operator.register_vmap
def _batched(
    info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, format: str, rounding: str, overflow: str | None,
    seed: int | None, step: int, bits: int, given: torch.Tensor | None,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """Rounds each sample separately, with its own scales and random bits."""
    x_dim, given_dim = in_dims[0], in_dims[-1]
    options = (format, rounding, overflow, seed, step, bits)
    if seed is None and given is None and x_dim is not None and format_called(format).elementwise:
        return round_operator(x.movedim(x_dim, 0), *options, None), 0
    samples = [
        round_operator(
            x if x_dim is None else x.select(x_dim, i),
            *options,
            given if given is None or given_dim is None else given.select(given_dim, i),
        )
        for i in range(info.batch_size)
    ]
    return torch.stack(samples), 0


def as_operator(
    x: torch.Tensor,
    format: Format | str,
    rounding: Rounding | str,
    overflow: Overflow | str | None,
    random: RandomBits | torch.Tensor | None,
) -> torch.Tensor:
    """Rounds by :func:`round_operator`, with the arguments of :func:`roundoff.round`.

    Raises:
        FormatError: ``x`` is of a wrapper subclass without a rule for the operator.
    """
    bits = random if isinstance(random, RandomBits) else None
    arguments = (
        x.detach(),
        str(format),
        str(rounding),
        None if overflow is None else str(overflow),
        None if bits is None else bits.seed,
        0 if bits is None else bits.step,
        WORD_BITS if bits is None else bits.bits,
        None if isinstance(random, RandomBits) else random,
    )
    if torch.compiler.is_compiling() or not is_virtual(x):
        return round_operator(*arguments)  # type: ignore[no-any-return]
    if "torch.distributed.tensor" in sys.modules:
        _register_placements()
    try:
        return round_operator(*arguments)  # type: ignore[no-any-return]
    except (NotImplementedError, TypeError, RuntimeError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FormatError(
            f"a tensor of class {type(x).__name__} cannot be rounded: it stands for numbers that lie elsewhere, and its"
            f" class has no rule for the operator roundoff::round; round what it is made of ({first_line})"
        ) from error


@cache
def _register_placements() -> None:
    """Registers the placements that the operator supports with torch.distributed.tensor.

    Shards are rounded on their devices if elements are rounded independently. If they share a scale, or use random
    bits, which depend on the positions in the full tensor, shards are gathered first; partial sums always are.
    """
    # These imports cost a second, and only those who have DTensors need them.
    from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.experimental import register_sharding  # noqa: PLC0415

    def placements(x: Any, format: str, *options: Any) -> list[tuple[list[Any], list[Any]]]:
        _, _, seed, _, _, words = options
        no_placements = [None] * 6  # for the arguments between the two tensors

        def same_placement(placement: Any) -> tuple[list[Any], list[Any]]:
            return [placement], [placement, *no_placements, None if words is None else placement]

        shards = range(x.ndim) if seed is None and format_called(format).elementwise else ()
        return [same_placement(Replicate()), *(same_placement(Shard(dim)) for dim in shards)]

    operator = torch.ops.roundoff.round.default
    register_sharding(operator)(placements)
    # PyTorch caches placements by the arguments from the first integer on; here they also depend on the format.
    schema_info = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info  # noqa: SLF001  the interface has no way to say so
    schema_info[operator] = replace(schema_info[operator], static_argnum=1)
