"""From a YAML file to finished runs: planning, executing, and the folder that holds the results."""

from roundoff.sweeps.errors import SweepError, SweepFileError
from roundoff.sweeps.plan import Plan, Run, plan_file, plan_text
from roundoff.sweeps.sweep import Summary, run_sweep

__all__ = ["Plan", "Run", "Summary", "SweepError", "SweepFileError", "plan_file", "plan_text", "run_sweep"]
