"""The base of all number formats: an immutable value with one canonical text form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from roundoff.formats.modes import Rounding

if TYPE_CHECKING:
    import torch

    from roundoff.formats.modes import Overflow, RandomBits


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
        from roundoff.formats.names import parse_format  # noqa: PLC0415  the registry knows every family

        return text if isinstance(text, Format) else parse_format(text)

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
            source: float32 or float64, dense memory; what :func:`roundoff.formats.rounding.check_roundable` accepts.
            target: same shape, strides and dtype, dense; may be ``source`` itself, may not otherwise overlap it.
            rounding: the mode.
            overflow: instead of the format's own policy; None for that.
            random: the random bits of stochastic rounding; None for the other modes.

        Raises:
            FormatError: the format cannot do what ``overflow`` asks, or ``random`` is missing.
        """
