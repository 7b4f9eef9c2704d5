"""From folders of runs to statistics, tables and figures."""

from roundoff.analysis.errors import AnalysisError
from roundoff.analysis.plot import plot
from roundoff.analysis.report import report
from roundoff.analysis.store import Experiment, read_experiment

__all__ = ["AnalysisError", "Experiment", "plot", "read_experiment", "report"]
