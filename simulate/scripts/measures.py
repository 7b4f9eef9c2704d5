"""Criteria that a script must meet to pass, evaluated on values that it prints or logs."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .running import ScriptError

FINITE = "finite"

_COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w|[.,]\d)|[-+]?(?:nan|inf(?:inity)?)\b"
)
_MEASURE = re.compile(rf"\s*(?P<name>[^<>=]*[^<>=\s])\s*(?P<how><=|>=|<|>)\s*(?P<bound>{_NUMBER})\s*(?P<percent>%?)\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# Between a name and its number: marks, spaces, a word in brackets, "is"; a call such as tensor( or np.float64(.
_BETWEEN = r"""["']?(?:\s*(?:\([^()\d\n]*\)|is\b|[:=|>~…]|\.{2,}|\.(?!\d)|-+(?=\s)))*\s*["']?(?:[\w.]+\(|\[)?\s*"""
_ANY = re.compile(rf"(?<![\w.-])(?:{_NUMBER})", re.IGNORECASE)
_NOT_FINITE = re.compile(r"(?<![\w.])[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Measure:
    """The criterion that a script must meet: a bound for the last value under a name, or that its numbers are finite.

    A number is given under the name ``loss`` by ``roundoff.log(step, loss=...)``, or, if the script logs none, by what
    it prints: ``loss 2.31``, ``loss: 2.31``, ``loss=2.31``, ``"loss": 2.31``, ``loss (train) ... 2.31``,
    ``'loss': tensor(2.31)``, to standard output or error, in whatever case. ``val loss`` is also a name; ``test_loss``
    and ``loss_scale`` are other names than ``loss``. A percentage is a hundredth: ``93.1%`` is 0.931.

    Args:
        name: name of the number, or ``finite``.
        how: ``<``, ``<=``, ``>`` or ``>=``; empty for ``finite``.
        bound: the value to compare with; NaN for ``finite``.
    """

    name: str
    how: str = ""
    bound: float = math.nan

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Parses a measure such as ``loss<2.5``, ``accuracy>=90%`` or ``finite``.

        Raises:
            ScriptError: it describes none.
        """
        if text.strip() == FINITE:
            return cls(FINITE)
        match = _MEASURE.fullmatch(text)
        if match is None or not math.isfinite(bound := _value(match["bound"], match["percent"])):
            raise ScriptError(
                f"a measure is a name, one of < <= > >=, and a number, such as loss<2.5; or finite; got {text!r}"
            )
        return cls(match["name"].strip("\"' "), match["how"], bound)

    def __str__(self) -> str:
        return self.name if self.name == FINITE else f"{self.name}{self.how}{self.bound:g}"

    def of(self, output: str, logged: Mapping[str, float]) -> float | None:
        """Returns the number to judge; None if the script gave none.

        ``finite`` gives 1 if all numbers that the script logged last, and all that it printed, are finite, else 0.

        Args:
            output: the output of the script.
            logged: the last values that it logged, by name.
        """
        output = _COLOUR.sub("", output)
        if self.name == FINITE:
            if not logged and not _ANY.search(output):
                return None
            return float(not _NOT_FINITE.search(output) and all(map(math.isfinite, logged.values())))
        if self.name in logged:
            return logged[self.name]
        words = r"\s+".join(map(re.escape, self.name.split()))
        pattern = rf"(?<![\w.-]){words}(?!\w){_BETWEEN}(?P<number>{_NUMBER})(?P<percent>\s?%)?"
        matches = list(re.finditer(pattern, output, re.IGNORECASE))  # the last one counts
        return _value(matches[-1]["number"], matches[-1]["percent"]) if matches else None

    def describe(self, number: float) -> str:
        """Returns a value of the measure in words."""
        if self.name == FINITE:
            return "finite" if number else "not finite"
        return f"{self.name} {number:g}"

    def passes(self, number: float) -> bool:
        """Whether a number is good enough; NaN never is."""
        return number == 1 if self.name == FINITE else bool(_COMPARISONS[self.how](number, self.bound))


def _value(number: str, percent: str | None) -> float:
    return float(number.replace(",", "")) / (100 if percent else 1)
