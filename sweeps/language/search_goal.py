"""The section ``search``: which formats are looked through by bisection, and what is good enough."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, final

from pydantic import BaseModel, ConfigDict, field_validator

if TYPE_CHECKING:
    from collections.abc import Iterable

REFERENCE = "fp32"
_UNTIL = re.compile(r"\s*within\s+(\d+(?:\.\d+)?)\s*%\s*")


@final
class SearchGoal(BaseModel):
    """The fewest bits with which the mean over seeds stays near that of fp32.

    Attributes:
        bits: ``significand`` or ``exponent``: of which the formats have different numbers.
        until: ``within 2 %``: how far below the reference's mean (above it, for a metric to be minimized) is good
            enough.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    bits: Literal["significand", "exponent"] = "significand"
    until: str = "within 2 %"

    @field_validator("until")
    @classmethod
    def _check_until(cls, text: str) -> str:
        if not _UNTIL.fullmatch(text):
            raise ValueError(f"must be a share of fp32's mean, such as 'within 2 %', got {text!r}")
        return text

    @property
    def margin(self) -> float:
        """The share of the reference's magnitude that may be lost."""
        found = _UNTIL.fullmatch(self.until)
        assert found is not None
        return float(found[1]) / 100

    def widths(self, formats: Iterable[str]) -> dict[str, int]:
        """The bits of each format but the reference, the fewest first.

        Raises:
            ValueError: they are no floats, or differ in other bits too.
        """
        from ...formats import FloatFormat  # noqa: PLC0415  imports torch, which costs seconds
        from ..subjects.program_keys import format_named  # noqa: PLC0415  likewise

        found: dict[str, int] = {}
        rest: dict[int, str] = {}
        for name in formats:
            fmt: Any = format_named(name)
            if name == REFERENCE:
                continue
            if not isinstance(fmt, FloatFormat):
                raise ValueError(f"search is over floats, such as {{e5mX: 1..10}}; {name} is none")  # noqa: TRY004
            significand = self.bits == "significand"
            found[name] = fmt.significand_bits if significand else fmt.exponent_bits
            rest.setdefault(fmt.exponent_bits if significand else fmt.significand_bits, name)
        if len(rest) > 1:
            got = " and ".join(rest.values())
            raise ValueError(f"search over {self.bits} bits takes formats that differ in nothing else, got {got}")
        if len(found) < 2:
            raise ValueError("search needs at least two formats in grid.format, such as {e5mX: 1..10}")
        return dict(sorted(found.items(), key=lambda item: item[1]))
