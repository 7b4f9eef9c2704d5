"""Defines the section ``search``: the goal of a search, and its criterion of good enough."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from roundoff.errors import RoundoffError
from roundoff.locks import cached_property

from ..errors import SweepError
from ..subjects.subject import RunConfig
from .documents import read_cost_model

if TYPE_CHECKING:
    from ...simulate import CostModel

REFERENCE = "fp32"
_COSTS = ("bits", "bops", "bytes", "memory")
PartKind = Literal["role", "module", "operation", "storage"]
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_CHEAPEST_KEYS = ("by", "over", "within", "formats", "choose")
_WITHIN_SHARE = re.compile(r"\s*within\s+(\d+(?:\.\d+)?)\s*%\s*")


def _model(by: str) -> CostModel | None:
    return None if by in _COSTS else read_cost_model(by)


@final
class SearchGoal(BaseModel):
    """The goal of a search: the fewest bits that keep the mean over seeds near fp32's, the best or the cheapest.

    Attributes:
        looks_for: ``fewest bits``; ``best``, among all that varies except tasks and seeds; or ``cheapest``: the formats
            of an arithmetic's parts that cost least.
        of: the key of the format, of the run or of its actors.
        bits: ``significand`` or ``exponent``: the bits in which the formats differ; ``width``: formats of any
            families that differ in the bits of a number.
        until: ``within 2 %``: how far below the reference's mean (above it, if minimized) is good enough.
        by: the cost to minimize (cheapest): ``bits``, the mean bits of the numbers that a step moves; ``bops``, its bit
            operations; ``bytes``, the bytes that it moves; ``memory``, the bytes that are kept; or the name or file of
            a model of the products' cost.
        over: the parts that get separate formats (cheapest): roles, operations, modules of a program, or the
            data that an agent keeps in memory (``storage``).
        within: ``5 %``: the margin of equivalence to fp32 (cheapest).
        formats: the formats that a part may get, besides fp32 (cheapest).
        choose: the number of seeds that choose (cheapest); the others confirm the choice.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    looks_for: Literal["fewest bits", "best", "cheapest"] = Field("fewest bits", alias="for")
    of: Literal["format", "actors.format"] = "format"
    bits: Literal["significand", "exponent", "width"] = "significand"
    until: str = "within 2 %"
    by: str = "bops"
    over: PartKind = "role"
    within: str = "5 %"
    formats: tuple[str, ...] = ()
    choose: int = Field(2, ge=1)

    @field_validator("by")
    @classmethod
    def _check_by(cls, by: str) -> str:
        try:
            _model(by)
        except RoundoffError as error:
            costs = "" if isinstance(error, SweepError) else f" (or {', '.join(_COSTS)})"
            raise ValueError(f"{error}{costs}") from error
        return by

    @field_validator("formats", mode="before")
    @classmethod
    def _read_formats(cls, names: Any) -> Any:
        from ..subjects.program_keys import format_named  # noqa: PLC0415  imports torch, which costs seconds

        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"must be a list of formats, such as [e5m10, e4m3], got {names!r}")
        return tuple(dict.fromkeys(str(format_named(name)) for name in names))

    @field_validator("until", "within")
    @classmethod
    def _check_share(cls, text: str, info: ValidationInfo) -> str:
        pattern, example = (_WITHIN_SHARE, "within 2 %") if info.field_name == "until" else (_SHARE, "5 %")
        if not pattern.fullmatch(text):
            raise ValueError(f"must be a share of fp32's mean, such as {example!r}, got {text!r}")
        return text

    @model_validator(mode="after")
    def _check_keys(self) -> SearchGoal:
        # Each kind of search takes other keys; a key of another kind would be ignored.
        taken = {"best": set(), "cheapest": set(_CHEAPEST_KEYS), "fewest bits": {"of", "bits", "until"}}[self.looks_for]
        if others := self.model_fields_set - {"looks_for"} - taken:
            allowed = ", ".join(sorted(taken)) or "no other keys"
            raise ValueError(f"for: {self.looks_for} takes {allowed}, got {', '.join(sorted(others))}")
        if self.looks_for == "cheapest" and not self.formats:
            raise ValueError("for: cheapest needs formats: those that a part may get, such as [e5m10, e4m3]")
        return self

    @cached_property
    def model(self) -> CostModel | None:
        """The cost model; None if ``by`` does not name a model."""
        return _model(self.by)

    @property
    def margin(self) -> float:
        """The share of the reference's magnitude that may be lost."""
        match = _SHARE.fullmatch(self.within) if self.looks_for == "cheapest" else _WITHIN_SHARE.fullmatch(self.until)
        assert match is not None
        return float(match[1]) / 100

    def format_of(self, run: RunConfig) -> str:
        """Returns a run's value of the searched format.

        Raises:
            ValueError: the run lacks it.
        """
        return str(self._parts(run)[0])

    def rest_of(self, run: RunConfig) -> dict[str, Any]:
        """Returns a run's other keys without the seed, as JSON; a key under ``actors`` is called ``actors.KEY``."""
        return self._parts(run)[1]

    def widths(self, formats: Iterable[str]) -> dict[str, float]:
        """Returns the bits of each format except the reference, the fewest first.

        Raises:
            ValueError: they are not floats, differ in other bits, or are equally wide.
        """
        from ..subjects.program_keys import format_named  # noqa: PLC0415  imports torch, which costs seconds

        named = {name: format_named(name) for name in formats if name != REFERENCE}
        if self.bits == "width":
            bits_by_name = {name: fmt.bits_per_number for name, fmt in named.items()}
        else:
            bits_by_name = self._parts_of_floats(named)
        if len(set(bits_by_name.values())) < len(bits_by_name):  # bisection needs an order
            listed = ", ".join(f"{name} {bits:g}" for name, bits in bits_by_name.items())
            raise ValueError(f"search over {self.bits} takes formats of different bits, got {listed}")
        if len(bits_by_name) < 2:
            raise ValueError(
                f"search needs at least two formats in grid.{self.of.partition('.')[0]}, such as {{e5mX: 1..10}}"
            )
        return dict(sorted(bits_by_name.items(), key=lambda item: item[1]))

    def _parts(self, run: RunConfig) -> tuple[Any, dict[str, Any]]:
        """Splits a run into its searched format and its other keys without the seed."""
        rest = run.as_json()
        rest.pop("seed", None)
        if self.of == "format":
            return rest.pop("format"), rest
        actors = rest.get("actors")
        if not isinstance(actors, dict):
            raise ValueError(  # noqa: TRY004
                f"search is of {self.of}, and a run has no actors; give all of them actors, or leave `of` out"
            )
        del rest["actors"]
        return actors.pop("format"), rest | {f"actors.{key}": value for key, value in actors.items()}

    def _parts_of_floats(self, formats: dict[str, Any]) -> dict[str, float]:
        """Returns significand or exponent bits by name; raises ValueError if the other bits differ."""
        from ...formats import FloatFormat  # noqa: PLC0415  imports torch

        bits: dict[str, float] = {}
        other_bits: dict[int, str] = {}  # a format's name by its bits in the other field
        for name, fmt in formats.items():
            if not isinstance(fmt, FloatFormat):
                raise ValueError(  # noqa: TRY004
                    f"search over {self.bits} bits is over floats, such as {{e5mX: 1..10}}; {name} is none; allowed is"
                    " bits: width"
                )
            significand = self.bits == "significand"
            bits[name] = fmt.significand_bits if significand else fmt.exponent_bits
            other_bits.setdefault(fmt.exponent_bits if significand else fmt.significand_bits, name)
        if len(other_bits) > 1:
            names = " and ".join(other_bits.values())
            raise ValueError(f"search over {self.bits} bits takes formats that differ in nothing else, got {names}")
        return bits
