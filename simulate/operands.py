"""Rounding the operands of an operation before it runs: copies, so that the program's memory stays as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from roundoff.formats import round
from roundoff.simulate.handling import scalar_names
from roundoff.simulate.storages import Storages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from roundoff.formats import Format
    from roundoff.simulate.handling import Handling

# The axes along which operands are contracted, by argument name.
_CONTRACTED: dict[str, dict[str, int]] = {
    "mm": {"self": -1, "mat2": -2},
    "addmm": {"mat1": -1, "mat2": -2},
    "bmm": {"self": -1, "mat2": -2},
    "baddbmm": {"batch1": -1, "batch2": -2},
    "addbmm": {"batch1": -1, "batch2": -2},
    "mv": {"self": -1, "vec": -1},
    "addmv": {"mat": -1, "vec": -1},
    "convolution": {"input": 1, "weight": 1},
}


class Operands:
    """Sees to operands, and remembers which memory holds parameters and what was computed inside.

    Args:
        tracks_inputs: whether inputs must be told from what was computed.
    """

    def __init__(self, *, tracks_inputs: bool) -> None:
        self.tracks_inputs = tracks_inputs
        self._parameters = Storages()
        self._inside = Storages()

    def computed(self, result: Any) -> None:
        """Remembers the memory of what an operation returned; no inputs lie there."""
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self._inside.add(value)

    def prepared(
        self, handling: Handling, args: Sequence[Any], kwargs: Mapping[str, Any], rounder: Callable[[Format], Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with operands rounded as the policy says; what the operation writes to is left.

        Args:
            handling: of the operation.
            args: its arguments.
            kwargs: its arguments by name.
            rounder: gives the keyword arguments of :func:`roundoff.round` for rounding to a format.
        """
        assert handling.operation is not None
        written = {name for _, name in handling.treatment.written}
        names = [argument.name for argument in handling.operation._schema.arguments]  # noqa: SLF001  the only access
        numbers = set(scalar_names(handling.operation)) if _rounds_scalars(handling) else set()

        def prepare(name: str, value: Any) -> Any:
            if name in written:
                return value
            if isinstance(value, torch.Tensor):
                return self._operand(handling, name, value, rounder)
            if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
                return [prepare(name, item) for item in value]
            if isinstance(value, float) and name in numbers:
                return _scalar(value, handling.arithmetic.format)
            return value

        return (
            [prepare(name, value) for name, value in zip(names, args, strict=False)],
            {name: prepare(name, value) for name, value in kwargs.items()},
        )

    def _operand(
        self, handling: Handling, name: str, x: torch.Tensor, rounder: Callable[[Format], Any]
    ) -> torch.Tensor:
        if x.dtype not in (torch.float32, torch.float64) or x.layout is not torch.strided:
            return x
        arithmetic = handling.arithmetic
        formats = []
        if arithmetic.parameters or arithmetic.inputs:
            if self._is_parameter(x):
                formats.append(arithmetic.parameters)
            elif self.tracks_inputs and x not in self._inside:
                formats.append(arithmetic.inputs)
        formats.append(arithmetic.operands)
        for fmt in formats:
            if fmt is not None:
                along = _along(fmt, _CONTRACTED.get(handling.name, {}).get(name))
                x = round(x, along, **rounder(along))
        return x

    def _is_parameter(self, x: torch.Tensor) -> bool:
        base = x if x._base is None else x._base  # noqa: SLF001  the only access there is
        # Sharded parameters are gathered into a buffer, of which the leaf that autograd knows is a part.
        if base.is_leaf and (base.requires_grad or x.requires_grad):
            self._parameters.add(x)  # the backward pass gets it as another tensor of the same memory
            return True
        return x in self._parameters


def _rounds_scalars(handling: Handling) -> bool:
    return handling.arithmetic.scalars == "rounded" and handling.rounds


def _scalar(value: float, fmt: Format) -> float:
    return float(round(torch.tensor(value, dtype=torch.float64, device="cpu"), fmt))


@cache
def _along(fmt: Format, axis: int | None) -> Format:
    """A block format with its blocks along the contracted axis, unless it says another than the last; others as is."""
    if axis is None or getattr(fmt, "axis", None) != -1:
        return fmt
    return replace(fmt, axis=axis)  # type: ignore[type-var]
