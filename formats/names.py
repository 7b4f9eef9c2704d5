"""From text to formats: aliases, beginnings and suffixes, and what to say when there is no such format."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from roundoff.formats.block import BlockFloatFormat
from roundoff.formats.codebook import TableFormat
from roundoff.formats.codebook_tables import NAMED
from roundoff.formats.errors import FormatError
from roundoff.formats.family_names import BEGINNINGS, SUFFIXES
from roundoff.formats.floats import FP32, FP64, FloatFormat, Specials
from roundoff.formats.integer import IntegerFormat
from roundoff.formats.logarithmic import LogarithmicFormat
from roundoff.formats.mx import ELEMENTS, MXFormat
from roundoff.formats.nvfp4 import NVFP4Format
from roundoff.formats.posit import PositFormat
from roundoff.formats.power_of_two import PowerOfTwoFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roundoff.formats.family_names import Suffix
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
    "mxfp4": MXFormat("mxfp4_e2m1"),
    **{name: TableFormat(*table) for name, table in NAMED.items()},
    # Canonical names that somebody is likely to misspell: the nearest one is suggested.
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


def parse_format(text: str) -> Format:
    """The format called ``text``; see :meth:`roundoff.formats.Format.parse`."""
    if not isinstance(text, str):
        raise FormatError(f"a format is given as text such as 'e5m10', got {text!r}")
    if text.strip().lower() == "e8m0":
        warnings.warn(
            "'e8m0' is a signed IEEE-like float of 8 exponent bits and no significand bits; the scale type of OCP MX is"
            " 'fp8_e8m0'",
            stacklevel=3,
        )
    return format_called(text)


@cache
def format_called(text: str) -> Format:
    """:func:`parse_format` for text that a program has made, and that nobody can have meant otherwise."""
    name = text.strip().lower()
    problem = None
    for kind, fields, rest in _readings(text, name):
        changes = _suffixes(kind, fields, rest)
        if isinstance(changes, dict):
            return _made(text, kind, {**fields, **changes})
        problem = problem or f"{changes} of {name.removesuffix(rest)!r}, which takes {_allowed(kind, fields)}"
    if problem:
        raise FormatError(f"unknown format {text!r}: there is no suffix {problem}")
    close = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    shapes = ", ".join(beginning.syntax for beginning in BEGINNINGS)
    raise FormatError(
        f"unknown format {text!r}{hint}; allowed are {shapes} (fp16 is e5m10), and names such as fp16, bf16, tf32,"
        " fp8_e4m3, mxfp4; docs/formats.md lists them all, and what may stand behind them"
    )


def _readings(text: str, name: str) -> Iterator[tuple[type[Format], dict[str, Any], str]]:
    """What a name may begin with: the class and fields of a format, and the rest of the name; the longest first."""
    found: list[tuple[str, type[Format], Any]] = []
    for alias, fmt in ALIASES.items():
        if name == alias or name.startswith(alias + "_"):
            fields = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}  # type: ignore[arg-type]
            found.append((name[len(alias) :], type(fmt), lambda fields=fields: fields))
    for beginning in BEGINNINGS:
        match = beginning.pattern.match(name)
        if match is not None and name[match.end() :][:1] in ("", "_"):
            made = beginning.fields
            found.append((name[match.end() :], beginning.kind, lambda match=match, made=made: made(match)))
    for rest, kind, fields in sorted(found, key=lambda reading: len(reading[0])):
        try:
            yield kind, fields(), rest
        except FormatError as error:
            raise _out_of_range(text, error) from None


def _suffixes(kind: type[Format], fields: dict[str, Any], rest: str) -> dict[str, Any] | str:
    """The fields that the suffixes set; or the suffix that there is not, or twice."""
    changes: dict[str, Any] = {}
    for word in rest.split("_")[1:]:
        for suffix in _possible(kind, fields):
            match = suffix.pattern.fullmatch(word)
            if match is not None and suffix.field not in changes:
                changes[suffix.field] = suffix.value(match[1])
                break
        else:
            return f"'_{word}'" + (" a second time" if f"_{word}" in rest.replace(f"_{word}", "", 1) else "")
    return changes


def _possible(kind: type[Format], fields: dict[str, Any]) -> list[Suffix]:
    """Suffixes that suit a format; special values are chosen only where the name has not chosen them."""
    chosen = fields.get("specials", Specials.IEEE) is not Specials.IEEE
    return [suffix for suffix in SUFFIXES.get(kind, ()) if not (chosen and suffix.field == "specials")]


def _allowed(kind: type[Format], fields: dict[str, Any]) -> str:
    allowed = ", ".join(suffix.syntax for suffix in _possible(kind, fields))
    return f"{allowed}, each once and in any order" if allowed else "none"


def _made(text: str, kind: type[Format], fields: dict[str, Any]) -> Format:
    try:
        return kind(**fields)
    except FormatError as error:
        raise _out_of_range(text, error) from None


def _out_of_range(text: str, error: FormatError) -> FormatError:
    return FormatError(f"format {text!r} is out of range: {error}")
