"""The names of the families other than floats: how they look, and the format that each stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from roundoff.formats.block import BlockFloatFormat
from roundoff.formats.elements import ScaleRule
from roundoff.formats.fixed import FixedFormat
from roundoff.formats.integer import IntegerFormat
from roundoff.formats.logarithmic import LogarithmicFormat
from roundoff.formats.modes import Overflow
from roundoff.formats.mx import BLOCK, ELEMENTS, MXFormat
from roundoff.formats.nvfp4 import BLOCK as NVFP4_BLOCK
from roundoff.formats.nvfp4 import NVFP4Format
from roundoff.formats.posit import STANDARD_EXPONENT_BITS, PositFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.formats.format import Format

# Beside the aliases, canonical names that somebody is likely to misspell: the nearest one is suggested.
ALIASES: dict[str, Format] = {
    "mxfp4": MXFormat("mxfp4_e2m1"),
    **{name: MXFormat(name) for name in ELEMENTS},
    "int8": IntegerFormat(8),
    "uint8": IntegerFormat(8, signed=False, symmetric=False),
    "nvfp4": NVFP4Format(),
    "bfp8_16": BlockFloatFormat(8, 16),
    "lns8_3": LogarithmicFormat(8, 3),
    "posit8": PositFormat(8),
    "posit16": PositFormat(16),
    "posit32": PositFormat(32),
}

_AXIS = r"(?:_ax(?P<axis>-?\d{1,3}))?"
_SCALE_RULE = rf"(?:_(?P<rule>{'|'.join(ScaleRule)}))?"
_FIXED = re.compile(r"(?P<unsigned>u)?q(?P<i>\d{1,3})\.(?P<f>\d{1,3})(?:_(?P<overflow>saturate|wrap))?", re.ASCII)
_INTEGER = re.compile(
    r"(?P<unsigned>u)?int(?P<width>\d{1,3})(?:_(?P<zero>sym|asym))?(?:_g(?P<group>\d{1,9}))?" + _AXIS +
    r"(?:_p(?P<percentile>\d{1,3}(?:\.\d{1,12})?))?"
    r"(?:_s(?P<scale>\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)(?:_z(?P<zero_point>-?\d{1,6}))?)?",
    re.ASCII,
)  # fmt: skip
_MX = re.compile(rf"(?P<name>{'|'.join(ELEMENTS)})(?:_b(?P<block>\d{{1,9}}))?" + _AXIS + _SCALE_RULE, re.ASCII)
_BLOCK_FLOAT = re.compile(r"bfp(?P<bits>\d{1,3})_(?P<block>\d{1,9})" + _AXIS + _SCALE_RULE, re.ASCII)
_NVFP4 = re.compile(r"nvfp4(?:_b(?P<block>\d{1,9}))?" + _AXIS, re.ASCII)
_LOGARITHMIC = re.compile(r"lns(?P<bits>\d{1,3})_(?P<f>\d{1,3})", re.ASCII)
_POSIT = re.compile(r"posit(?P<n>\d{1,3})(?:_(?P<es>\d{1,3}))?", re.ASCII)


def _whole(text: str | None, default: int) -> int:
    return default if text is None else int(text)


def _or_none(text: str | None) -> int | None:
    return None if text is None else int(text)


def _fixed(found: re.Match[str]) -> Format:
    overflow = Overflow(found["overflow"] or Overflow.SATURATE)
    return FixedFormat(int(found["i"]), int(found["f"]), not found["unsigned"], overflow)


def _integer(found: re.Match[str]) -> Format:
    signed = not found["unsigned"]
    return IntegerFormat(
        int(found["width"]),
        signed=signed,
        symmetric={"sym": True, "asym": False}.get(found["zero"], signed),
        axis=_or_none(found["axis"]),
        group=_or_none(found["group"]),
        percentile=None if found["percentile"] is None else float(found["percentile"]),
        scale=None if found["scale"] is None else float(found["scale"]),
        zero_point=_whole(found["zero_point"], 0),
    )


def _mx(found: re.Match[str]) -> Format:
    rule = ScaleRule(found["rule"] or ScaleRule.FLOOR)
    return MXFormat(found["name"], _whole(found["block"], BLOCK), _whole(found["axis"], -1), rule)


def _block_float(found: re.Match[str]) -> Format:
    rule = ScaleRule(found["rule"] or ScaleRule.FLOOR)
    return BlockFloatFormat(int(found["bits"]), int(found["block"]), _whole(found["axis"], -1), rule)


def _nvfp4(found: re.Match[str]) -> Format:
    return NVFP4Format(_whole(found["block"], NVFP4_BLOCK), _whole(found["axis"], -1))


def _logarithmic(found: re.Match[str]) -> Format:
    return LogarithmicFormat(int(found["bits"]), int(found["f"]))


def _posit(found: re.Match[str]) -> Format:
    return PositFormat(int(found["n"]), _whole(found["es"], STANDARD_EXPONENT_BITS))


FAMILIES: list[tuple[str, re.Pattern[str], Callable[[re.Match[str]], Format]]] = [
    ("qI.F and uqI.F (fixed point: q3.4 is 1 sign, 3 integer, 4 fraction bits; with _wrap behind)", _FIXED, _fixed),
    (
        "intN and uintN (with _sym, _asym, _gGROUP, _axAXIS, _pPERCENTILE, or _sSCALE_zZERO behind)",
        _INTEGER,
        _integer,
    ),
    (f"{', '.join(ELEMENTS)} (with _bBLOCK, _axAXIS, _ceil, _even, _rceil behind)", _MX, _mx),
    ("bfpBITS_BLOCK (block floating point; with _axAXIS, _ceil, _even, _rceil behind)", _BLOCK_FLOAT, _block_float),
    ("nvfp4 (with _bBLOCK, _axAXIS behind)", _NVFP4, _nvfp4),
    ("lnsN_F (logarithmic: N bits, F of them fraction bits of log2)", _LOGARITHMIC, _logarithmic),
    ("positN and positN_ES (posit16 is posit16_2)", _POSIT, _posit),
]
"""For each family what its names look like for messages, the pattern of a whole name, and how to make its format."""
