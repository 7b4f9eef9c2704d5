"""From text to formats: canonical names, aliases, and what to say when there is no such format."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import TYPE_CHECKING

from roundoff.formats.errors import FormatError
from roundoff.formats.floats import EXPONENT_BITS, FP32, FP64, SIGNIFICAND_BITS, FloatFormat

if TYPE_CHECKING:
    from roundoff.formats.format import Format

ALIASES: dict[str, Format] = {
    "fp64": FP64,
    "float64": FP64,
    "fp32": FP32,
    "float32": FP32,
    "tf32": FloatFormat(8, 10),
    "fp16": FloatFormat(5, 10),
    "float16": FloatFormat(5, 10),
    "half": FloatFormat(5, 10),
    "bf16": FloatFormat(8, 7),
    "bfloat16": FloatFormat(8, 7),
}

_FLOAT = re.compile(r"e(\d{1,3})m(\d{1,3})", re.ASCII)


@cache
def parse_format(text: str) -> Format:
    """The format called ``text``; see :meth:`roundoff.formats.Format.parse`."""
    if not isinstance(text, str):
        raise FormatError(f"a format is given as text such as 'e5m10', got {text!r}")
    name = text.strip().lower()
    if name in ALIASES:
        return ALIASES[name]
    widths = _FLOAT.fullmatch(name)
    if widths is None:
        close = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise FormatError(f"unknown format {text!r}: allowed are {', '.join(ALIASES)} and eXmY (fp16 is e5m10){hint}")
    exponent_bits, significand_bits = map(int, widths.groups())
    if exponent_bits not in EXPONENT_BITS or significand_bits not in SIGNIFICAND_BITS:
        raise FormatError(
            f"format {text!r} is out of range: eXmY needs {EXPONENT_BITS[0]} <= X <= {EXPONENT_BITS[-1]} exponent bits"
            f" and {SIGNIFICAND_BITS[0]} <= Y <= {SIGNIFICAND_BITS[-1]} stored significand bits"
        )
    return FloatFormat(exponent_bits, significand_bits)
