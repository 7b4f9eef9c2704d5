"""From a YAML file to finished runs: planning, executing, and the folder that holds the results.

The names are imported when they are first used: planning needs PyTorch, and the list of presets must not.
"""

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

if TYPE_CHECKING:
    from .errors import SweepError, SweepFileError
    from .language.plan import Plan, plan_file, plan_text
    from .subjects.subject import Run
    from .sweep import Summary, run_sweep

    # isort: split
    # For the command line, which imports nothing from behind this face; no part of the public interface.
    from .blame import blame_returns as blame_returns
    from .costs import count_costs as count_costs
    from .costs import runs_in as runs_in
    from .costs import runs_of_plan as runs_of_plan
    from .display.dry_run import describe_estimate as describe_estimate
    from .display.dry_run import describe_plan as describe_plan
    from .display.progress import ProgressDisplay as ProgressDisplay
    from .display.progress import RunDisplay as RunDisplay
    from .display.status_table import exit_status as exit_status
    from .display.status_table import status_lines as status_lines
    from .display.status_table import status_values as status_values
    from .display.status_table import watch_status as watch_status
    from .folder.status import read_status as read_status
    from .language import located_yaml as located_yaml
    from .language.documents import read_cost_model as read_cost_model
    from .language.plan import plan_run as plan_run
    from .language.preset_files import find_sweep as find_sweep
    from .language.preset_files import presets_table as presets_table
    from .language.schema import sweep_schema as sweep_schema
    from .programs import called as called
    from .reproduction import find_reproduction as find_reproduction
    from .reproduction import finished_elsewhere as finished_elsewhere
    from .reproduction import take_over as take_over
    from .search import run_search as run_search
    from .subjects.subject import run_id as run_id
    from .sweep import usable_cores as usable_cores
    from .workers.local import LocalProcesses as LocalProcesses
    from .workers.on_ray import RayExecutor as RayExecutor
    from .workers.pool import Executor as Executor

__all__ = ["Plan", "Run", "Summary", "SweepError", "SweepFileError", "plan_file", "plan_text", "run_sweep"]

__getattr__ = lazy_names(__name__)
