"""For tests of one's own numerical code: are two ways to compute something the same, and how many bits do they need?"""

from typing import TYPE_CHECKING, Any

from roundoff.simulate.testing.edge_values import edge_values
from roundoff.simulate.testing.equivalence import Equivalence, NotEquivalentError, assert_equivalent, equivalence

if TYPE_CHECKING:
    from roundoff.simulate.testing.strategies import formats, tensors

__all__ = [
    "Equivalence",
    "NotEquivalentError",
    "assert_equivalent",
    "edge_values",
    "equivalence",
    "formats",
    "tensors",
]


def __getattr__(name: str) -> Any:
    # Hypothesis is needed by those alone who use its strategies.
    if name in ("formats", "tensors"):
        from roundoff.simulate.testing import strategies  # noqa: PLC0415

        return getattr(strategies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
