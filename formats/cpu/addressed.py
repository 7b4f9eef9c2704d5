"""Loops for callers without Python, which use the addresses of the loops' code and parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, cast, final

import numpy as np
import torch

from ..base.modes import Rounding
from .addends import settings_of
from .threads import compiled


class Calling(IntEnum):
    """The arguments of a loop after the addresses of its source and its target; see ``loops.h``."""

    BY_ADDRESS = 0
    """Arguments: the number of elements, and the address of the parameters."""
    DRAWN = 1
    """Arguments of ``BY_ADDRESS``; then the index of the first element, and the address of the keys of random words."""
    POSIT = 2
    POSIT_IN_MODE = 3
    GRID = 4
    GRID_IN_MODE = 5
    WRAPPING = 6
    BLOCKS = 7
    BLOCKS_IN_MODE = 8
    SCALED = 9
    TABLE = 10
    TABLE_IN_BLOCKS = 11
    LOGARITHM = 12
    LOGARITHM_IN_MODE = 13
    WHOLE = 14
    """Arguments: the number of elements, and the data from which their common scale follows."""
    SQUARES = 15
    """Another loop rounds each square of matrices in its place."""


class Numbers(ctypes.Structure):
    """The settings and scalar arguments of a loop without parameters at an address."""

    _fields_ = (("whole", ctypes.c_int64 * 8), ("real", ctypes.c_double * 4), ("settings", ctypes.c_int64 * 10))


def address_of(function: Callable[..., None]) -> int:
    """Returns the address of a C function's code, which stays where it is."""
    return int(ctypes.cast(cast("Any", function), ctypes.c_void_p).value or 0)


@final
class Addressed:
    """A loop with its parameters.

    Args:
        calling: its arguments.
        body: the loop.
        dtype: the carrier.
        parameters: the tensors that it reads.
        places: whether another function rounds in place, where the target is the source.
        part: another loop that it names.

    Attributes:
        calling: the kind of arguments.
        parameters: the address of the parameters that the function reads.
    """

    def __init__(
        self,
        calling: Calling,
        body: Any,
        dtype: torch.dtype,
        parameters: Any,
        *,
        places: bool = False,
        part: Addressed | None = None,
    ) -> None:
        self.calling = calling
        self._body, self._dtype, self._places = body, dtype, places
        self._parameters, self._part = parameters, part  # kept alive
        owned = isinstance(parameters, np.ndarray)
        self.parameters: int = parameters.ctypes.data if owned else ctypes.addressof(parameters)

    def function(self, *, in_place: bool) -> Callable[..., None]:
        """The C function; ``in_place``: the one for a target that is the source."""
        return compiled(self._body, self._dtype, in_place=in_place and self._places)

    def address(self, *, in_place: bool) -> int:
        """The address of :meth:`function`, which stays where it is."""
        return address_of(self.function(in_place=in_place))


@final
class AddressedSquares:
    """Squares of matrices, each rounded as one block by another loop.

    Args:
        side: the side of the squares.
        block: the loop.

    Attributes:
        calling: the kind of arguments.
        parameters: the address of the parameters that the function reads.
    """

    calling = Calling.SQUARES

    def __init__(self, side: int, block: Addressed) -> None:
        self._block, self._numbers = block, numbers((side, block.parameters, block.calling))  # kept alive
        self.parameters = ctypes.addressof(self._numbers)

    def address(self, *, in_place: bool) -> int:
        """The address of the loop of a block, which rounds a copy of each square in place."""
        del in_place
        return self._block.address(in_place=True)


def numbers(whole: Sequence[int], real: Sequence[float] = (), rounding: Rounding = Rounding.NEAREST_EVEN) -> Numbers:
    """Packs the arguments of a loop: integers and reals in its order, and the settings of a mode."""
    packed = Numbers()
    packed.whole[: len(whole)] = whole
    packed.real[: len(real)] = real
    packed.settings[:] = settings_of(rounding).tolist()
    return packed
