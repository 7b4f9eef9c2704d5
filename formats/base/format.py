"""The base of all number formats: an immutable value with one canonical text form."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from roundoff.notebook import as_html

from .errors import FormatError
from .memory import is_dense, materialized
from .modes import Rounding
from .names import parse_format

if TYPE_CHECKING:
    from builtins import property as fact
    from collections.abc import Callable, Sequence

    from .modes import Overflow, RandomBits
else:

    class fact:  # noqa: N801  a decorator, named like property
        """A property that a dataclass's field of the same name may replace, with a default or without."""

        def __init__(self, getter: Callable[[Any], Any]) -> None:
            self._getter = getter
            self.__doc__ = getter.__doc__

        def __get__(self, instance: Any, cls: type | None = None) -> Any:
            if instance is None:  # a dataclass asks the class for the default of a field: there must be none
                raise AttributeError(f"{self._getter.__name__} is a fact of each format, not of {cls}")
            return self._getter(instance)


class Format(ABC):
    """A finite set of numbers, and the rule that rounds a tensor into it.

    A format is a frozen, hashable value; ``str(format)`` is its canonical text, which :meth:`parse` reads back if its
    family is registered. Everything about it is derived from its fields; nothing is global.

    All that callers use is declared here. A fact that a format does not have is None: integers scaled by the data do
    not have a largest number. An unsupported operation, such as encoding, raises a FormatError. A subclass may state a
    fact as a property, an attribute or a field.
    """

    @staticmethod
    def parse(text: str | Format | torch.dtype) -> Format:
        """Reads a format from its canonical text or an alias: ``"e5m10"``, ``"fp16"``, ``"bf16"``.

        Args:
            text: The name, upper or lower case, surrounding space ignored. A ``Format`` is returned as it is; a dtype
                of floats, such as ``torch.float8_e4m3fn``, gives the format of its numbers.

        Raises:
            FormatError: The format does not exist; the message names the allowed formats and the nearest one.
        """
        if isinstance(text, torch.dtype):  # float16 and float8_e4m3fn are also names of formats.
            text = str(text).removeprefix("torch.")
        return text if isinstance(text, Format) else cast("Format", parse_format(text))

    @abstractmethod
    def __str__(self) -> str:
        """The canonical text."""

    def _repr_html_(self) -> str:
        """Returns the facts that the format has as an HTML table, for notebooks."""
        import pandas as pd  # noqa: PLC0415  costs half a second

        facts = {  # Those that exist are shown.
            "format": str(self), "bits": self.bits, "bits per number": self.bits_per_number, "largest": self.max,
            "smallest normal": self.smallest_normal, "smallest": self.smallest, "eps": self.eps,
            "simulated in": str(self.carrier),
        }  # fmt: skip
        return as_html(pd.DataFrame([{name: value for name, value in facts.items() if value is not None}]))

    @property
    @abstractmethod
    def bits(self) -> int:
        """Storage size of one number, in bits."""

    @property
    @abstractmethod
    def carrier(self) -> torch.dtype:
        """The torch dtype that simulates a computation in this format: float32 or float64."""

    @abstractmethod
    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number of the format is a number of ``dtype`` (torch.float32 or torch.float64)."""

    @fact
    def native(self) -> bool:
        """Whether the format is its carrier itself (fp32, fp64), so that rounding changes nothing."""
        return False

    @fact
    def elementwise(self) -> bool:
        """Whether each number is rounded without regard to the others; False where they share a scale.

        It decides how tensors are cut and joined (torch.vmap, DTensor); False is always right, and may be slower.
        """
        return False

    @fact
    def open_block(self) -> int | None:
        """The block size, if numbers share a scale along an axis that the format's name does not choose; else None.

        Such a format is a dataclass with a field ``axis``, which a simulation sets to the axis an operation contracts.
        """
        return None

    @fact
    def bits_per_number(self) -> float:
        """Storage size of one number, in bits, with its share of a block's scale."""
        return float(self.bits)

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Storage size of a tensor of this shape, in bits: with scales, and with padding of the last blocks."""
        return math.prod(shape) * self.bits

    @fact
    def max(self) -> float | None:
        """The largest finite number, with the largest scale that there is; None where the data decide it."""
        return None

    @fact
    def min(self) -> float | None:
        """The smallest number: -max, if the format does not say otherwise; None where the data decide it."""
        return None if self.max is None else -self.max

    @fact
    def smallest(self) -> float | None:
        """The smallest number above zero; None if the data decide it, or it does not exist."""
        return None

    @fact
    def smallest_normal(self) -> float | None:
        """The smallest number of full precision; None if there are no smaller numbers with less precision."""
        return None

    @fact
    def eps(self) -> float | None:
        """The distance from 1 to the next larger number, or the relative distance of neighbours; or None."""
        return None

    @fact
    def has_nan(self) -> bool:
        """Whether there is a code for NaN. Rounding keeps a NaN in any case."""
        return False

    @fact
    def has_infinity(self) -> bool:
        """Whether infinities are among the numbers."""
        return False

    def bounds(self, dtype: torch.dtype) -> tuple[float, float] | None:  # noqa: ARG002
        """The smallest and largest number that a tensor of ``dtype`` can hold; None if the data decide them."""
        low, high = self.min, self.max
        return None if low is None or high is None else (float(low), float(high))

    def values(self) -> torch.Tensor:
        """Lists all finite numbers in ascending order, each once, float64; with a shared scale, those for a scale of 1.

        Raises:
            FormatError: there are more than 2^16, or the format does not list them.
        """
        raise FormatError(f"{self} does not list its numbers")

    def edges(self) -> list[float]:
        """Numbers near the limits of precision and range; tests use their rounded values, of both signs."""
        # From the carrier's smallest subnormal number to its largest power of two.
        exponents = range(-149, 128) if self.carrier == torch.float32 else range(-1074, 1024)
        return [
            *around_one(2.0**-4 if self.eps is None else self.eps),
            *(math.ldexp(1.0, e) for e in exponents),
            *(math.ldexp(2 - 2.0**-20, e) for e in exponents if e >= -100),  # Rounds up to the next one.
        ]

    def encode(
        self,
        x: torch.Tensor,  # noqa: ARG002
        rounding: Rounding | str = Rounding.NEAREST_EVEN,  # noqa: ARG002
        overflow: Overflow | str | None = None,  # noqa: ARG002
        random: RandomBits | torch.Tensor | None = None,  # noqa: ARG002
        *,
        seed: int | None = None,  # noqa: ARG002
    ) -> Any:
        """Rounds ``x`` and returns its codes as they are stored: a tensor, or a named tuple with scales.

        Args:
            x: float32 or float64, any shape and device.
            rounding: as for :func:`roundoff.formats.round`.
            overflow: as for :func:`roundoff.formats.round`.
            random: as for :func:`roundoff.formats.round`.
            seed: as for :func:`roundoff.formats.round`.

        Raises:
            FormatError: as for ``round``; ``x`` holds a value without a code; or the format lacks codes.
        """
        raise FormatError(f"{self} has no codes: its class gives none")

    def decode(self, codes: Any, dtype: torch.dtype | None = None) -> torch.Tensor:  # noqa: ARG002
        """Returns the exact numbers that codes represent.

        Args:
            codes: the codes of :meth:`encode`, or integers of ``bits`` bits from elsewhere.
            dtype: float32 or float64; None for the carrier's, or the scale's.

        Raises:
            FormatError: these are not codes of the format, or it lacks codes.
        """
        raise FormatError(f"{self} has no codes: its class gives none")

    def rounded(
        self,
        x: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rounds ``x``, which must not require a gradient, to a new tensor; see :meth:`round_into`."""
        x = materialized(x)
        if is_dense(x):
            result = torch.empty_like(x)
            self.round_into(x, result, rounding, overflow, random)
            return result
        x = x.clone(memory_format=torch.preserve_format)  # a dense copy, rounded in place
        self.round_into(x, x, rounding, overflow, random)
        return x

    @abstractmethod
    def round_into(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> None:
        """Rounds ``source`` into ``target``.

        Args:
            source: a dense tensor that :func:`check_roundable` accepts.
            target: same shape, strides and dtype, dense; may be ``source`` itself, may not otherwise overlap it.
            rounding: the mode.
            overflow: the overflow policy; None for the format's own.
            random: the random bits of stochastic rounding; None for the other modes.

        Raises:
            FormatError: the format lacks the policy ``overflow``, or ``random`` is missing.
        """

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields of the format, for pickle, without the attributes derived from them."""
        if not is_dataclass(type(self)):  # A user-defined class: all attributes may matter.
            return self.__dict__
        names = {field.name for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in self.__dict__.items() if name in names}

    def __copy__(self) -> Self:
        return self  # it never changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def around_one(eps: float) -> list[float]:
    """Returns a few simple numbers, and the neighbours of 1 and 2 in a format with this ``eps``."""
    plain = [0.5, 1.0, 1.5, 2.0, 3.0]  # Numbers of nearly every format.
    # Below a power of two, neighbours are half as far apart as above.
    return [*plain, 1 + eps, 1 + 2 * eps, 1 + 3 * eps, 1 - eps / 2, 1 - eps, 2 - eps, 2 - 2 * eps]


def check_roundable(x: torch.Tensor, fmt: Format) -> None:
    """Raises FormatError if the elements of ``x`` cannot be rounded to ``fmt``."""
    check_numbers(x)
    if not fmt.fits_in(x.dtype):
        raise FormatError(f"{fmt} does not fit in {x.dtype}: round a float64 tensor, for example x.double()")


def check_numbers(x: torch.Tensor) -> None:
    """Raises FormatError unless ``x`` is a strided tensor of float32 or float64."""
    if not isinstance(x, torch.Tensor):
        raise FormatError(f"only a torch.Tensor can be rounded, got {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise FormatError(
            f"a tensor to round must be float32 or float64, got {x.dtype}; convert it first, for example x.float()"
        )
    if x.layout != torch.strided:
        raise FormatError(f"a tensor to round must be strided, got {x.layout}; round its values instead")
