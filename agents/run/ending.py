"""What a finished run leaves; the result comes last, since it says that all else is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..sizes import KnownSizes
from . import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from roundoff.runs.folder import RunDirectory
    from roundoff.runs.result import Result

    from ..sizes import Sizes
    from .observed import Numerics
    from .profile import Profile
    from .stopwatch import Stopwatch


def write_ending(
    files: RunDirectory,
    result: Result,
    weights: Mapping[str, torch.Tensor],
    numerics: Numerics | None,
    stopwatch: Stopwatch,
    profile: Callable[[], Profile],
    more: Mapping[str, Any] | None = None,
    sizes: Sizes | None = None,
) -> None:
    """Writes the files of a run that has ended, and removes its checkpoints.

    Args:
        files: of the run.
        result: how it ended.
        weights: the final ones, by name.
        numerics: what rounding did; None if the run does not observe.
        stopwatch: what it has taken.
        profile: asked for at the end.
        more: for ``timing.json``.
        sizes: of the environments, for who takes up the learner without them.
    """
    with stopwatch.measure("checkpoints"):
        about = {"sizes": KnownSizes.of(sizes).as_plain()} if sizes else None
        checkpoint.save(files.agent, dict(weights), about)
        if numerics:
            numerics.write_table(files.numerics)
    seconds = stopwatch.total
    timing: dict[str, Any] = {"seconds": seconds, "steps_per_second": result.step / seconds, **profile().as_json()}
    files.end(result, {**timing, **(more or {})})
