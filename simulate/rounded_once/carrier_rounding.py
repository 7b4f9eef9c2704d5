"""Round exact results to the carrier's type."""

from __future__ import annotations

from typing import NamedTuple

from ...formats import Rounding


class CarrierRounding(NamedTuple):
    """The rounding of an exact result to the carrier."""

    mode: Rounding
    """Any mode but the nearest ones; for square roots also nearest-even."""
    saturating: bool = False
    """Whether values beyond the carrier's largest number become that one, in every mode, and nothing becomes zero."""
