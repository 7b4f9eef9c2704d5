"""Exact elementwise arithmetic as operators of PyTorch, for the graph of a program that is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...formats import RandomBits, Rounding
from ...formats.base.operator import unwritten_like
from ..numbers.host_numbers import TracedNumber
from ..numbers.number_tensors import tensor_of
from ..presence.draws import bits_after
from .carrier_rounding import CarrierRounding
from .results import CARRIERS, FormulaCall, ResultRounding, ResultRoundings, result

Maybe = torch.Tensor | None
DrawAt = Callable[[], tuple[RandomBits, Maybe]]


def is_traced(call: FormulaCall) -> bool:
    """Whether operands represent tensors of a program that is traced."""
    return any(isinstance(x, FakeTensor) for x in call.tensors)


def traced(call: FormulaCall, ways: ResultRoundings, draw: DrawAt) -> Any:
    """Computes :func:`~roundoff.simulate.rounded_once.results.result` by an operator in the graph; a new tensor.

    Args:
        call: the computation.
        ways: the roundings of results, for each dtype that is rounded once.
        draw: gives the random bits for stochastic rounding, and where the bits of the program begin.
    """
    way = ways.get(call.layout().dtype)
    if way is None or any(isinstance(x, complex) for x in call.operands):
        return NotImplemented
    operators: Any = torch.ops.roundoff
    if way.is_nearest_root:
        return operators.sqrt.default(call.operands[0].to(way.dtype))  # also of integers
    values = [tensor_of(x, way.dtype) if isinstance(x, TracedNumber) else x for x in (*call.operands, call.factor)]
    *tensors, v = [x if isinstance(x, torch.Tensor) else None for x in values]
    *numbers, factor = [0.0 if isinstance(x, torch.Tensor) else float(x) for x in values]
    x, a, b = [*tensors, None, None][:3]  # Formulas of fewer operands ignore the others.
    random, place = draw() if way.draws else (None, None)
    drawn = (place, 0) if random is None else (place, random.step)
    mode, saturating = str(way.carrier.mode), way.carrier.saturating
    return operators.exactly.default(call.formula, x, a, b, v, numbers, factor, mode, saturating, *drawn)


torch.library.define(
    "roundoff::exactly",
    "(str formula, Tensor? x, Tensor? a, Tensor? b, Tensor? v, float[] numbers, float factor, str mode,"
    " bool saturating, Tensor? place, int offset) -> Tensor",
)
torch.library.define("roundoff::sqrt", "(Tensor x) -> Tensor")


def _call_from(formula: str, x: Maybe, a: Maybe, b: Maybe, numbers: Sequence[float], factor: Any) -> FormulaCall:
    """The call that became these arguments."""
    operands = [number if tensor is None else tensor for tensor, number in zip((x, a, b), numbers, strict=False)]
    return FormulaCall(formula, tuple(operands), factor)


def _exactly(
    formula: str, x: Maybe, a: Maybe, b: Maybe, v: Maybe, numbers: Sequence[float], factor: float, mode: str,
    saturating: bool, place: Maybe, offset: int,
) -> torch.Tensor:  # fmt: skip
    call = _call_from(formula, x, a, b, numbers, factor if v is None else v.item() if v.is_cpu else v)
    draw: Any = lambda: bits_after(place, offset)  # type: ignore[arg-type]  # noqa: E731  there is a place then
    computed: torch.Tensor = result(call, _ways(formula, mode, saturating), draw)
    return computed


@cache
def _ways(formula: str, mode: str, saturating: bool) -> ResultRoundings:
    carrier = CarrierRounding(Rounding(mode), saturating)
    return {dtype: ResultRounding(formula, dtype, carrier) for dtype in CARRIERS}


def _exactly_fake(
    formula: str, x: Maybe, a: Maybe, b: Maybe, _v: Maybe, numbers: Sequence[float], factor: float, *_: Any
) -> torch.Tensor:
    return unwritten_like(_call_from(formula, x, a, b, numbers, factor).layout())


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    computed: torch.Tensor = result(FormulaCall("root", (x,)), _ways("root", "nearest-even", False), None)  # type: ignore[arg-type]
    return computed


for _device in ("CPU", "CUDA"):
    torch.library.impl("roundoff::exactly", _device, _exactly)
    torch.library.impl("roundoff::sqrt", _device, _sqrt)
torch.library.register_fake("roundoff::exactly", _exactly_fake)
torch.library.register_fake("roundoff::sqrt", lambda x: unwritten_like(FormulaCall("root", (x,)).layout()))
