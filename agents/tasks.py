"""The names of the control tasks, known without importing the simulator."""

from __future__ import annotations

import difflib

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


def check_task(name: str) -> str:
    """Returns ``name`` if it is a task.

    Args:
        name: ``<domain>_<task>`` of the DeepMind control suite, as in ``cartpole_swingup``; or ``gym:<id>`` of a
            Gymnasium environment with continuous actions, as in ``gym:Pendulum-v1``.

    Raises:
        ValueError: there is no such task; the message names the nearest ones.
    """
    if name.startswith(GYMNASIUM_PREFIX):
        # Only those who use Gymnasium import it, and its environment is made once to see its spaces.
        from roundoff.agents.gymnasium_environment import check_gymnasium_task  # noqa: PLC0415

        return check_gymnasium_task(name)
    if name in DOMAIN_AND_TASK:
        return name
    near = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"allowed are {', '.join(TASKS)}, and gym:<id>"
    raise ValueError(f'unknown task "{name}"; {hint}')
