"""Models of the energy or area that products cost: tables with their source, and a formula of operand widths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ...formats import FixedFormat, FloatFormat, Format, FormatError, IntegerFormat

if TYPE_CHECKING:
    import pandas as pd

_KEYS = {"name", "source", "unit", "multiply", "add", "read", "write"}  # of a file, which has no formula by width


class ModelledCost(NamedTuple):
    """The cost of a program's products and traffic according to a model."""

    value: float | None
    """In the model's unit, for all entries that the model has values for; None without any."""
    unit: str
    text: str
    """The value in words, with the model's name and source, and the entries without a number."""
    missing: Mapping[str, int]
    """Multiply-accumulates that the model has no value for, by formats."""


@dataclass(frozen=True)
class CostModel:
    """The cost of a multiplication and an addition, by format, according to a source.

    Args:
        name: name of the model.
        source: the publication of the values.
        unit: unit of the numbers, such as pJ.
        multiply: the cost of a multiplication, by format, or by both formats as ``a*b``.
        add: the cost of an addition, by the accumulator's format.
        read: the cost of a bit read from memory; 0 ignores traffic.
        write: the cost of a bit written.
        by_width: whether multiplications missing in ``multiply`` cost the number of an array multiplier's cells.
    """

    name: str
    source: str
    unit: str
    multiply: Mapping[str, float] = field(default_factory=dict)
    add: Mapping[str, float] = field(default_factory=dict)
    read: float = 0.0
    write: float = 0.0
    by_width: bool = False

    @staticmethod
    def parse(description: str | Mapping[str, Any]) -> CostModel:
        """Returns a model by its name, or makes one of plain data such as a YAML file: the arguments of this class.

        Raises:
            FormatError: the model does not exist; or a key is missing, or wrong.
        """
        if isinstance(description, str):
            if description not in MODELS:
                raise FormatError(
                    f"there is no cost model {description!r}: name {', '.join(MODELS)}, or a YAML file with name,"
                    " source, unit, multiply and add"
                )
            return MODELS[description]
        if not isinstance(description, Mapping):
            raise FormatError(f"a cost model is a mapping with {', '.join(sorted(_KEYS))}, got {description!r}")
        unknown = [str(key) for key in description if key not in _KEYS]
        if unknown:
            raise FormatError(f"a cost model has no {', '.join(unknown)}: allowed are {', '.join(sorted(_KEYS))}")
        for key in ("name", "source", "unit"):
            if not isinstance(description.get(key), str) or not description[key].strip():
                raise FormatError(f"a cost model needs {key}, a text: figures are never shown without it")
        if description["name"] in MODELS:
            raise FormatError(f"a new cost model needs another name than {description['name']}: that one is there")
        return CostModel(
            str(description["name"]),
            str(description["source"]),
            str(description["unit"]),
            _parse_costs("multiply", description.get("multiply", {})),
            _parse_costs("add", description.get("add", {})),
            _parse_cost("read", description.get("read", 0.0)),
            _parse_cost("write", description.get("write", 0.0)),
        )

    def of(self, products: pd.DataFrame, totals: Mapping[str, float]) -> ModelledCost:
        """Computes the cost of a program's products and traffic by this model.

        Args:
            products: the table of a ``Cost``.
            totals: its totals.
        """
        value, missing = 0.0, Counter[str]()
        columns = (products[name] for name in ("a", "b", "accumulator", "macs"))
        for a, b, accumulator, macs in zip(*columns, strict=True):
            price = self.price(a, b, accumulator)
            if price is None:
                missing[f"{a} x {b}, added in {accumulator}"] += int(macs)
            else:
                value += float(macs) * price
        value += 8 * (self.read * totals["bytes_read"] + self.write * totals["bytes_written"])  # prices are of bits
        counted = products["macs"].sum() > sum(missing.values()) or self.read or self.write
        figure = f"{value:.4g} {self.unit}" if counted else "nothing"
        text = f"model {self.name}: {figure} (source: {self.source})"
        if missing:
            listed = "; ".join(f"{count:,} of {formats}" for formats, count in missing.items())
            text += f"\n  the model has no number for {listed}"
        return ModelledCost(value if counted else None, self.unit, text, missing)

    def price(self, a: str, b: str, accumulator: str) -> float | None:
        """Returns the cost of one multiply-accumulate; None if the model lacks a value for it."""
        product = self._multiplication(a, b)
        if self.by_width:
            return product
        # An accumulator such as e5m10/32 is priced by the format that it adds in.
        addition = _look_up(self.add, accumulator.partition("/")[0].partition("*")[0].partition("+")[0])
        return None if product is None or addition is None else product + addition

    def _multiplication(self, a: str, b: str) -> float | None:
        # By both formats; then by the one that both have; then by the formula.
        if (of_pair := _look_up(self.multiply, f"{a}*{b}")) is not None:
            return of_pair
        prices = [_look_up(self.multiply, name) for name in (a, b)]
        if prices[0] is not None and prices[0] == prices[1] and _canonical(a) == _canonical(b):
            return prices[0]
        return _count_cells(a, b) if self.by_width else None


