"""The trace of a run: a record of bounded size of each operation, and the file that keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from roundoff.errors import RoundoffError
from roundoff.files import read_bytes, write_text

VERSION = "roundoff trace 1"
MOST_OPERATIONS = 20_000
RESULT = "result"
"""The name of the last entries of a recorded function, which have the returned tensors."""
UNINITIALISED = -2
"""The source of memory that is not initialised; -1: of data and parameters, which no operation has written."""
_VALUES = 32  # elements of a result that are kept


class TraceError(RoundoffError):
    """A file is not a trace."""


class Sketch(NamedTuple):
    """A summary of one tensor, and of its float64 twin.

    ``bits`` is a hash. ``projection`` is the product of the twin with fixed random numbers, which is equal only for
    equal tensors; ``value_projection`` is the product of the values with them. ``norm`` is the norm of the twin,
    ``error`` the norm of the difference between the twin and the values. ``source`` is the index of the operation that
    wrote the tensor. ``unit`` is the unit roundoff of the dtype or of the coarser simulated format, 0 for integers.
    ``values`` are evenly spaced elements, ``bounds`` their rounding bounds from the operands, if known.
    ``excess`` is the largest quotient of an error and its bound.
    """

    shape: Sequence[int]
    dtype: str
    bits: str
    norm: float = 0.0
    projection: float = 0.0
    value_projection: float = 0.0
    error: float = 0.0
    source: int = -1
    unit: float = 0.0
    values: Sequence[float] = ()
    bounds: Sequence[float] = ()
    excess: float = 0.0


class Operation(NamedTuple):
    """One operation of a run; ``arguments`` has its arguments other than tensors."""

    name: str
    role: str
    module: str
    line: str
    arguments: dict[str, Any]
    inputs: Sequence[Sketch]
    outputs: Sequence[Sketch]
    writes: bool = False
    random: bool = False

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Shapes of results, and whether these are floating-point numbers."""
        return tuple((bool(x.unit), tuple(x.shape)) for x in self.outputs)


class Trace(NamedTuple):
    """The operations of a run in order; ``dropped`` counts those after the limit."""

    operations: Sequence[Operation]
    dropped: int = 0

    def write(self, path: str | Path) -> None:
        """Writes JSON lines: a header, then an operation a line."""
        lines = [{"kind": VERSION, "dropped": self.dropped}, *(row._asdict() for row in self.operations)]
        write_text(path, "".join(f"{json.dumps(line)}\n" for line in lines))

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Reads a trace.

        Raises:
            TraceError: the file is not one of this version.
        """
        try:
            header, *lines = map(json.loads, read_bytes(path).decode().splitlines())
            dropped = {VERSION: header["dropped"]}[header["kind"]]
            parts = [{part: [Sketch(*x) for x in row[part]] for part in ("inputs", "outputs")} for row in lines]
            return cls([Operation(**{**row, **part}) for row, part in zip(lines, parts, strict=True)], int(dropped))
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(f"{path} is not a trace of roundoff run --record in this version: {error}") from error


def sketch(x: torch.Tensor, twin: torch.Tensor | None, **more: Any) -> Sketch:
    """Summarizes a tensor; ``twin`` is its float64 twin, None for the values themselves."""
    shape, dtype = list(x.shape), str(x.dtype).removeprefix("torch.")
    unit = torch.finfo(x.dtype).eps / 2 if x.is_floating_point() or x.is_complex() else 0.0
    if x.layout is not torch.strided or x.is_meta or not x.numel():
        return Sketch(shape, dtype, "", **{"unit": unit, **more})
    flat = x.detach().resolve_conj().resolve_neg().contiguous().flatten()
    bits = hashlib.blake2b(flat.cpu().view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
    # Sums with NaN or infinity would tell nothing about the other elements.
    values, exact = (torch.nan_to_num(real(x.flatten()), 0.0, 0.0, 0.0) for x in (flat, flat if twin is None else twin))
    weights = _random_direction(max(len(values) - 1, 15).bit_length())[: len(values)].to(values.device)
    numbers = torch.stack([exact.norm(), exact @ weights, values @ weights, (values - exact).norm()]).tolist()
    return Sketch(shape, dtype, bits, *numbers, **{"unit": unit, "values": some_elements(values), **more})


def some_elements(x: torch.Tensor) -> list[float]:
    """Evenly spaced elements of a tensor."""
    flat = x.flatten()[:: -(-x.numel() // _VALUES)]
    return [float(f"{value:.9g}") for value in flat.tolist()]


def real(x: torch.Tensor) -> torch.Tensor:
    """The values in float64; a complex one counts as two."""
    return (torch.view_as_real(x.resolve_conj()).flatten() if x.is_complex() else x).double()


@cache
def _random_direction(bits: int) -> torch.Tensor:
    return torch.randn(1 << bits, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
