"""Roundings as operators in the graph of a traced program, as written by a :class:`Simulation`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch

from ...formats import FloatFormat, Format, RandomBits, Rounding
from ...formats.base.modes import WORD_BITS
from ...formats.base.operator import round_operator, unwritten_like
from ...formats.compiling.float_data import FloatData, float_data, round_float
from ..presence.draws import bits_after
from ..rounded_once.operations import exact_to_nearest


@final
class FormatsAsData:
    """The float formats of a policy as tensors, which are arguments of the graph: other widths, the same graph.

    Args:
        formats: each once; others than float formats are left to be constants of the graph.
        dtype: the carrier.
        device: where the program's tensors live.
    """

    def __init__(self, formats: Iterable[Format], dtype: torch.dtype, device: torch.device) -> None:
        self._data: dict[Format, FloatData] = {}
        self._constants: list[str] = []
        self._exactly: list[tuple[str, ...]] = []
        for fmt in formats:
            if isinstance(fmt, FloatFormat) and fmt.fits_in(dtype) and fmt.signed:
                self._data[fmt] = float_data(fmt, dtype, device)
                self._exactly.append(exact_to_nearest(fmt))
            else:
                self._constants.append(str(fmt))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The parameters, in order."""
        return [data.parameters for data in self._data.values()]

    @property
    def kind(self) -> tuple[Any, ...]:
        """The key of the graph: rounding method and exact arithmetic of formats that are data, and other formats."""
        return tuple(data.by_addition for data in self._data.values()), tuple(self._exactly), tuple(self._constants)

    def standing_for(self, tensors: Iterable[torch.Tensor]) -> dict[Format, FloatData]:
        """Returns the formats with these tensors instead of the original ones."""
        return {
            fmt: FloatData(data.by_addition, tensor)
            for (fmt, data), tensor in zip(self._data.items(), tensors, strict=True)
        }


@final
class GraphWriter:
    """Writes roundings into the graph that is being traced.

    Args:
        formats: formats of :class:`FormatsAsData`, with stand-ins for tensors.
        place: represents the place of the simulation's draws when the program is called (``Draws.place``). While it is
            traced, step and number are 0.
    """

    def __init__(self, formats: dict[Format, FloatData], place: torch.Tensor) -> None:
        self._formats = formats
        self.place = place

    def round_(self, x: torch.Tensor, fmt: Format, rounding: Rounding, random: RandomBits | None) -> None:
        """Rounds the tensor that ``x`` represents, in place."""
        x.copy_(self.rounded(x, fmt, rounding, random))

    def rounded(self, x: torch.Tensor, fmt: Format, rounding: Rounding, random: RandomBits | None) -> torch.Tensor:
        """Returns the stand-in for ``x`` rounded."""
        rounded: torch.Tensor
        data = self._formats.get(fmt)
        # A tensor of another type, or on another device than the program's, takes its format as a constant.
        fits = data is not None and (x.dtype, x.device) == (data.parameters.dtype, data.parameters.device)
        if data is not None and fits and rounding is Rounding.NEAREST_EVEN:
            rounded = round_float(x, data.parameters, data.by_addition)
        elif random is None:
            rounded = round_operator(x, str(fmt), str(rounding), None, None, 0, WORD_BITS, None)
        else:
            rounded = round_drawn(x, self.place, str(fmt), str(rounding), random.step, random.bits)
        return rounded


@torch.library.custom_op("roundoff::round_drawn", mutates_args=())
def round_drawn(
    x: torch.Tensor, place: torch.Tensor, format: str, rounding: str, offset: int, bits: int
) -> torch.Tensor:
    """:func:`roundoff.round` with the random bits of a simulation, from the rounding ``offset`` after ``place``."""
    from ...formats import round  # noqa: PLC0415  beside the built-in of this name

    return round(x, Format.parse(format), rounding=rounding, random=bits_after(place, offset, bits))


@round_drawn.register_fake
def _round_drawn_fake(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return unwritten_like(x)
