"""Checks that a task exists, and returns its kind of actions."""

from __future__ import annotations

from roundoff.extras import from_extras

from .tasks import TaskKind, check_game, check_suite_task, kind_of, module_of


def check_task(name: str) -> str:
    """Returns ``name`` if it is a task; imports nothing that it names.

    Args:
        name: ``<domain>_<task>`` of the DeepMind control suite, as in ``cartpole_swingup``; ``gym:<id>`` of a
            Gymnasium environment, as in ``gym:Pendulum-v1``; ``minatar:<game>``; or ``atari:<Game>``. What
            ``gym:<module>:<id>`` and games of Atari are is looked at when they are opened (``open_environment``).

    Raises:
        ValueError: the task does not exist; the message names the nearest ones.
    """
    kind = kind_of(name)
    if kind is TaskKind.SUITE:
        return check_suite_task(name)
    if kind is not TaskKind.GYMNASIUM:
        return check_game(name)
    if ":" not in name.removeprefix(kind):
        # Only those who use Gymnasium import it, and its environment is made once to see its spaces.
        with from_extras():
            from .gymnasium import check_gymnasium_task  # noqa: PLC0415

        return check_gymnasium_task(name)
    if module_of(name) is None:
        raise ValueError(
            f'unknown task "{name}"; the id of an environment that a module registers is written'
            f" {kind}<module>:<id>, as in {kind}my_package:Mine-v0"
        )
    return name


def has_discrete_actions(task: str) -> bool | None:
    """Whether an action of a task is one of several; None where that is known only when the task is opened."""
    if kind_of(task) is not TaskKind.GYMNASIUM:
        return kind_of(task) is not TaskKind.SUITE  # of games all are
    if module_of(task):
        return None
    from .gymnasium import has_discrete_actions as look  # noqa: PLC0415  costs seconds

    return look(task)
