"""Float formats as data: a different one for every row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .arithmetic.carriers import INTEGER
from .arithmetic.float_parameters import FloatParameters
from .arithmetic.float_tensors import signed
from .base.errors import FormatError
from .base.format import Format, check_roundable
from .families.floats import FloatFormat


def row_parameters(formats: Sequence[Format | str], x: torch.Tensor) -> FloatParameters:
    """The parameters of float formats, one per row of ``x``, as tensors that broadcast against it.

    Making them costs some microseconds a format: keep them where the same formats come again.

    Args:
        formats: as many float formats or names as ``x`` has rows, or a single one for all.
        x: float32 or float64, at least one dimension; only dtype, shape and device count.

    Raises:
        FormatError: there is another number of formats, one is not a float format, or does not fit in ``x.dtype``.
    """
    parsed = [Format.parse(fmt) for fmt in formats]
    if x.ndim == 0 or len(parsed) not in (1, x.shape[0]):
        raise FormatError(
            f"a sequence of formats has one per row: got {len(parsed)} for a tensor of shape {tuple(x.shape)}"
        )
    rows = []
    for fmt in parsed:
        if not isinstance(fmt, FloatFormat) or not fmt.signed:
            raise FormatError(f"formats per row must be float formats, with a sign, got {fmt}")
        check_roundable(x, fmt)
        rows.append(fmt.parameters(x.dtype))
    shape = (len(rows), *[1] * (x.ndim - 1))
    integer = INTEGER[x.dtype]

    def on_device(values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device="cpu").to(x.device, non_blocking=True).view(shape)

    def column(name: str) -> torch.Tensor:
        values = [getattr(row, name) for row in rows]
        if isinstance(values[0], float):
            return on_device(values, x.dtype)
        return on_device([signed(v, integer) for v in values], integer)

    columns: dict[str, Any] = {name: column(name) for name in FloatParameters._fields}
    return FloatParameters(**columns)
