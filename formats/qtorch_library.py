"""The library qtorch as a rounding backend. Importing this module compiles qtorch's C++ once (about a minute)."""

from __future__ import annotations

import warnings

import torch

from roundoff.extras import require

from .base.errors import FormatError
from .base.format import Format
from .families.floats import FloatFormat

require("qtorch")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # qtorch's own: deprecated imports
        from qtorch.quant import float_quantize
except (ImportError, OSError, RuntimeError) as error:
    raise FormatError(
        f"backend 'qtorch' needs the package qtorch with a C++ compiler (g++) and ninja; importing it failed: {error}"
    ) from error

_LARGEST_M = 22  # qtorch's bit arithmetic drops at least one bit
_EXPONENT_BITS = range(2, 9)


def round_qtorch(x: torch.Tensor, fmt: Format) -> torch.Tensor:
    """``qtorch.quant.float_quantize`` with nearest rounding; see :func:`roundoff.formats.round` for what it does.

    Raises:
        FormatError: not a float format that qtorch 0.3.0 has, or not a float32 tensor.
    """
    if not isinstance(fmt, FloatFormat) or fmt.exponent_bits not in _EXPONENT_BITS or fmt.significand_bits > _LARGEST_M:
        raise FormatError(f"backend 'qtorch' rounds to eXmY with 2 <= X <= 8 and 0 <= Y <= {_LARGEST_M}, got {fmt}")
    if x.dtype != torch.float32:
        raise FormatError(f"backend 'qtorch' rounds float32 tensors, got {x.dtype}")
    result: torch.Tensor = float_quantize(
        x.detach().contiguous(), exp=fmt.exponent_bits, man=fmt.significand_bits, rounding="nearest"
    )
    return result
