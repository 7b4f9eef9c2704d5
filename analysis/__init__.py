"""From folders of runs to statistics, tables and figures."""

from roundoff.extras import from_extras

with from_extras():
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
    from .statistics.comparisons import difference as difference
    from .statistics.comparisons import holm as holm
    from .statistics.equivalence import MARGIN as MARGIN
    from .statistics.equivalence import equivalence as equivalence
    from .statistics.equivalence import in_words as in_words
    from .statistics.intervals import Interval as Interval
    from .tables import markdown as markdown

__all__ = ["AnalysisError", "Experiment", "against", "compare", "pareto", "plot", "read_experiment", "report", "table"]
