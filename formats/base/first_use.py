"""Tests of a device's kernels at their first use: for sample numbers, they must give the bits of the CPU's loops.

Kernels are compiled for combinations of card, driver, PyTorch and Triton that nobody may have tested before. Every kind
of rounding is therefore tested once in each process, before its first result: on a few thousand numbers, which takes
some milliseconds in addition to the compilation of the kernel. A kernel that fails to compile or to run, or that gives
a different bit, is replaced by the slower CPU loops on copied tensors; a :class:`KernelWarning` names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .format import Format
from .memory import unsimulated
from .modes import RandomBits, RoundingOptions
from .on_device import is_captured, put_on

_Rounder = Callable[[Any, Any, "RoundingOptions"], None]  # rounds the first tensor into the second
_LOG2_COUNT = 12  # a sample has 2^12 numbers
_SEED = 20211  # Any constant: every process tests the same numbers.


class KernelWarning(UserWarning):
    """A device's kernel is wrong, or fails; the CPU rounds in its place, more slowly."""


@dataclass(frozen=True)
class KernelKind:
    """A kind of roundings that run the same kernel with the same options.

    Attributes:
        format: the canonical text of the format.
        device: with its index.
        dtype: the dtype of the numbers, float32 or float64.
        mode: rounding mode and, where it is stochastic, where its random bits come from.
        overflow: the policy beyond the largest number.
        layout: ``"in order"`` for row-major tensors, ``"strided"`` for others, ``"listed"`` for several at once.
    """

    format: str
    device: torch.device
    dtype: torch.dtype
    mode: str
    overflow: str
    layout: str

    def __str__(self) -> str:
        return f"{self.format} on {self.device}, {self.dtype}, {self.mode}, overflow {self.overflow}, {self.layout}"


_tried: dict[KernelKind, str] = {}


def tried_kinds() -> dict[KernelKind, str]:
    """Returns the kinds that this process has tested, each with a description of its fault; empty for no fault."""
    return dict(_tried)


def kind_of(fmt: Format, source: torch.Tensor, options: RoundingOptions, layout: str) -> KernelKind:
    """Returns the kind of a rounding of ``source``."""
    mode = str(options.rounding)
    if options.random is not None:
        mode += f" by {'RandomBits' if isinstance(options.random, RandomBits) else 'random words'}"
    return KernelKind(str(fmt), source.device, source.dtype, mode, str(options.policy), layout)


def is_correct(kind: KernelKind, options: RoundingOptions, dimensions: int, kernel: _Rounder, cpu: _Rounder) -> bool:
    """Whether a kernel gives the bits of the CPU's loops; tested once for each kind, which waits for the device.

    While a CUDA graph is captured nothing can be tested: the kernel is then assumed to be correct.

    Args:
        kind: the kind of rounding to test.
        options: the options of the rounding; a tensor of random words is replaced by one for the samples.
        dimensions: the number of dimensions of the samples, so that a format's axis is one of them.
        kernel: rounds a tensor into another by the kernel.
        cpu: rounds a tensor into another by the CPU's loop.
    """
    if kind not in _tried:
        if is_captured():  # Nothing is recorded, so that the next call outside of a capture tests the kernel.
            return True
        with waiting_allowed(kind.device):
            fault = _describe_fault(kind, options, dimensions, kernel, cpu)
        _tried[kind] = fault
        if fault:
            warnings.warn(
                f"the kernel that rounds to {kind}, {fault}; the CPU rounds in its place, with the right bits"
                f" and more slowly. `roundoff doctor` tells more; please report it",
                KernelWarning,
                stacklevel=2,
            )
    return not _tried[kind]


@contextmanager
def waiting_allowed(device: torch.device) -> Iterator[None]:
    """Suspends a program's ``torch.cuda.set_sync_debug_mode`` in a block that waits for a device."""
    mode = torch.cuda.get_sync_debug_mode() if device.type == "cuda" else 0
    if not mode:
        yield
        return
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@unsimulated
def _describe_fault(
    kind: KernelKind, options: RoundingOptions, dimensions: int, kernel: _Rounder, cpu: _Rounder
) -> str:
    """Compares the kernel with the CPU's loop on samples; returns the first fault in words, or an empty text."""
    for x in _samples(kind, dimensions):
        sample_options = options
        if isinstance(options.random, torch.Tensor):
            words = torch.from_numpy(np.random.default_rng(_SEED).integers(0, 1 << 32, tuple(x.shape), np.int64))
            sample_options = options._replace(random=put_on(words.to(options.random.dtype), kind.device))
        actual, expected = torch.zeros_like(x), torch.zeros_like(x)  # Elements that no kernel writes are equal.
        cpu(x, expected, sample_options)
        try:
            kernel(x, actual, sample_options)
            # The number of elements with different bits; all NaNs are equal
            equal = (actual == expected) & (actual.signbit() == expected.signbit()) | (
                actual.isnan() & expected.isnan()
            )
            differing = int((~equal).sum())
        except Exception as error:  # noqa: BLE001  compilers and drivers raise any class
            first_line = (str(error).strip().splitlines() or [""])[0]
            return f"fails with {type(error).__name__}{': ' * bool(first_line)}{first_line}"
        if differing:
            return f"has other bits than it should for {differing} of {x.numel()} numbers"
    return ""


def _samples(kind: KernelKind, dimensions: int) -> list[torch.Tensor]:
    """Makes two tensors on the device, the second finite; if the kind is strided, as a transpose or a slice."""
    dimensions = dimensions or _LOG2_COUNT // 2  # a tensor without dimensions: enough for any axis of a format
    sizes = [1 << (_LOG2_COUNT * (i + 1) // dimensions - _LOG2_COUNT * i // dimensions) for i in range(dimensions)]
    samples = []
    for values in (sample_numbers(), np.nan_to_num(sample_numbers(), posinf=1.5, neginf=-2.5)):
        x = torch.from_numpy(values.reshape(sizes)).to(kind.dtype)
        if kind.layout != "strided":
            samples.append(put_on(x, kind.device))
        elif dimensions > 1:
            samples.append(put_on(x.transpose(0, -1).contiguous(), kind.device).transpose(0, -1))
        else:
            samples.append(put_on(x.repeat_interleave(2), kind.device)[::2])
    return samples


def sample_numbers() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Makes 4096 numbers: of all magnitudes of float32, near one, with few digits (ties), and special values.

    Each run of 32 has one magnitude, so that numbers in blocks with a shared scale do not all underflow.
    """
    random, count = np.random.default_rng(_SEED), 1 << _LOG2_COUNT
    magnitudes = np.repeat(random.integers(-30, 20, count // 32), 32)
    magnitudes[:256] = random.integers(-149, 128, 256)
    magnitudes[256:1024] = random.integers(-3, 4, 768)
    digits = random.standard_normal(count)
    short = slice(0, count, 2)  # at most five bits: numbers of formats, and midpoints between them
    digits[short] = np.round(digits[short] * 8) / 8
    values: np.ndarray[Any, np.dtype[np.float64]] = np.ldexp(digits, magnitudes)
    values[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3.4e38, 65520.0]
    return values
