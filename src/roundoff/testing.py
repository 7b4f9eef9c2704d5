"""For tests of one's own numerical code: are two ways to compute something the same, and how many bits do they need?"""

from roundoff.simulate.equivalence import Equivalence, NotEquivalentError, assert_equivalent, compare

__all__ = ["Equivalence", "NotEquivalentError", "assert_equivalent", "compare"]
