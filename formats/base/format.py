"""The base of all number formats: an immutable value with one canonical text form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from .errors import FormatError
from .layouts import is_dense
from .memory import settled
from .modes import Rounding
from .names import parse_format

if TYPE_CHECKING:
    from .modes import Overflow, RandomBits


class Format(ABC):
    """A finite set of numbers, and the rule that rounds a tensor into it.

    A format is a frozen, hashable value; ``str(format)`` is its canonical text, which :meth:`parse` reads back.
    Everything about it is derived from its fields; nothing is global.
    """

    @staticmethod
    def parse(text: str | Format) -> Format:
        """Reads a format from its canonical text or an alias: ``"e5m10"``, ``"fp16"``, ``"bf16"``.

        Args:
            text: The name, upper or lower case, surrounding space ignored. A ``Format`` is returned as it is.

        Raises:
            FormatError: There is no such format; the message says what is allowed and names the nearest one.
        """
        return text if isinstance(text, Format) else cast("Format", parse_format(text))

    @abstractmethod
    def __str__(self) -> str:
        """The canonical text."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Storage size of one number, in bits."""

    @property
    @abstractmethod
    def carrier(self) -> torch.dtype:
        """The torch dtype in which a computation in this format is simulated: float32 or float64."""

    @property
    @abstractmethod
    def native(self) -> bool:
        """Whether the format is its carrier's own (fp32, fp64), so that rounding changes nothing."""

    @abstractmethod
    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number of the format is a number of ``dtype`` (torch.float32 or torch.float64)."""

    @property
    def elementwise(self) -> bool:
        """Whether each number is rounded without regard to the others; False where they share a scale.

        It decides how tensors are cut and joined (torch.vmap, DTensor); False is always right, and may be slower.
        """
        return False

    def bounds(self, dtype: torch.dtype) -> tuple[float, float] | None:  # noqa: ARG002
        """The smallest and largest number that a tensor of ``dtype`` can hold; None if the data decide them."""
        high = getattr(self, "max", None)
        return None if high is None else (float(getattr(self, "min", -high)), float(high))

    def rounded(
        self,
        x: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A new tensor with the elements of ``x``, which needs no gradient, rounded; see :meth:`round_into`."""
        x = settled(x)
        if is_dense(x):
            result = torch.empty_like(x)
            self.round_into(x, result, rounding, overflow, random)
            return result
        x = x.clone(memory_format=torch.preserve_format)  # gapless, and ours to overwrite
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
            source: float32 or float64, dense memory; what :func:`check_roundable` accepts.
            target: same shape, strides and dtype, dense; may be ``source`` itself, may not otherwise overlap it.
            rounding: the mode.
            overflow: instead of the format's own policy; None for that.
            random: the random bits of stochastic rounding; None for the other modes.

        Raises:
            FormatError: the format cannot do what ``overflow`` asks, or ``random`` is missing.
        """

    def __getstate__(self) -> dict[str, Any]:
        """What the format is, for pickle: its fields, without what was derived from them."""
        fields = getattr(self, "__dataclass_fields__", self.__dict__)
        return {name: value for name, value in self.__dict__.items() if name in fields}

    def __copy__(self) -> Self:
        return self  # it never changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


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
