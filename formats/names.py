"""From text to formats: canonical names, aliases, and what to say when there is no such format."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from roundoff.formats import family_names
from roundoff.formats.errors import FormatError
from roundoff.formats.floats import FP32, FP64, FloatFormat, Specials
from roundoff.formats.modes import Overflow
from roundoff.formats.power_of_two import PowerOfTwoFormat
from roundoff.formats.qtorch_legacy import QtorchFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.formats.format import Format

_E4M3FN = FloatFormat(4, 3, Specials.FN)
_E5M2 = FloatFormat(5, 2)
_E2M3 = FloatFormat(2, 3, Specials.FINITE)
_E3M2 = FloatFormat(3, 2, Specials.FINITE)
_E2M1 = FloatFormat(2, 1, Specials.FINITE)

ALIASES: dict[str, Format] = {
    "fp64": FP64,
    "float64": FP64,
    "binary64": FP64,
    "fp32": FP32,
    "float32": FP32,
    "binary32": FP32,
    "tf32": FloatFormat(8, 10),
    "fp24": FloatFormat(7, 16),  # 1 sign, 7 exponent and 16 significand bits, as in graphics processors of 2002
    "fp16": FloatFormat(5, 10),
    "float16": FloatFormat(5, 10),
    "binary16": FloatFormat(5, 10),
    "half": FloatFormat(5, 10),
    "bf16": FloatFormat(8, 7),
    "bfloat16": FloatFormat(8, 7),
    # ml_dtypes and ONNX.
    "float8_e3m4": FloatFormat(3, 4),
    "float8_e4m3": FloatFormat(4, 3),
    "float8_e4m3fn": _E4M3FN,
    "float8_e4m3fnuz": FloatFormat(4, 3, Specials.FNUZ),
    "float8_e4m3b11fnuz": FloatFormat(4, 3, Specials.FNUZ, bias=11),
    "float8_e5m2": _E5M2,
    "float8_e5m2fnuz": FloatFormat(5, 2, Specials.FNUZ),
    "float6_e2m3fn": _E2M3,
    "float6_e3m2fn": _E3M2,
    "float4_e2m1fn": _E2M1,
    # OCP OFP8 and MX; their FP6 and FP4 are finite, and their E4M3 is the one with NaN and no infinity.
    "fp8_e4m3": _E4M3FN,
    "fp8_e4m3fn": _E4M3FN,
    "fp8_e5m2": _E5M2,
    "fp6_e2m3": _E2M3,
    "fp6_e3m2": _E3M2,
    "fp4_e2m1": _E2M1,
    "fp8_e8m0": PowerOfTwoFormat(),
    "float8_e8m0fnu": PowerOfTwoFormat(),
    "e8m0fnu": PowerOfTwoFormat(),
    "e8m0fnu_saturate": PowerOfTwoFormat(Overflow.SATURATE),
    **family_names.ALIASES,
}

_SUFFIXES = ("fn", "fnuz", "_finite", "_p3109")
_SPECIALS = {"": Specials.IEEE, **{suffix: Specials(suffix.strip("_")) for suffix in _SUFFIXES}}
_FLOAT = re.compile(
    r"e(?P<e>\d{1,3})m(?P<m>\d{1,3})(?:b(?P<bias>-?\d{1,5}))?(?P<specials>fnuz|fn|_finite|_p3109)?"
    r"(?P<nosub>_nosub)?(?:_(?P<overflow>infinity|saturate|nan|wrap))?",
    re.ASCII,
)
_QTORCH = re.compile(r"qtorch_e(?P<e>\d{1,3})m(?P<m>\d{1,3})", re.ASCII)
_P3109 = re.compile(
    r"binary(?P<k>\d{1,2})p(?P<p>\d{1,2})(?P<domain>se|sf)?(?P<nosub>_nosub)?(?:_(?P<overflow>infinity|saturate|nan))?",
    re.ASCII,
)


def _float(found: re.Match[str]) -> FloatFormat:
    return FloatFormat(
        int(found["e"]),
        int(found["m"]),
        _SPECIALS[found["specials"] or ""],
        None if found["bias"] is None else int(found["bias"]),
        found["nosub"] is None,
        None if found["overflow"] is None else Overflow(found["overflow"]),
    )


def _p3109(found: re.Match[str]) -> FloatFormat:
    """IEEE P3109's binaryKpP: K bits with precision P, so K - P exponent bits; the finite domain is fnuz's."""
    width, precision = int(found["k"]), int(found["p"])
    if not 1 <= precision < width:
        raise FormatError(f"binaryKpP has a precision P from 1 to K - 1, got K = {width} and P = {precision}")
    specials = Specials.FNUZ if found["domain"] == "sf" else Specials.P3109
    overflow = None if found["overflow"] is None else Overflow(found["overflow"])
    return FloatFormat(width - precision, precision - 1, specials, None, found["nosub"] is None, overflow)


class Family(NamedTuple):
    """How the names of a family of formats look, and how to make the format of one."""

    syntax: str
    """For messages: ``eXmY (fp16 is e5m10)``."""
    pattern: re.Pattern[str]
    """What matches the whole name, in lower case."""
    make: Callable[[re.Match[str]], Format]
    """The format; raises FormatError if a number is out of range."""


FAMILIES: list[Family] = [
    Family("eXmY (fp16 is e5m10), with bB, fn, fnuz, _finite, _nosub, _saturate, _nan behind", _FLOAT, _float),
    Family("binaryKpP", _P3109, _p3109),
    Family("qtorch_eXmY", _QTORCH, lambda found: QtorchFormat(int(found["e"]), int(found["m"]))),
    *(Family(*row) for row in family_names.FAMILIES),
]


@cache
def parse_format(text: str) -> Format:
    """The format called ``text``; see :meth:`roundoff.formats.Format.parse`."""
    if not isinstance(text, str):
        raise FormatError(f"a format is given as text such as 'e5m10', got {text!r}")
    name = text.strip().lower()
    if name in ALIASES:
        return ALIASES[name]
    for family in FAMILIES:
        found = family.pattern.fullmatch(name)
        if found is not None:
            try:
                return family.make(found)
            except FormatError as error:
                raise FormatError(f"format {text!r} is out of range: {error}") from None
    close = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    shapes = ", ".join(family.syntax.split()[0].rstrip(",") for family in FAMILIES)
    raise FormatError(
        f"unknown format {text!r}{hint}; allowed are {shapes} (fp16 is e5m10), and names such as fp16, bf16, tf32,"
        " fp8_e4m3, mxfp4; docs/formats.md lists them all"
    )
