"""Evaluates the policy of a finished run with and without quantization, in the same episodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

import torch

from roundoff.extras import require
from roundoff.runs.folder import RunDirectory

from ...formats import Format
from ..adapters.run import AdaptedRun
from ..adapters.settings import AdapterConfig
from ..config.train_config import TrainConfig
from ..quantization.products import Ranges
from ..quantization.quantization import Quantization
from ..run.evaluate import Evaluation, EvaluationPolicy, evaluate
from ..run.parts import check_run
from ..run.restored import read_finished
from ..run.stopping import StopRequest
from .finished import finished_agent, looked_at

Play: TypeAlias = Callable[..., tuple[Evaluation, Ranges]]  # plays the episodes with a quantization

_UNQUANTIZED = Quantization("as it is")


@final
@dataclass(frozen=True)
class QuantizedRun:
    """Evaluations of the policy of a finished run, unchanged and quantized, in the same episodes.

    Attributes:
        config: the config of the run.
        original: the returns of the unchanged policy.
        quantized: the evaluation of each quantization, by name; it has no returns if an action was not finite.
    """

    config: TrainConfig
    original: Evaluation
    quantized: dict[str, Evaluation]


def quantize(
    directory: str | Path,
    quantizations: Sequence[Quantization],
    *,
    episodes: int | None = None,
    calibrate: int = 0,
    allow_imports: Collection[str] = (),
) -> QuantizedRun:
    """Evaluates the final policy of a run, unchanged and quantized, on the same seeds.

    With the run's own number of episodes, the episodes are the same as in its last evaluation.

    Args:
        directory: the folder of a finished run.
        quantizations: the quantizations; see :meth:`.Quantization.parse`.
        episodes: the number of episodes of each evaluation; None: the same number as in the run's.
        calibrate: the number of other episodes for measuring the range of each product's inputs first, to fix the
            scales of activations; 0: each observation has its own scales.
        allow_imports: as for :func:`roundoff.agents.train`.

    Raises:
        RunError: the run is missing or not finished, its weights are another algorithm's, or its task cannot be made.
        FormatError: a quantization does not have scales to fix, or does not fit the run's arithmetic.
        FileError: a file is damaged.
    """
    files = RunDirectory(directory)
    config, step, weights = read_finished(files)
    for quantization in quantizations:
        quantization.check_fits(Format.parse(config.format).carrier)
        if calibrate:
            quantization.calibrated([])  # Raises FormatError if it cannot be calibrated.
    open_play = partial(_open_player, config, files, weights, allow_imports=allow_imports)
    count = episodes or config.eval_episodes
    ranges: Ranges = []
    if calibrate:
        with open_play(step + 1, calibrate) as play:  # Another step, so that episodes differ from the evaluation's.
            _, ranges = play(_UNQUANTIZED, watch=True)
    with open_play(step, count) as play:
        original, _ = play()
        quantized = {q.name: play(q.calibrated(ranges) if calibrate else q)[0] for q in quantizations}
    return QuantizedRun(config, original, quantized)


@contextmanager
def _open_player(
    config: TrainConfig,
    files: RunDirectory,
    weights: dict[str, Any],
    step: int,
    episodes: int,
    *,
    allow_imports: Collection[str],
) -> Iterator[Play]:
    """Yields a function that plays the episodes of an evaluation; see :meth:`.ModelEvaluation.episodes`."""
    config = looked_at(config, episodes)
    if isinstance(config, AdapterConfig):
        check_run(config, allow_imports)
        require(config.package)
        run = AdaptedRun(config, files, torch.device("cpu"), None, StopRequest(), allow_imports)
        with run.restored(weights, step) as play_at_the_end:
            yield play_at_the_end
        return
    with finished_agent(config, step, weights, files.agent, allow_imports=allow_imports) as agent:

        def play(quantization: Quantization | None = None, *, watch: bool = False) -> tuple[Evaluation, Ranges]:
            acting = agent.learner if quantization is None else agent.learner.quantized(quantization, watch=watch)
            policy = EvaluationPolicy(acting, agent.intake, quantization, step=step)
            evaluation = evaluate(agent.episodes, policy, seed=config.seed, step=step)
            return evaluation, acting.products.ranges if acting.products else []

        yield play
