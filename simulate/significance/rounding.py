"""Rounding the results of a program randomly, in their own precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from roundoff.locks import new_lock

from ...formats import Format, RandomBits, round, where
from ...formats.base.random_words import random_words
from ..shadow.shadow import outside_autograd
from ..shadow.twins import is_followed, widen
from ..shadow.widening import draws_random, outcomes, rerun_needs, run_wide
from ..watching.watcher import Call, Watcher

_FORMATS: Mapping[torch.dtype, Format] = MappingProxyType(
    {torch.float32: Format.parse("fp32"), torch.float16: Format.parse("fp16"), torch.bfloat16: Format.parse("bf16")}
)
_MOST_ELEMENTS = 64  # of a result, which are stored for its digits


class Randomness(StrEnum):
    """The place and the distribution of random errors, in the terms of Monte Carlo arithmetic and CADNA."""

    RESULTS = "results"
    """Results are rounded stochastically (random rounding, RR): up with the probability of the dropped fraction."""
    OPERANDS = "operands"
    """Operands are perturbed by up to half an ulp, and results are rounded to nearest (precision bounding, PB)."""
    UP_OR_DOWN = "up-or-down"
    """Results that are not exact are rounded up or down with equal probabilities (CADNA's random rounding)."""


class RandomRounding(Watcher):
    """Computes each operation in float64, and rounds its results randomly to their own dtype.

    The results of float32, float16 and bfloat16 operations change; float64 results, views and integers do not, and an
    exact result stays. Operations that draw random numbers, communicate, or do not run in float64 keep PyTorch's
    results; the latter are in :attr:`failed`. A kernel is rounded once, so the errors inside a matrix product are those
    of one rounding. The random bits depend on the seed, the number of the operation and the element.

    Args:
        randomness: where the errors are; None changes nothing, for a simulation that rounds stochastically itself.
        seed: the sample's seed.

    Attributes:
        elements: some elements of results, as float64 (at most 64 of each), by role, module, operation and call; of
            calls 1, 2, 4, 8 and so on.
        failed: reasons, by operation.
    """

    def __init__(self, randomness: Randomness | None, seed: int) -> None:
        self._randomness, self._seed, self._number = randomness, seed, 0
        self._calls: dict[tuple[str, str, str], int] = {}
        self._lock = new_lock()
        self.elements: dict[tuple[str, str, str, int], np.ndarray] = {}
        self.failed: dict[str, str] = {}

    def before(self, call: Call) -> list[torch.Tensor] | None:
        """Computes an operation in float64 that is about to overwrite its operands."""
        operation, (args, kwargs) = call.operation, call.given
        if operation is None or not any(map(_is_rounded, outcomes(operation, args, kwargs, ()))):
            return None
        with self._lock:
            return self._wide(call)

    def after(self, call: Call, token: list[torch.Tensor] | None, result: Any) -> None:
        """Replaces the results of an operation by randomly rounded ones, and keeps some elements."""
        operation, (args, kwargs) = call.operation, call.given
        if operation is None or not rerun_needs(operation).has_outcomes:
            return
        with self._lock, _disable_current_modes(), outside_autograd():
            results = outcomes(operation, args, kwargs, result)
            overwrites = bool(outcomes(operation, args, kwargs, ()))
            wide = token if overwrites or not any(map(_is_rounded, results)) else self._wide(call)
            for x, exact in zip(results, wide or (), strict=False):
                if is_followed(x) and x.shape == exact.shape:
                    self._round(x, exact)
            place = (call.place.role, call.place.module, call.place.operation)
            number = self._calls[place] = self._calls.get(place, 0) + 1
            is_power_of_two = number & (number - 1) == 0  # so that long programs store few calls
            if is_power_of_two and results and is_followed(results[0]) and results[0].numel():
                flat = results[0].detach().flatten()
                sample = flat[:: -(-flat.numel() // _MOST_ELEMENTS)]
                self.elements[*place, number] = (sample.abs() if sample.is_complex() else sample).double().cpu().numpy()

    def _wide(self, call: Call) -> list[torch.Tensor] | None:
        """Returns the outcomes in float64; None for an operation that cannot be repeated, or fails in float64."""
        assert call.operation is not None
        operation, (args, kwargs) = call.operation, call.given
        if self._randomness is None or rerun_needs(operation).communicates or draws_random(operation, args, kwargs):
            return None
        perturbs = self._randomness is Randomness.OPERANDS and not call.moves
        try:
            with _disable_current_modes(), outside_autograd():
                return run_wide(operation, args, kwargs, self._perturbed if perturbs else widen)
        except Exception as error:  # noqa: BLE001  operations raise any class, and the program must continue
            self.failed.setdefault(rerun_needs(operation).name, f"{type(error).__name__}: {error}".splitlines()[0])
            return None

    def _perturbed(self, x: torch.Tensor) -> torch.Tensor:
        """Returns an operand in float64, with a uniform error of at most half an ulp of its dtype."""
        wide = widen(x)
        if x.dtype not in _FORMATS:
            return wide
        words = random_words(self._draw(), wide)
        info = torch.finfo(x.dtype)
        # Subnormal numbers have the ulp of the smallest normal one.
        exponent = (torch.frexp(wide).exponent - 1).clamp(min=math.frexp(info.tiny)[1] - 1)
        ulp = torch.ldexp(torch.full_like(wide, info.eps), exponent)
        return torch.where(wide == 0, wide, wide + ulp * (words.double() / 2**32 - 0.5))

    def _round(self, x: torch.Tensor, exact: torch.Tensor) -> None:
        if x.is_complex():
            if x.dtype == torch.complex64:
                self._round(torch.view_as_real(x), torch.view_as_real(exact))
            return
        if x.dtype not in _FORMATS:
            return
        fmt, random = _FORMATS[x.dtype], self._draw()
        if self._randomness is Randomness.RESULTS:
            rounded = round(exact, fmt, rounding="stochastic", random=random)
        elif self._randomness is Randomness.UP_OR_DOWN:
            goes_up = random_words(random, exact) >= 1 << 31
            rounded = where(goes_up, round(exact, fmt, rounding="up"), round(exact, fmt, rounding="down"))
        else:
            rounded = exact
        x.copy_(rounded)  # to nearest, if the value is not of the dtype yet

    def _draw(self) -> RandomBits:
        self._number += 1
        return RandomBits(self._seed, self._number)


def _is_rounded(x: torch.Tensor) -> bool:
    """Whether a result has a dtype that is rounded randomly."""
    return x.dtype in _FORMATS or x.dtype == torch.complex64
