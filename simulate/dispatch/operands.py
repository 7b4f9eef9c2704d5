"""Rounding the operands of an operation before it runs: copies, so that the program's memory stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from ...formats import round
from ..aten.contracted_axes import LAST, Contraction, contractions, has_blocks, is_operand, round_along
from .handling import scalar_names
from .separate_products import separate_products
from .storages import Storages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...formats import Format
    from ..aten.contracted_axes import Rounded
    from .handling import Handling


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
        self, handling: Handling, args: Sequence[Any], kwargs: Mapping[str, Any], rounded: Rounded
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with operands rounded as the policy says; what the operation writes to is left.

        Args:
            handling: of the operation.
            args: its arguments.
            kwargs: its arguments by name.
            rounded: gives a tensor rounded to a format.
        """
        assert handling.operation is not None
        written = {name for _, name in handling.treatment.written}
        names = [argument.name for argument in handling.operation._schema.arguments]  # noqa: SLF001  the only access
        numbers = set(scalar_names(handling.operation)) if _rounds_scalars(handling) else set()
        named = dict(zip(names, args, strict=False)) | dict(kwargs)
        how = contractions(handling.name, named) if _has_blocks(handling) else {}

        def prepare(name: str, value: Any) -> Any:
            if name in written:
                return value
            if isinstance(value, torch.Tensor):
                if not is_operand(handling.name, name):
                    return value
                return self.seen(handling, value, how.get(name, LAST), rounded)
            if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
                return [prepare(name, item) for item in value]
            if isinstance(value, float) and name in numbers:
                return _scalar(value, handling.arithmetic.format)
            return value

        return (
            [prepare(name, value) for name, value in zip(names, args, strict=False)],
            {name: prepare(name, value) for name, value in kwargs.items()},
        )

    def separate(
        self,
        handling: Handling,
        compute: Callable[[Sequence[Any]], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        rounded: Rounded,
    ) -> Any:
        """Computes an operation whose products contract the same operand differently, each of operands seen by itself.

        Args:
            handling: of the operation.
            compute: runs it, given its arguments.
            args: its arguments.
            kwargs: its arguments by name.
            rounded: as for :meth:`prepared`.

        Returns:
            What the operation returns, or ``NotImplemented``: where formats have no blocks, its products see the same.
        """
        assert handling.operation is not None
        products = separate_products(handling.operation)
        if products is None or not _has_blocks(handling):
            return NotImplemented

        def see(_name: str, x: torch.Tensor, how: Contraction) -> torch.Tensor:
            return self.seen(handling, x, how, rounded)

        return products(compute, see, *args, **kwargs)

    def seen(self, handling: Handling, x: torch.Tensor, how: Contraction, rounded: Rounded) -> torch.Tensor:
        """The operand ``x`` as an operation sees it that contracts it as ``how`` says."""
        if x.dtype not in (torch.float32, torch.float64) or x.layout is not torch.strided or x.is_nested:
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
                x = round_along(x, fmt, how, rounded)
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


def _has_blocks(handling: Handling) -> bool:
    arithmetic = handling.arithmetic
    return any(map(has_blocks, (arithmetic.operands, arithmetic.parameters, arithmetic.inputs)))