def _look_up(table: Mapping[str, float], name: str) -> float | None:
    if name in table:
        return table[name]
    canonical = _canonical(name)
    return next((value for key, value in table.items() if _canonical(key) == canonical), None)


def _canonical(name: str) -> str:
    """Returns the canonical name of a format, or of a pair; for integers of any scales only ``int`` and their width."""
    if "*" in name:
        return "*".join(sorted(map(_canonical, name.split("*"))))
    try:
        fmt = Format.parse(name)
    except FormatError:
        return name
    return f"int{fmt.bits}" if isinstance(fmt, IntegerFormat) else str(fmt)


def _count_cells(a: str, b: str) -> float | None:
    """Counts the cells of an array multiplier of two significands, and of the adder of both exponents."""
    widths = [_significand_and_exponent(name) for name in (a, b)]
    if None in widths:
        return None
    (p, e), (q, f) = (width for width in widths if width is not None)
    return float(p * q + max(e, f))


def _significand_and_exponent(name: str) -> tuple[int, int] | None:
    """The bits that a multiplier multiplies, and the bits of the exponent that it adds."""
    try:
        fmt = Format.parse(name)
    except FormatError:
        return None
    element: Any = getattr(fmt, "element", fmt)
    if isinstance(element, FloatFormat):  # also of blocks, whose shared scale is not multiplied
        return element.significand_bits + 1, element.exponent_bits  # with the implicit bit
    if isinstance(fmt, (IntegerFormat, FixedFormat)) or getattr(element, "integer", False):
        return fmt.bits, 0
    if element is not fmt:  # a block's, without its sign
        return element.significand_bits + 1, element.bits - 1 - element.significand_bits
    return None


def _parse_costs(key: str, table: Any) -> dict[str, float]:
    if not isinstance(table, Mapping):
        raise FormatError(f"{key} of a cost model is a mapping from formats to numbers, got {table!r}")
    for name in table:
        for part in str(name).split("*"):
            Format.parse(part)  # its error lists the formats
    return {str(name): _parse_cost(f"{key}.{name}", value) for name, value in table.items()}


def _parse_cost(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise FormatError(f"{key} of a cost model must be a finite number of at least 0, got {value!r}")
    return float(value)


MODELS = {
    "horowitz-45nm": CostModel(
        "horowitz-45nm",
        "M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, as quoted by others:"
        " arithmetic in 45 nm at 0.9 V, without memory",
        "pJ",
        {"int8": 0.2, "int32": 3.1, "fp16": 1.1, "fp32": 3.7},
        {"int8": 0.03, "int32": 0.1, "fp16": 0.4, "fp32": 0.9},
    ),
    "array-multiplier": CostModel(
        "array-multiplier",
        "a formula, not a measurement: p q cells of an AND gate and a full adder for significands of p and q bits, the"
        " implicit one included, and max(e, f) full adders for exponents of e and f bits; no adder of the sum",
        "cells",
        by_width=True,
    ),
}
"""The models that come with the package."""
