"""From folders of runs to statistics, tables and figures."""

from roundoff.extras import from_extras

with from_extras():
    from .against import against
    from .compare import compare
    from .errors import AnalysisError
    from .plot import plot
    from .reports.writing import report
    from .runs.experiment import Experiment, read_experiment
    from .tables.run_table import table

__all__ = ["AnalysisError", "Experiment", "against", "compare", "plot", "read_experiment", "report", "table"]
