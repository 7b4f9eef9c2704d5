"""Turns folders of runs into statistics, tables and figures."""

from typing import TYPE_CHECKING

from roundoff.extras import heavy_imports, lazy_names

with heavy_imports():
    from .against import against
    from .compare import compare
    from .errors import AnalysisError
    from .pareto import pareto
    from .plot import plot
    from .reports.writing import report
    from .runs.experiment import Experiment, read_experiment
    from .tables.run_table import table

    # isort: split
    # For the other folders, which import nothing from behind this face; no part of the public interface.
    from .against import answer_of as answer_of
    from .reports.difference import difference_page as difference_page
    from .statistics.comparisons import difference as difference
    from .statistics.comparisons import holm as holm
    from .statistics.equivalence import MARGIN as MARGIN
    from .statistics.equivalence import equivalence as equivalence
    from .statistics.equivalence import in_words as in_words
    from .statistics.intervals import Interval as Interval
    from .tables import markdown as markdown

if TYPE_CHECKING:
    from .paper.published import PERFORMANCE as PERFORMANCE
    from .paper.published import performance_page as performance_page
    from .paper.reproduction import reproduce as reproduce
    from .plot import TYPES as TYPES
    from .plot import check_known as check_known
    from .runs.collect import collect as collect
    from .tables import quantized as quantized
    from .tables.summary import records as records

__all__ = ["AnalysisError", "Experiment", "against", "compare", "pareto", "plot", "read_experiment", "report", "table"]

__getattr__ = lazy_names(__name__)
