"""The names of the control tasks, known without importing the simulator."""

from __future__ import annotations

import difflib
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

# All of dm_control's suite but `lqr` (its actions and its episodes have no bounds) and `quadruped_escape`
# (it needs a renderer even for its states).
_TASKS = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}

DOMAIN_AND_TASK = {f"{domain}_{task}": (domain, task) for domain, tasks in _TASKS.items() for task in tasks}
TASKS = tuple(sorted(DOMAIN_AND_TASK))

# What the names of Gymnasium's environments begin with, as in gym:Pendulum-v1.
GYMNASIUM_PREFIX = "gym:"


_MODULE = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_WITH_MODULE = re.compile(rf"{GYMNASIUM_PREFIX}({_MODULE}):[\w./-]+")


def module_of(task: str) -> str | None:
    """The module that is imported to make ``gym:<module>:<id>``; None for other tasks."""
    found = _WITH_MODULE.fullmatch(task)
    return found[1] if found else None


def modules_named_in(text: str) -> list[str]:
    """The modules of all tasks that are named in a text, such as an argument of a command."""
    return re.findall(rf"{GYMNASIUM_PREFIX}({_MODULE}):", text)


def may_import(module: str, allowed: Collection[str]) -> bool:
    """Whether ``module`` is allowed, or a package that holds it, or the program itself has imported it already."""
    parts = module.split(".")
    return module in sys.modules or any(".".join(parts[: i + 1]) in allowed for i in range(len(parts)))


def check_suite_task(name: str) -> str:
    """Returns ``name`` if it is a task of the DeepMind control suite.

    Raises:
        ValueError: it is none; the message names the nearest ones.
    """
    if name in DOMAIN_AND_TASK:
        return name
    near = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"allowed are {', '.join(TASKS)}, and gym:<id>"
    raise ValueError(f'unknown task "{name}"; {hint}')
