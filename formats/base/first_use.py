"""A device's kernels are tried when they are first used: a sample must have the bits of the CPU's loops.

Kernels are compiled for a card, a driver, a PyTorch and a Triton that nobody may have put together before. Every kind
of rounding is therefore tried once in each process, before its first result: on a few thousand numbers, which takes
some milliseconds in addition to the compilation of the kernel. A kernel that fails to compile or to run, or has
another bit, is replaced by the CPU's loops on copied tensors: slower and right; a :class:`KernelWarning` names it.
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

_Rounds = Callable[[Any, Any, "RoundingOptions"], None]  # a tensor into another
_COUNT = 12  # two to the power of it are the numbers of a sample
_SEED = 20211


class KernelWarning(UserWarning):
    """A device's kernel is wrong, or fails; the CPU rounds in its place, more slowly."""


@dataclass(frozen=True)
class KernelKind:
    """Roundings that run one kernel in one way.

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
    """All kinds that this process has tried, each with a description of its fault: an empty text, if it is right."""
    return dict(_tried)


def kind_of(fmt: Format, source: torch.Tensor, options: RoundingOptions, layout: str) -> KernelKind:
    """The kind of a rounding of ``source``."""
    mode = str(options.rounding)
    if options.random is not None:
        mode += f" by {'RandomBits' if isinstance(options.random, RandomBits) else 'random words'}"
    return KernelKind(str(fmt), source.device, source.dtype, mode, str(options.policy), layout)


def is_right(kind: KernelKind, options: RoundingOptions, dimensions: int, kernel: _Rounds, plain: _Rounds) -> bool:
    """Whether a kernel has the bits of the CPU's loops; tried once for each kind, which waits for the device.

    While a CUDA graph is captured nothing can be tried: the kernel is then taken to be right.

    Args:
        kind: the kind of rounding to try.
        options: the rounding; where random words are given, a sample has its own words.
        dimensions: how many a sample shall have, so that a format's axis is one of them.
        kernel: rounds a tensor into another by the kernel.
        plain: does so on the CPU.
    """
    if kind not in _tried:
        if is_captured():
            return True
        with waiting_allowed(kind.device):
            wrong = _what_is_wrong(kind, options, dimensions, kernel, plain)
        _tried[kind] = wrong
        if wrong:
            warnings.warn(
                f"the kernel that rounds to {kind}, {wrong}; the CPU rounds in its place, with the right bits"
                f" and more slowly. `roundoff doctor` tells more; please report it",
                KernelWarning,
                stacklevel=2,
            )
    return not _tried[kind]


@contextmanager
def waiting_allowed(device: torch.device) -> Iterator[None]:
    """For a block that waits for a device: a program's ``torch.cuda.set_sync_debug_mode`` is not about it."""
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
def _what_is_wrong(kind: KernelKind, options: RoundingOptions, dimensions: int, kernel: _Rounds, plain: _Rounds) -> str:
    for x in _samples(kind, dimensions):
        own = options
        if isinstance(options.random, torch.Tensor):
            words = torch.from_numpy(np.random.default_rng(_SEED).integers(0, 1 << 32, tuple(x.shape), np.int64))
            own = options._replace(random=put_on(words.to(options.random.dtype), kind.device))
        found, expected = torch.zeros_like(x), torch.zeros_like(x)
        plain(x, expected, own)
        try:
            kernel(x, found, own)
            # The number of elements with different bits; all NaNs are equal
            same = (found == expected) & (found.signbit() == expected.signbit()) | (found.isnan() & expected.isnan())
            differing = int((~same).sum())
        except Exception as error:  # noqa: BLE001  whatever a compiler or a driver fails with
            first = (str(error).strip().splitlines() or [""])[0]
            return f"fails with {type(error).__name__}{': ' * bool(first)}{first}"
        if differing:
            return f"has other bits than it should for {differing} of {x.numel()} numbers"
    return ""


def _samples(kind: KernelKind, dimensions: int) -> list[torch.Tensor]:
    """Two tensors on the device, finite in the second; transposed, or every other number, if the kind is strided."""
    dimensions = dimensions or _COUNT // 2  # of a tensor without any, whichever axis a format has
    sizes = [1 << (_COUNT * (i + 1) // dimensions - _COUNT * i // dimensions) for i in range(dimensions)]
    made = []
    for values in (trying_numbers(), np.nan_to_num(trying_numbers(), posinf=1.5, neginf=-2.5)):
        x = torch.from_numpy(values.reshape(sizes)).to(kind.dtype)
        if kind.layout != "strided":
            made.append(put_on(x, kind.device))
        elif dimensions > 1:
            made.append(put_on(x.transpose(0, -1).contiguous(), kind.device).transpose(0, -1))
        else:
            made.append(put_on(x.repeat_interleave(2), kind.device)[::2])
    return made


def trying_numbers() -> np.ndarray[Any, np.dtype[np.float64]]:
    """4096 numbers: of all magnitudes of float32, of formats' magnitudes, short ones (ties), and special ones.

    Runs of 32 have one magnitude, so that numbers in blocks with a shared scale do not all underflow.
    """
    random, count = np.random.default_rng(_SEED), 1 << _COUNT
    magnitudes = np.repeat(random.integers(-30, 20, count // 32), 32)
    magnitudes[:256] = random.integers(-149, 128, 256)
    magnitudes[256:1024] = random.integers(-3, 4, 768)
    digits = random.standard_normal(count)
    short = slice(0, count, 2)  # of at most five bits: numbers of formats, and those halfway between
    digits[short] = np.round(digits[short] * 8) / 8
    values: np.ndarray[Any, np.dtype[np.float64]] = np.ldexp(digits, magnitudes)
    values[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3.4e38, 65520.0]
    return values
