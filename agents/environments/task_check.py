"""Whether there is a task of a name, of the suite or of Gymnasium."""

from __future__ import annotations

from roundoff.extras import from_extras

from .tasks import GYMNASIUM_PREFIX, check_suite_task, module_of


def check_task(name: str) -> str:
    """Returns ``name`` if it is a task; imports nothing that it names.

    Args:
        name: ``<domain>_<task>`` of the DeepMind control suite, as in ``cartpole_swingup``; or ``gym:<id>`` of a
            Gymnasium environment, as in ``gym:Pendulum-v1``; or ``gym:<module>:<id>``, which is
            looked at when it is opened (``open_environment``).

    Raises:
        ValueError: there is no such task; the message names the nearest ones.
    """
    if not name.startswith(GYMNASIUM_PREFIX):
        return check_suite_task(name)
    if ":" not in name.removeprefix(GYMNASIUM_PREFIX):
        # Only those who use Gymnasium import it, and its environment is made once to see its spaces.
        with from_extras():
            from .gymnasium import check_gymnasium_task  # noqa: PLC0415

        return check_gymnasium_task(name)
    if module_of(name) is None:
        raise ValueError(
            f'unknown task "{name}"; the id of an environment that a module registers is written'
            f" {GYMNASIUM_PREFIX}<module>:<id>, as in {GYMNASIUM_PREFIX}my_package:Mine-v0"
        )
    return name


def has_discrete_actions(task: str) -> bool | None:
    """Whether an action of a task is one of several; None where that is known only when the task is opened."""
    if not task.startswith(GYMNASIUM_PREFIX):
        return False
    if module_of(task):
        return None
    from .gymnasium import has_discrete_actions as look  # noqa: PLC0415  likewise

    return look(task)
