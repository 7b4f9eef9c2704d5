"""Tests your own numerical code: whether two functions are equivalent, and how many bits they need."""

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names
from roundoff.simulate.testing.edge_values import edge_values
from roundoff.simulate.testing.equivalence import Equivalence, NotEquivalentError, assert_equivalent, equivalence

if TYPE_CHECKING:
    from roundoff.simulate.testing.strategies import formats, tensors

__all__ = ["Equivalence", "NotEquivalentError", "assert_equivalent", "edge_values", "equivalence", "formats", "tensors"]

__getattr__ = lazy_names(__name__)  # only strategies need Hypothesis
