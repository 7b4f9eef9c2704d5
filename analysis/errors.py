"""Errors of the analysis that a user can fix."""

from roundoff.errors import RoundoffError


class AnalysisError(RoundoffError):
    """A folder that holds nothing to analyse, or figures that cannot be written."""
