"""Golden vectors: encoded inputs and outputs of a rounding, for the test bench of a hardware design."""

from __future__ import annotations

from contextlib import suppress

import torch

from ..base.errors import FormatError
from ..base.format import Format
from ..base.modes import WORD_BITS, RandomBits, Rounding
from ..base.random_words import random_words
from ..families.table import TableFormat

_SEED = 20210
_MOST_LISTED_BITS = 16
_MOST_NUMBERS = 2048
_EXHAUSTIVE_BITS = 12
_BISECTIONS = 64  # more than the bits of float64
_SPECIAL = [torch.tensor([x], dtype=torch.float64) for x in (torch.inf, -torch.inf, torch.nan)]


def golden_vectors(
    name: str, source: str = "fp32", rounding: str = "nearest-even", random_bits: int = WORD_BITS
) -> str:
    """Returns the text of a file for ``$readmemh``: words of an input and its output in hexadecimal.

    A source format of up to 12 bits is tested with all its codes. For a wider one, the inputs are the values of the
    output format (a sample of 2,048 neighbouring pairs if it has more), the borders between neighbours and of overflow,
    both zeros, infinities and NaN, and the codes before and after each. Infinities and NaN are left out if the output
    format cannot encode them; NaN becomes its canonical NaN. The text is the same on every machine.

    Args:
        name: the format of the outputs, which must encode each element on its own.
        source: the format of the inputs, such as ``fp32`` or the fixed-point format of an accumulator.
        rounding: the rounding mode.
        random_bits: for stochastic rounding, the number of random bits of an input, 1 to 32. They form a field between
            input and output. The rounding adds them to the fraction that it cuts; if there are fewer than 32, a one
            follows the last of them.

    Raises:
        FormatError: an unknown format or mode; a format that does not encode single elements; a number of random bits
            that is out of range, or that belongs to a deterministic mode.
    """
    target, source_format, mode = Format.parse(name), Format.parse(source), Rounding.parse(rounding)
    for fmt in (target, source_format):
        if not fmt.elementwise or fmt.bits > 64:
            raise FormatError(f"golden vectors need a format with a code for each element, got {fmt}")
    if mode is not Rounding.STOCHASTIC and random_bits != WORD_BITS:
        raise FormatError(f"random bits are for rounding='stochastic' only, got rounding={str(mode)!r}")
    codes = _inputs(target, source_format)
    inputs = source_format.decode(codes, torch.float64)
    fields = [("input", str(source_format), codes, source_format.bits)]
    words = None
    if mode is Rounding.STOCHASTIC:
        words = random_words(RandomBits(_SEED, bits=random_bits), inputs)
        fields.append(("random", "bits", words >> (WORD_BITS - random_bits), random_bits))
    outputs = target.encode(inputs, mode, random=words).to(torch.int64)
    fields.append(("output", str(target), outputs, target.bits))
    columns = [
        [f"{code & ((1 << bits) - 1):0{-(-bits // 4)}x}" for code in column.tolist()] for *_, column, bits in fields
    ]
    lines = [f"// {' _ '.join(f'{place}[{bits - 1}:0] {kind}' for place, kind, _, bits in fields)}, {mode}"]
    lines.append(f"// {len(codes)} words; each field fills hexadecimal digits of its own")
    return "\n".join([*lines, *map("_".join, zip(*columns, strict=True))]) + "\n"


def _low_bits(bits: int) -> int:
    """Returns a mask of the lowest bits, for int64."""
    return (1 << bits) - 1 if bits < 64 else -1


def _inputs(target: Format, source: Format) -> torch.Tensor:
    """The codes of the inputs, int64, in ascending order."""
    codes = torch.arange(1 << source.bits) if source.bits <= _EXHAUSTIVE_BITS else _codes_around(target, source)
    # The codes that have a value; a table can have fewer values than its width allows
    codes = codes[codes < len(source.numbers)] if isinstance(source, TableFormat) else codes
    inputs = source.decode(codes, torch.float64)
    keep = inputs.isfinite()
    for x in _SPECIAL:
        with suppress(FormatError):  # the format has no code for it
            target.encode(x)
            keep |= (inputs == x) | (inputs.isnan() & x.isnan())
    selected: torch.Tensor = codes[keep]
    return selected


def _codes_around(target: Format, source: Format) -> torch.Tensor:
    """The codes of a source near each value of the target and near each midpoint, and of special values."""
    if target.bits <= _MOST_LISTED_BITS:
        every = target.values()
        places = torch.linspace(0, len(every) - 2, min(len(every) - 1, _MOST_NUMBERS)).long()
        numbers, following = every[places], every[places + 1]
    else:
        halves = [random_words(RandomBits(_SEED, step), torch.empty(_MOST_NUMBERS)) for step in (1, 2)]
        numbers = target.decode((halves[0] << 32 | halves[1]) & _low_bits(target.bits), torch.float64)
        low, high = torch.tensor([[target.min], [target.max]], dtype=torch.float64)
        last = target.rounded(torch.nextafter(high, low), Rounding.DOWN)
        numbers = torch.unique(torch.cat([low, numbers[numbers < last], last]))
        following = target.rounded(torch.nextafter(numbers, high), Rounding.UP)
    # The border between two neighbours, by bisection: the midpoint for most formats, and not for posits.
    below, above = numbers, following
    for _ in range(_BISECTIONS):
        middle = (below + above) / 2
        goes_up = target.rounded(middle) >= following
        below, above = torch.where(goes_up, below, middle), torch.where(goes_up, middle, above)
    beyond = (following - numbers) / 2
    borders = torch.stack([numbers[0] - beyond[0], following[-1] + beyond[-1]])  # beyond them values overflow
    ends = torch.tensor([2.0, 4.0], dtype=torch.float64) * torch.maximum(following[-1], -numbers[0])
    zeros = torch.tensor([0.0, -0.0], dtype=torch.float64)
    points = torch.cat([numbers, following, below, above, borders, ends, -ends, zeros])
    encoded = [source.encode(points[points.isfinite()]).to(torch.int64)]
    for x in _SPECIAL:
        with suppress(FormatError):
            encoded.append(source.encode(x).to(torch.int64))
    near = torch.cat(encoded)
    codes: torch.Tensor = torch.unique(torch.cat([near, near - 1, near + 1]) & _low_bits(source.bits))
    return codes
