"""From a YAML file to finished runs: planning, executing, and the folder that holds the results."""

from roundoff.extras import from_extras

with from_extras():
    from .errors import SweepError, SweepFileError
    from .language.plan import Plan, plan_file, plan_text
    from .language.run import Run
    from .sweep import Summary, run_sweep

__all__ = ["Plan", "Run", "Summary", "SweepError", "SweepFileError", "plan_file", "plan_text", "run_sweep"]
