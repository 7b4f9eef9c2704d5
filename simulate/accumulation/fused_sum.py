"""Describe the fused sum of a matrix unit, with a table of known units.

A tensor core does not add as IEEE arithmetic does. It aligns a block of products and the accumulator to the largest
exponent, cuts them towards zero, and adds them in fixed point. So sums of terms of one sign come out too small, and
by more the longer they are. The models below reproduce recorded outputs of the hardware bit for bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from ...formats import FloatFormat, Format, FormatError

_TEXT = re.compile(
    r"fused\(L=(?P<L>\d+),F=(?P<F>\d+),(?P<mode>rz|rne),(?P<result>\w+)(,floor=(?P<floor>-?\d+))?\)"
    r"(:(?P<operands>[\w,]+))?(/(?P<restart>\d+))?"
)
_KEYS = "L=BLOCK, F=BITS, rz|rne, RESULT[, floor=EXPONENT]"
_EXAMPLE = "fused(L=64, F=17, rz, e8m17)"
_MOST_BITS = 40  # terms of up to 2^(F + 8) are exact in float64
_MOST_PRODUCTS = 1024


@dataclass(frozen=True)
class FusedSum:
    """The arithmetic that a matrix unit uses to add the products of one block to its accumulator.

    With E the largest exponent among the products of a block and the accumulator c, and q = 2^(E - F), every product
    (exact) and c are cut towards zero to multiples of q and added exactly; the sum is converted to ``result``, and is
    the accumulator of the next block. The exponent of a product is the sum of the exponents of its operands. Those of
    subnormal operands are the smallest exponent of their format, and products are not normalized. A sum of zero is +0.

    NaN among the operands, infinity times zero and infinities of both signs give NaN; another infinity is the result.
    A sum beyond the largest value of ``result`` becomes infinity, except that cutting towards zero gives the largest
    value for a sum below 2^(emax + 1).

    It applies to contractions: matrix products, convolutions, and their gradients. Bias and ``beta * input`` are added
    afterwards, by one addition rounded to nearest in float32, as the epilogues of libraries do. Plain sums and means do
    not run on matrix units and stay unchanged.

    Attributes:
        block: Number of products in a block, L.
        fraction_bits: Number of bits that are kept below 2^E, F.
        result: Format of the accumulator.
        to_nearest: Whether the sum is rounded to nearest-even; else it is cut towards zero.
        operands: Formats that an operand may have; empty for any.
        floor: Least exponent E, which matters where all products are tiny.
        restart: Number of products after which the chain restarts from zero, and its result is added to a float32 sum
            by an addition rounded to nearest; None for one chain.
        scaled: Number of operands in a block that has a scale in the unit itself: 32 with a power of two (MX), 16 with
            an E4M3 value (NVFP4), or 0. The exponents of these scales add to the products' exponents; other scales are
            applied to the sum afterwards, as is the scale of a whole tensor in NVFP4.
        group: Number of products that are added exactly before they are aligned, as one term. Its exponent is the sum
            of the exponents of the scales (the 4-bit units of Blackwell); 1 aligns each product.
        name: Name of the unit; empty if it is hypothetical.
        evidence: Source of the model, and the evidence for it.

    Source:
        Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", ACM TACO 23(3), 2026; Xie et al., "Bit-Accurate
        Modeling of GPU Matrix Multiply-Accumulate Units", arXiv:2511.10909v2.
    """

    block: int
    fraction_bits: int
    result: FloatFormat
    to_nearest: bool = False
    operands: tuple[FloatFormat, ...] = ()
    floor: int = -(1 << 14)  # Below every exponent of a product.
    restart: int | None = None
    scaled: int = 0
    group: int = 1
    name: str = ""
    evidence: str = ""

    is_exact: ClassVar = False

    def __post_init__(self) -> None:
        checks = (
            (1 <= self.block <= _MOST_PRODUCTS, f"L must be 1 to {_MOST_PRODUCTS}", self.block),
            (1 <= self.fraction_bits <= _MOST_BITS, f"F must be 1 to {_MOST_BITS}", self.fraction_bits),
            (self.result.significand_bits <= 23 and self.result.exponent_bits <= 8,
             "the result must be a float format within float32", self.result),
            (self.restart is None or (self.restart >= self.block and self.restart % self.block == 0),
             f"the restart must be a multiple of L = {self.block}", self.restart),
            (self.scaled in (0, 16, 32), "blocks with scales have 16 (E4M3) or 32 operands", self.scaled),
            (self.group >= 1 and self.block % self.group == 0, f"a group must divide L = {self.block}", self.group),
        )  # fmt: skip
        for holds, rule, value in checks:
            if not holds:
                raise FormatError(f"{rule} in a fused sum, got {value}")

    def __str__(self) -> str:
        """The canonical text: ``h100-fp8/128``, or ``fused(L=64, F=17, rz, e8m17)``."""
        restart = "" if self.restart is None else f"/{self.restart}"
        if self.name:
            return f"{self.name}{restart}"
        mode = "rne" if self.to_nearest else "rz"
        floor = f", floor={self.floor}" if self.floor > -(1 << 14) else ""
        operands = f":{','.join(map(str, self.operands))}" if self.operands else ""
        return f"fused(L={self.block}, F={self.fraction_bits}, {mode}, {self.result}{floor}){operands}{restart}"

    @staticmethod
    def parse(text: str) -> FusedSum | None:
        """Reads the name of a unit or a spelled-out fused sum; None if the text is neither.

        Args:
            text: ``NAME[/RESTART]``, or ``fused(L=64, F=17, rz, e8m17)[:OPERANDS][/RESTART]`` with the formats of the
                operands divided by commas.

        Raises:
            FormatError: The text is a fused sum with a wrong parameter, or names an unknown unit of a known GPU.
        """
        name, slash, restart = text.partition("/")
        if name in UNITS:  # A known unit; only the restart is free.
            if slash and not restart.isdecimal():
                raise FormatError(f"a matrix unit is NAME or NAME/PRODUCTS, such as {name}/128; got {text!r}")
            return replace(UNITS[name], restart=int(restart)) if slash else UNITS[name]
        # A name that begins like a unit is a misspelt one, rather than a format.
        if name.strip().lower().partition("-")[0] in {unit.partition("-")[0] for unit in UNITS}:
            raise FormatError(f"unknown matrix unit {name!r}; known are {', '.join(UNITS)}")
        if not text.startswith("fused"):
            return None
        match = _TEXT.fullmatch(text.replace(" ", ""))
        if match is None:
            raise FormatError(f"a fused sum is fused({_KEYS})[:OPERANDS][/RESTART], such as {_EXAMPLE}; got {text!r}")
        operands = tuple(map(_float, (match["operands"] or "").split(","))) if match["operands"] else ()
        numbers: dict[str, Any] = {name: int(match[name]) for name in ("floor", "restart") if match[name]}
        return FusedSum(
            int(match["L"]), int(match["F"]), _float(match["result"]), match["mode"] == "rne", operands, **numbers
        )


def _units() -> dict[str, FusedSum]:
    recorded = "1000 recorded outputs of the hardware agree"
    model_only = "one published model, no recorded outputs"
    fp8, mx = ("fp8_e4m3", "fp8_e5m2"), ("fp8_e4m3", "fp8_e5m2", "e3m2_finite", "e2m3_finite", "e2m1_finite")
    # Name, L, F, result, floor, operands, evidence, and scaled and group if the unit has scales. Floors: Xie et al.,
    # mmasim 2.1.1; Khattak and Mikaitis's toolbox.
    rows: tuple[tuple[Any, ...], ...] = (
        ("v100-fp16", 4, 23, "e8m23", -131, ("e5m10",), recorded),
        ("t4-fp16", 8, 24, "e8m23", -132, ("e5m10",), model_only),
        ("a100-fp16", 8, 24, "e8m23", -132, ("e5m10",), recorded),
        ("a100-bf16", 8, 24, "e8m23", -132, ("e8m7",), recorded),
        ("a100-tf32", 4, 24, "e8m23", -132, ("e8m10",), recorded),
        ("ada-fp16", 8, 24, "e8m23", -132, ("e5m10",), recorded),
        ("ada-bf16", 8, 24, "e8m23", -132, ("e8m7",), recorded),
        ("ada-tf32", 4, 24, "e8m23", -132, ("e8m10",), recorded),
        ("ada-fp8", 16, 13, "e8m13", -(1 << 14), fp8, recorded),
        ("h100-fp16", 16, 25, "e8m23", -133, ("e5m10",), recorded),
        ("h100-bf16", 16, 25, "e8m23", -133, ("e8m7",), recorded),
        ("h100-tf32", 8, 25, "e8m23", -133, ("e8m10",), recorded),
        ("h100-fp8", 32, 13, "e8m13", -(1 << 14), fp8, recorded),
        ("b200-fp16", 16, 25, "e8m23", -133, ("e5m10",), recorded),
        ("b200-bf16", 16, 25, "e8m23", -133, ("e8m7",), recorded),
        ("b200-tf32", 8, 25, "e8m23", -133, ("e8m10",), recorded),
        ("b200-fp8", 32, 25, "e8m23", -133, fp8, model_only),
        ("b200-mxfp8", 32, 25, "e8m23", -133, mx, model_only, 32, 1),
        ("b200-mxfp4", 64, 35, "e8m23", -139, mx[-1:], model_only, 32, 16),
        ("b200-nvfp4", 64, 35, "e8m23", -139, mx[-1:], model_only, 16, 16),
    )
    units = {}
    for name, block, bits, result, floor, operands, evidence, *scales in rows:
        formats, (scaled, group) = tuple(map(_float, operands)), scales or (0, 1)
        units[name] = FusedSum(
            block, bits, _float(result), operands=formats, floor=floor, scaled=scaled, group=group, name=name,
            evidence=evidence,
        )  # fmt: skip
    return units


def _float(name: str) -> FloatFormat:
    fmt = Format.parse(name)
    if not isinstance(fmt, FloatFormat):
        raise FormatError(f"a fused sum is of float formats, got {fmt}")
    return fmt


UNITS = MappingProxyType(_units())
"""The matrix units with known sums, by name. AMD's units are not among them."""
