"""How the names of formats look: the beginning, which gives the family and its widths, and suffixes in any order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from roundoff.formats.block import BlockFloatFormat
from roundoff.formats.codebook import TableFormat
from roundoff.formats.elements import ScaleRule
from roundoff.formats.errors import FormatError
from roundoff.formats.fixed import FixedFormat
from roundoff.formats.floats import FloatFormat, Flush, Specials
from roundoff.formats.integer import IntegerFormat
from roundoff.formats.logarithmic import LogarithmicFormat
from roundoff.formats.modes import Overflow
from roundoff.formats.mx import ELEMENTS, MXFormat
from roundoff.formats.nvfp4 import NVFP4Format
from roundoff.formats.posit import STANDARD_EXPONENT_BITS, PositFormat
from roundoff.formats.power_of_two import PowerOfTwoFormat
from roundoff.formats.qtorch_legacy import QtorchFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.formats.format import Format

    Fields = dict[str, Any]


class Beginning(NamedTuple):
    """What names of a family begin with."""

    syntax: str
    """For messages: ``eXmY``."""
    pattern: re.Pattern[str]
    """What matches it, in lower case."""
    kind: type[Format]
    fields: Callable[[re.Match[str]], Fields]
    """What the format is made with; raises FormatError if a number is out of range."""


class Suffix(NamedTuple):
    """What may stand behind, after an underscore."""

    syntax: str
    """For messages: ``_bBLOCK``."""
    field: str
    """Which field it sets; each once."""
    pattern: re.Pattern[str]
    value: Callable[[str], Any]
    """Of the field, from what the pattern's first group found."""


def _float(found: re.Match[str]) -> Fields:
    return {
        "exponent_bits": int(found[1]),
        "significand_bits": int(found[2]),
        "bias": None if found[3] is None else int(found[3]),
        "specials": Specials(found[4] or Specials.IEEE),
    }


def _p3109(found: re.Match[str]) -> Fields:
    """IEEE P3109's binaryKpP: K bits with precision P; the finite domain is fnuz's."""
    width, precision, domain = int(found[1]), int(found[2]), found[3] or "se"
    signed = domain[0] == "s"
    if not 1 <= precision <= width - signed:
        most = "K - 1" if signed else "K"
        raise FormatError(f"binaryKpP has a precision P from 1 to {most}, got K = {width} and P = {precision}")
    return {
        "exponent_bits": width - precision + (not signed),
        "significand_bits": precision - 1,
        "specials": Specials.FNUZ if domain[1] == "f" else Specials.P3109,
        "signed": signed,
    }


def _integer(found: re.Match[str]) -> Fields:
    signed = not found[1]
    return {"width": int(found[2]), "signed": signed, "symmetric": signed}


def _table(found: re.Match[str]) -> Fields:
    try:
        return {"numbers": tuple(float(number) for number in found[1].split(","))}
    except ValueError as error:
        raise FormatError(f"the numbers of a table are written as in table[-1,0,1.5]: {error}") from None


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)


BEGINNINGS = [
    Beginning("eXmY", _pattern(r"e(\d{1,3})m(\d{1,3})(?:b(-?\d{1,5}))?(fnuz|fn)?"), FloatFormat, _float),
    Beginning("binaryKpP", _pattern(r"binary(\d{1,2})p(\d{1,2})([su][ef])?"), FloatFormat, _p3109),
    Beginning(
        "qtorch_eXmY",
        _pattern(r"qtorch_e(\d{1,3})m(\d{1,3})"),
        QtorchFormat,
        lambda found: {"exponent_bits": int(found[1]), "significand_bits": int(found[2])},
    ),
    Beginning(
        "qI.F",
        _pattern(r"(u)?q(\d{1,3})\.(\d{1,3})"),
        FixedFormat,
        lambda found: {"signed": not found[1], "integer_bits": int(found[2]), "fraction_bits": int(found[3])},
    ),
    Beginning("intN", _pattern(r"(u)?int(\d{1,3})"), IntegerFormat, _integer),
    Beginning(", ".join(ELEMENTS), _pattern(f"({'|'.join(ELEMENTS)})"), MXFormat, lambda found: {"name": found[1]}),
    Beginning(
        "bfpBITS_BLOCK",
        _pattern(r"bfp(\d{1,3})_(\d{1,9})"),
        BlockFloatFormat,
        lambda found: {"significand_bits": int(found[1]), "block": int(found[2])},
    ),
    Beginning("table[X,Y,...]", _pattern(r"table\[([^\]_]*)\]"), TableFormat, _table),
    Beginning("nvfp4", _pattern("nvfp4"), NVFP4Format, lambda _: {}),
    Beginning(
        "lnsN_F",
        _pattern(r"lns(\d{1,3})_(\d{1,3})"),
        LogarithmicFormat,
        lambda found: {"width": int(found[1]), "fraction_bits": int(found[2])},
    ),
    Beginning(
        "positN",
        _pattern(r"posit(\d{1,3})(?:_(\d{1,3}))?"),
        PositFormat,
        lambda found: {
            "width": int(found[1]),
            "exponent_bits": STANDARD_EXPONENT_BITS if found[2] is None else int(found[2]),
        },
    ),
]
"""The families; of names that several can read, the first that also reads the suffixes."""


def _overflow(*policies: str) -> Suffix:
    names = "|".join(policies)
    return Suffix(", ".join(f"_{name}" for name in policies), "overflow", _pattern(f"({names})"), Overflow)


def _block_or_none(text: str) -> int | None:
    return None if text == "unscaled" else int(text[1:])


_BLOCK = Suffix("_bBLOCK", "block", _pattern(r"b(\d{1,9})"), int)
_AXIS = Suffix("_axAXIS", "axis", _pattern(r"ax(-?\d{1,3})"), int)
_RULE = Suffix("_floor, _ceil, _even, _rceil", "scale_rule", _pattern(f"({'|'.join(ScaleRule)})"), ScaleRule)

SUFFIXES: dict[type[Format], tuple[Suffix, ...]] = {
    FloatFormat: (
        Suffix("_finite, _p3109", "specials", _pattern("(finite|p3109)"), Specials),
        Suffix("_nosub", "subnormals", _pattern("(nosub)"), lambda _: False),
        Suffix("_ftz, _daz", "flush", _pattern("(ftz|daz)"), Flush),
        Suffix("_unsigned", "signed", _pattern("(unsigned)"), lambda _: False),
        _overflow("infinity", "saturate", "nan", "propagate", "wrap"),
    ),
    PowerOfTwoFormat: (_overflow("nan", "saturate"),),
    FixedFormat: (_overflow("saturate", "wrap"),),
    IntegerFormat: (
        Suffix("_sym, _asym", "symmetric", _pattern("(a?sym)"), lambda text: text == "sym"),
        Suffix("_gGROUP", "group", _pattern(r"g(\d{1,9})"), int),
        _AXIS,
        Suffix("_pPERCENTILE", "percentile", _pattern(r"p(\d{1,3}(?:\.\d{1,12})?)"), float),
        Suffix("_sSCALE", "scale", _pattern(r"s(\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"), float),
        Suffix("_zZERO", "zero_point", _pattern(r"z(-?\d{1,6})"), int),
    ),
    MXFormat: (_BLOCK, _AXIS, _RULE),
    BlockFloatFormat: (_AXIS, _RULE),
    NVFP4Format: (_BLOCK, _AXIS),
    TableFormat: (
        Suffix("_bBLOCK, _unscaled", "block", _pattern(r"(unscaled|b\d{1,9})"), _block_or_none),
        _AXIS,
    ),
}
"""What may stand behind the names of a family, in any order."""
