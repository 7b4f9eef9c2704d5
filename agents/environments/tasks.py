"""The names of tasks, known without importing a simulator."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from roundoff.own_modules import NAME

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

MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class TaskKind(StrEnum):
    """The kinds of tasks; a value is the prefix of the names of its kind."""

    SUITE = ""
    """A task of the DeepMind control suite, as in ``cartpole_swingup``."""
    GYMNASIUM = "gym:"
    """A Gymnasium id, as in ``gym:Pendulum-v1``."""
    MINATAR = "minatar:"
    """A game of MinAtar, as in ``minatar:breakout``."""
    ATARI = "atari:"
    """A game of the Arcade Learning Environment, as in ``atari:Pong``."""


PACKAGES = {
    TaskKind.SUITE: "dm_control",
    TaskKind.GYMNASIUM: "gymnasium",
    TaskKind.MINATAR: "minatar",
    TaskKind.ATARI: "ale_py",
}
"""Packages that each kind needs, by the name to import."""


_WITH_MODULE = re.compile(rf"{TaskKind.GYMNASIUM}({NAME}):[\w./-]+")


class Task(NamedTuple):
    """A task, by the parts of its name."""

    kind: TaskKind
    name: str
    """The name without the prefix of the kind."""
    module: str | None
    """The module that is imported to make ``gym:<module>:<id>``; None for other tasks."""

    @classmethod
    def parse(cls, text: str) -> Task:
        """Splits the name of a task into its parts; the task need not exist."""
        kind = next((kind for kind in TaskKind if kind and text.startswith(kind)), TaskKind.SUITE)
        match = _WITH_MODULE.fullmatch(text)
        return cls(kind, text.removeprefix(kind), match[1] if match else None)


def modules_of_tasks_in(text: str) -> list[str]:
    """Returns the modules of all tasks that are named in a text, such as an argument of a command."""
    return re.findall(rf"{TaskKind.GYMNASIUM}({NAME}):", text)


def may_import(module: str, allowed: Collection[str]) -> bool:
    """Whether ``module`` or a package around it is allowed, or the program has already imported it."""
    parts = module.split(".")
    return module in sys.modules or any(".".join(parts[: i + 1]) in allowed for i in range(len(parts)))


def check_suite_task(name: str) -> str:
    """Returns ``name`` if it is a task of the DeepMind control suite.

    Raises:
        ValueError: the task does not exist; the message names the nearest ones.
    """
    if name in DOMAIN_AND_TASK:
        return name
    others = f"{', '.join(TASKS)}, gym:<id>, minatar:<game> and atari:<Game>"
    raise ValueError(unknown_task(name, TASKS, f"allowed are {others}"))


def check_game(name: str) -> str:
    """Returns ``name`` if it has the form of a game of MinAtar or Atari; only ale-py knows the Atari games.

    Raises:
        ValueError: it does not; the message lists the allowed names.
    """
    task = Task.parse(name)
    if task.kind is TaskKind.MINATAR:
        if task.name not in MINATAR_GAMES:
            games = ", ".join(TaskKind.MINATAR + game for game in MINATAR_GAMES)
            raise ValueError(f'unknown task "{name}"; allowed are {games}')
    elif not re.fullmatch(rf"{TaskKind.ATARI}[A-Z][A-Za-z0-9]*", name):
        raise ValueError(f'unknown task "{name}"; a game is written as in {TaskKind.ATARI}SpaceInvaders')
    return name


def unknown_task(name: str, names: Collection[str], allowed: str) -> str:
    """Returns the message for an unknown task, with the nearest names, or ``allowed`` if none is near."""
    kind, short, _ = Task.parse(name)
    # Without the prefix, which all names of a kind share and which would make all of them look near.
    near = difflib.get_close_matches(short, [known.removeprefix(kind) for known in names], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(kind + known for known in near)}?" if near else allowed
    return f'unknown task "{name}"; {hint}'
