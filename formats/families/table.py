"""Formats given as a table of numbers: NF4 and FP4 of bitsandbytes, ternary, binary, any that a user writes down."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import finfo

from roundoff.locks import cached_property

from .. import gpu
from ..arithmetic.codes import code_dtype, integer_codes
from ..arithmetic.cutting import blocks_in, check_axis, cut, joined
from ..arithmetic.patterns import float64_bits
from ..base.errors import FormatError
from ..base.family import Family, check_encodable, check_integer
from ..base.memory import along, unsimulated
from ..base.modes import Rounding, RoundingOptions
from ..base.names import AXIS_SUFFIX, Beginning, Suffix, register
from ..base.on_device import table_on, where
from ..base.random_words import random_words
from ..cpu.addressed import Addressed
from ..cpu.numbers.tables import (
    HIGH,
    LOW,
    TIE_HIGH,
    TIE_LOW,
    Table,
    addressed_table,
    addressed_table_in_blocks,
    round_scaled,
    round_to_table,
)
from ..scales.shared_scale import AXES, BLOCKS

# Dettmers et al., "QLoRA: Efficient finetuning of quantized LLMs" (2023), appendix E.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
# bitsandbytes' FP4: sign, two exponent bits and one significand bit, in codes of its own; 8 is a second zero.
_FP4 = tuple(k / 12 for k in (0, 0.0625, 8, 12, 4, 6, 2, 3))
FP4_BNB = _FP4 + tuple(-x for x in _FP4)
NAMED: dict[str, tuple[tuple[float, ...], int | None]] = {
    "nf4": (NF4, 64),
    "fp4_bnb": (FP4_BNB, 64),
    "ternary": ((-1.0, 0.0, 1.0), None),
    "binary": ((-1.0, 1.0), None),
}
"""The tables that have a name, with the number of elements that share a scale."""


@unsimulated  # a format may be used for the first time inside a simulation
def table_of(values: Sequence[float], dtype: torch.dtype) -> Table:
    """Makes a table of numbers in ascending order, each exact in ``dtype``."""
    modes = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]  # Random words lack thresholds.
    negatives = sum(number < 0 for number in values)
    gaps = list(enumerate(pairwise(values), -negatives))  # Place 0 is the smallest value that is not negative.
    choices = {mode: [_choice(mode, place, *gap) for place, gap in gaps] for mode in modes}
    thresholds = {
        mode: [_threshold(choice, *gap) for choice, (_, gap) in zip(choices[mode], gaps, strict=True)] for mode in modes
    }
    return Table(
        torch.tensor(values, dtype=dtype, device="cpu"),
        {mode: torch.tensor(numbers, dtype=torch.float64, device="cpu") for mode, numbers in thresholds.items()},
        {mode: torch.tensor(numbers, device="cpu") for mode, numbers in choices.items()},
        max(map(abs, values)),
    )


def _choice(mode: Rounding, place: int, low: float, high: float) -> int:
    """Returns the choice of a mode between two adjacent values, the lower at index ``place``, counted from zero."""
    even = TIE_LOW if place % 2 == 0 else TIE_HIGH
    return {
        Rounding.NEAREST_EVEN: even,
        Rounding.NEAREST_AWAY: TIE_HIGH if abs(high) >= abs(low) else TIE_LOW,
        Rounding.NEAREST_UP: TIE_HIGH,
        Rounding.TOWARD_ZERO: even if abs(low) == abs(high) else LOW if abs(low) < abs(high) else HIGH,
        Rounding.TO_ODD: HIGH if place % 2 == 0 else LOW,
        Rounding.UP: HIGH,
        Rounding.DOWN: LOW,
    }[mode]


def _threshold(choice: int, low: float, high: float) -> float:
    """The largest float64 that goes to the lower of two numbers."""
    if choice in (LOW, HIGH):
        return math.nextafter(high, -math.inf) if choice == LOW else low
    middle = (Fraction(low) + Fraction(high)) / 2  # Exact: in float64 the sum may be rounded.
    near = float(middle)
    if Fraction(near) == middle:  # A tie is possible.
        return near if choice == TIE_LOW else math.nextafter(near, -math.inf)
    return near if Fraction(near) < middle else math.nextafter(near, -math.inf)


COUNTS = range(2, (1 << 16) + 1)
SCALED_COUNTS = range(2, (1 << 8) + 1)  # The loop keeps a block's numbers in its scratch.
SMALLEST_SCALE = 2.0**-126


class ScaledCodes(NamedTuple):
    """A tensor as it is stored in a table format with scales: x = scale * number of the code."""

    codes: torch.Tensor
    """Unsigned integers, the shape of the tensor."""
    scales: torch.Tensor
    """The scales, in the tensor's dtype, a block's one in place of its elements."""


@dataclass(frozen=True)
class TableFormat(Family):
    """The numbers of a table: each value rounds to one of its two neighbours in the table.

    ``TableFormat((-1.0, 0.0, 1.0))`` is called ``ternary``; tables without a name are called ``table[-1,0.5,1]``. In a
    tensor the carrier's nearest float represents each number. Without scales, rounding is exact in every mode. In
    nearest-even, a tie goes to the value with the even place; places count from the smallest value that is not
    negative, which has place 0. So a table of the numbers of a float or fixed-point format rounds as that format does.
    To-odd takes odd places. Toward-zero takes the smaller magnitude; where both have the same, the nearer. The
    probability of stochastic rounding is (x - lower) / (upper - lower), in float64. Beyond either end it saturates, in
    every mode, infinity too; NaN stays NaN. Negative zero does not exist.

    With ``block``, each block of neighbours along ``axis`` shares a scale, as in QLoRA: s = A / M, A the largest
    magnitude of the block and M the table's, at least 2^-126, and at most so large that no number is infinite. To
    nearest-even, x becomes s v with the v nearest to x (1/s), every operation rounded to the carrier, as in
    bitsandbytes (but for ties). The other modes choose between the two floats s v next to x. A block of zeros
    stays zeros. A block with a NaN or an infinity lacks a scale and becomes NaN altogether. QLoRA cuts the flattened
    tensor into blocks: the same blocks as here where the last axis is a multiple of the block. Its second
    quantization, of the scales, is not done here.

    Args:
        numbers: in the order of their codes, from 0; 2 to 65536 of them, or 256 with scales. Of equal numbers only the
            first code is used.
        block: the number of elements that share a scale; None for no scales.
        axis: the axis of the blocks.

    Raises:
        FormatError: there are too few or too many different numbers, or one is not finite.
    """

    numbers: tuple[float, ...]
    block: int | None = None
    axis: int = -1

    def __post_init__(self) -> None:
        try:
            numbers = tuple(float(number) + 0.0 for number in self.numbers)  # -0 becomes 0
        except (TypeError, ValueError) as error:
            raise FormatError(f"numbers of a table format must be a sequence of numbers: {error}") from None
        if not all(map(math.isfinite, numbers)):
            raise FormatError("numbers of a table format must be finite")
        allowed = COUNTS if self.block is None else SCALED_COUNTS
        if len(set(numbers)) < 2 or len(numbers) not in allowed:
            raise FormatError(
                f"a table format {'' if self.block is None else 'with scales '}has from 2 different numbers to"
                f" {allowed[-1]}, got {len(numbers)}, {len(set(numbers))} of them different"
            )
        object.__setattr__(self, "numbers", numbers)
        if self.block is not None:
            check_integer("a table format", "block", self.block, BLOCKS)
        check_integer("a table format", "axis", self.axis, AXES)

    def __str__(self) -> str:
        text = f"table[{','.join(repr(number).removesuffix('.0') for number in self.numbers)}]"
        usual = None
        for name, (numbers, block) in NAMED.items():
            if numbers == self.numbers:
                text, usual = name, block
        if self.block != usual:
            text += "_unscaled" if self.block is None else f"_b{self.block}"
        return text + (f"_ax{self.axis}" if self.axis != -1 else "")

    @property
    def bits(self) -> int:
        """Storage size of a code, in bits."""
        return (len(self.numbers) - 1).bit_length()

    @property
    def open_block(self) -> int | None:
        """The block, along the last axis."""
        return self.block if self.axis == -1 else None

    @property
    def bits_per_number(self) -> float:
        """Storage size of one number in a full block, with its share of the float32 scale."""
        return self.bits + (0.0 if self.block is None else 32 / self.block)

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Storage size of a tensor of this shape, in bits: full blocks, and a 32-bit scale for each, if any."""
        if self.block is None:
            return math.prod(shape) * self.bits
        blocks, numbers = blocks_in(shape, self.axis, self.block)
        return numbers * self.bits + blocks * 32

    @property
    def max(self) -> float | None:
        """The largest number; None with scales."""
        return max(self.numbers) if self.block is None else None

    @property
    def min(self) -> float | None:
        """The smallest number; None with scales."""
        return min(self.numbers) if self.block is None else None

    @property
    def smallest(self) -> float | None:
        """The smallest number above zero; None if no number is, or with scales."""
        return min((number for number in self.numbers if number > 0), default=None) if self.block is None else None

    def bounds(self, dtype: torch.dtype) -> tuple[float, float] | None:
        """The floats of ``dtype`` for the smallest and the largest number; None with scales."""
        if self.block is not None:
            return None
        values = self._tables[dtype].values
        return float(values[0]), float(values[-1])

    @property
    def carrier(self) -> torch.dtype:
        """float32, if it tells all numbers apart; else float64."""
        return torch.float32 if self.fits_in(torch.float32) else torch.float64

    @property
    def elementwise(self) -> bool:
        """Whether the format is without scales."""
        return self.block is None

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether ``dtype`` represents different numbers by different finite floats."""
        return dtype in self._tables

    def _values(self) -> torch.Tensor:
        """All numbers as the carrier holds them."""
        return self._tables[self.carrier].values.to(torch.float64)

    @cached_property
    def _tables(self) -> dict[torch.dtype, Table]:
        tables = {}
        for dtype, kind in ((torch.float32, np.float32), (torch.float64, np.float64)):
            with np.errstate(over="ignore"):
                values = sorted({float(kind(number)) for number in self.numbers})
            if len(values) == len(set(self.numbers)) and all(map(math.isfinite, values)):
                tables[dtype] = table_of(values, dtype)
        return tables

    def _check_shape(self, x: torch.Tensor) -> None:
        if self.block is not None and x.numel():
            check_axis(self, self.axis, x)

    @property
    def _in_order(self) -> bool:
        return self.block is not None

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        table = self._tables[source.dtype]
        if self.block is None:
            round_to_table(source, target, table, options)
            return
        axis = check_axis(self, self.axis, source)
        length, inner = along(source, axis)
        layout = (length, self.block)
        if inner == 1:
            round_scaled(source, target, layout, table, self._scales(source.dtype), options)
            return
        # Moves the axis of blocks to the end, with the words, which belong to the elements' places in the tensor.
        if options.random is not None:
            options = options._replace(random=random_words(options.random, source).movedim(axis, -1).contiguous())
        rows = source.movedim(axis, -1).clone(memory_format=torch.contiguous_format)
        round_scaled(rows, rows, layout, table, self._scales(source.dtype), options)
        target.copy_(rows.movedim(-1, axis))

    @unsimulated
    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:
        """See :meth:`.Family.addressed`."""
        table = self._tables.get(dtype)
        if table is None or self.axis != -1 or (strided and self.block is not None):
            return None
        if self.block is None:
            return addressed_table(dtype, table, rounding)
        return addressed_table_in_blocks(dtype, table, self.block, self._scales(dtype), rounding)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        table = self._tables[source.dtype]
        if self.block is None:
            gpu.to_table(source, target, table, options)
        else:
            layout = check_axis(self, self.axis, source), self.block
            gpu.to_scaled_table(source, target, layout, table, self._scales(source.dtype), options)

    def _scales(self, dtype: torch.dtype) -> tuple[float, float]:
        """The smallest and the largest scale that keep every number finite."""
        largest, limits = self._tables[dtype].largest, finfo(dtype)
        exact = math.frexp(largest)[0] == 0.5  # A power of two: the product with a scale is not rounded.
        return SMALLEST_SCALE, min(limits.max / largest * (1.0 if exact else 1.0 - limits.eps), limits.max)

    def _scale(self, tops: torch.Tensor) -> torch.Tensor:
        least, most = self._scales(tops.dtype)
        return (tops / self._tables[tops.dtype].largest).clamp(least, most)

    @cached_property
    def _codes(self) -> torch.Tensor:
        """The code of each place."""
        kind = np.float32 if self.carrier is torch.float32 else np.float64  # Different numbers stay different.
        numbers = [float(kind(number)) for number in self.numbers]
        return torch.tensor([numbers.index(value) for value in self.values().tolist()], device="cpu")

    def _codes_of(self, places: torch.Tensor) -> torch.Tensor:
        """The codes of places in ascending order."""
        return table_on(self._codes, places.device)[places].to(code_dtype(self.bits))

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor | ScaledCodes:
        """Encodes a tensor, as :class:`ScaledCodes` with scales. NaN lacks a code, as does infinity with scales."""
        if not self.fits_in(x.dtype):
            raise FormatError(f"{self} does not fit in {x.dtype}: encode a float64 tensor, for example x.double()")
        check_encodable(self, x if self.block is None else x * 0)  # Infinity times 0 is NaN.
        numbers = self.rounded(x, options.rounding, options.policy, options.random)
        values = table_on(self._tables[x.dtype].values, x.device)
        if self.block is None:
            return self._codes_of(torch.bucketize(_exact_float64(numbers), _exact_float64(values)))
        axis = check_axis(self, self.axis, x)
        tops = cut(x, axis, self.block).abs().amax(-1, keepdim=True)
        grid = _exact_float64(values * self._scale(tops) + 0.0)  # As the kernels compute it; + 0.0 removes -0.
        # A block of zeros has 0, whether the table has it or not.
        places = torch.searchsorted(grid, _exact_float64(cut(numbers, axis, self.block))).clamp(max=len(values) - 1)
        codes = self._codes_of(places)
        scales = where(tops == 0, 0.0, self._scale(tops)).squeeze(-1)
        return ScaledCodes(joined(codes, x, axis), scales.movedim(-1, axis) if x.dim() else scales.flatten())

    def _decoded(self, codes: torch.Tensor | ScaledCodes, dtype: torch.dtype | None) -> torch.Tensor:
        """Decodes integers, or codes with scales from :meth:`encode`, these in the dtype of the scales."""
        scales = None
        if isinstance(codes, ScaledCodes):
            codes, scales = codes
            dtype = scales.dtype
        places = integer_codes(self, codes, self.bits)
        if len(self.numbers) < 1 << self.bits and bool((places >= len(self.numbers)).any()):
            raise FormatError(f"{self} has codes from 0 to {len(self.numbers) - 1}, got {int(places.max())}")
        numbers = torch.tensor(self.numbers, dtype=dtype or self.carrier, device=codes.device)[places]
        if scales is None or self.block is None:
            return numbers
        axis = check_axis(self, self.axis, codes)
        scale = (scales.movedim(axis, -1) if codes.dim() else scales).unsqueeze(-1)
        return joined(cut(numbers, axis, self.block) * scale + 0.0, codes, axis)


def _exact_float64(x: torch.Tensor) -> torch.Tensor:
    """Numbers in float64, including subnormal numbers that the processor would treat as zeros."""
    return float64_bits(x).view(torch.float64).contiguous()


def _from_numbers(match: re.Match[str]) -> dict[str, Any]:
    try:
        return {"numbers": tuple(float(number) for number in match[1].split(","))}
    except ValueError as error:
        raise FormatError(f"the numbers of a table are written as in table[-1,0,1.5]: {error}") from None


register(
    TableFormat,
    beginnings=[Beginning("table[X,Y,...]", r"table\[([^\]_]*)\]", _from_numbers)],
    suffixes=[
        Suffix(
            "_bBLOCK, _unscaled",
            "block",
            r"(unscaled|b\d{1,9})",
            lambda text: None if text == "unscaled" else int(text[1:]),
        ),
        AXIS_SUFFIX,
    ],
    aliases={name: TableFormat(*table) for name, table in NAMED.items()},
    called="table",
)
