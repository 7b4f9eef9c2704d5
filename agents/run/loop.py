"""A run in progress: its learner, environments and experience, step by step to the end."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from roundoff.files import write_json
from roundoff.origin import origin

from ..errors import FileError
from ..experience.replay import Replay
from ..experience.sampling import Sampler
from ..streams import Stream, sequence
from . import checkpoint
from .directory import Crash, Result, RunDirectory, check_same_config
from .evaluate import Evaluation, evaluate
from .metrics import MetricsLog
from .observed import Numerics
from .parts import make_learner
from .snapshots import write_networks, write_states
from .stopping import Stopped, StopRequest
from .stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import torch
    from numpy.typing import NDArray

    from ..algorithms.part import Metrics
    from ..config.train_config import TrainConfig
    from ..environments.parallel import VectorEnvironment
    from ..experience.sampling import Sample

_SECONDS_BETWEEN_REPORTS = 1.0

Training: TypeAlias = "Generator[Any, tuple[Metrics, float], Result]"
_Updating: TypeAlias = "Generator[Any, tuple[Metrics, float], Crash | None]"


@final
@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        step: environment steps taken.
        steps: environment steps of the whole run.
        last_return: mean return of the last evaluation of this process; None before the first.
        loss_scale: that of the learner's leading optimizer.
    """

    step: int
    steps: int
    last_return: float | None
    loss_scale: float


@final
class Run:
    """A run in progress: its learner, environments and experience, and where it stands.

    Args:
        config: of the run.
        files: its folder, claimed and locked; the run continues from the checkpoint there.
        device: of its tensors.
        environments: not seeded yet.
        on_progress: see :func:`train`.
        stop: likewise.

    Attributes:
        learner: as it is.
        recorder: with its experience.
    """

    def __init__(
        self,
        config: TrainConfig,
        files: RunDirectory,
        device: torch.device,
        environments: VectorEnvironment,
        on_progress: Callable[[Progress], None] | None,
        stop: StopRequest,
    ) -> None:
        self.config = config
        self.files = files
        self.device = device
        self.on_progress = on_progress
        self.stop = stop
        *training, self.evaluation_environments = environments.groups
        numbers = iter(range(config.environments))
        for group in training:
            group.seed([sequence(config.seed, Stream.ENVIRONMENT, next(numbers)) for _ in range(len(group))])
        self.sampler = Sampler(training)
        # Of each group, in the run's format: what its next action answers to.
        self.observations: list[torch.Tensor] = []
        self.metrics: Metrics = {}
        self.learner, self.recorder = make_learner(config, environments, device)
        self.intake = self.recorder.intake
        self.numerics = Numerics(self.learner.simulation) if config.observe and self.learner.simulation else None
        self.step = 0
        self.last_checkpoint = 0
        self.last_evaluation: Evaluation | None = None
        self.seconds_before = 0.0
        self.started = time.perf_counter()
        self.seconds_away = 0.0
        self.stopwatch = Stopwatch()
        self.last_report = 0.0
        self.length = self._resume() if files.checkpoint.exists() else self._begin()
        self.seconds_before += time.perf_counter() - self.started

    @property
    def updates_to_come(self) -> int:
        """At most, if the run does not crash."""
        return (self.config.steps - self.step) // self.config.action_repeat

    def training(self) -> Training:
        """The run, from where it is to the end; a generator.

        Yields:
            A batch for an update of the agent, and is sent what that returned, and how many seconds of it to count.
        """
        self.started = time.perf_counter()
        self._report()
        with MetricsLog(self.files.path, length=self.length, step=self.step) as log:
            crash = None
            while self.step < self.config.steps and crash is None:
                if self.stop.made:
                    self._save(log)
                    raise Stopped(self.step)
                if self.step - self.last_checkpoint >= self.config.checkpoint_every:
                    self._save(log)
                crash = yield from self._agent_step(log)
            if crash is None and self.step % self.config.eval_every >= self.config.action_repeat:
                crash = self._evaluate(log)  # the end was not a moment to evaluate anyway
            if crash and self.numerics:
                crash = Crash(crash.step, f"{crash.reason}; {self.numerics.first_nonfinite()}")
                log.write("numerics", self.step, self.numerics.record())
        return self._finish(crash)

    def _begin(self) -> int:
        """Begins the first episodes; returns the length of ``metrics.jsonl``."""
        observations = self.sampler.begin()
        for part in observations:
            for observation in part:
                self.recorder.begin(observation)
        self.observations = [self.intake.perceive(part) for part in observations]
        return 0

    def _agent_step(self, log: MetricsLog) -> _Updating:
        """Gives actions to one group of environments, and learns from what the next group has done."""
        with self.stopwatch.measure("actions"):
            actions = self._choose_actions(self.observations[self.sampler.turn])
        if not np.isfinite(actions).all():
            return Crash(self.step, "the policy took a non-finite action in training")
        with self.stopwatch.measure("environment"):
            sample = self.sampler.act(actions)
        return (yield from self._learn(sample, log)) if sample else None

    def _learn(self, sample: Sample, log: MetricsLog) -> _Updating:
        """Takes over the transitions of a sample, one by one, each with its update."""
        config, steps = self.config, sample.steps
        with self.stopwatch.measure("replay"):
            rows = self.recorder.rows(self.observations[sample.group], sample)
            self.observations[sample.group] = self.intake.perceive(steps.observations)
        ends = zip(steps.last.tolist(), sample.returns.tolist(), strict=True)
        for i, (last, episode_return) in enumerate(ends):
            if self.step >= config.steps:
                return None
            with self.stopwatch.measure("replay"):
                self.recorder.add(rows[i], steps, i)
            self.step += config.action_repeat
            yield from self._update()
            if self.step % config.eval_every < config.action_repeat:
                with self.stopwatch.measure("evaluation"):
                    crash = self._evaluate(log)
                if crash:
                    return crash
            if last:
                with self.stopwatch.measure("logging"):
                    values = self.learner.summarize(self.metrics) if self.metrics else {}
                    log.write("train", self.step, {"episode_return": episode_return, **values})
            if last or time.perf_counter() - self.last_report > _SECONDS_BETWEEN_REPORTS:
                self._report()
        return None

    def _update(self) -> Generator[Any, tuple[Metrics, float], None]:
        due = self.recorder.due()
        while True:
            with self.stopwatch.measure("replay"):
                batch = next(due, None)
            if batch is None:
                return
            began = time.perf_counter()
            metrics, seconds = yield batch
            self.seconds_away += time.perf_counter() - began - seconds
            # The first one compiles, or reads from the disk what was compiled.
            self.stopwatch.add("updates" if self.metrics else "first update", seconds)
            self.metrics |= metrics

    def _choose_actions(self, observations: torch.Tensor) -> NDArray[np.floating[Any]]:
        """Numbers of the format for each actuator: the recorder's at first, then the learner's."""
        explored = self.recorder.explore(len(observations), self.sampler.under_way)
        if explored is not None:
            return explored
        return self.intake.from_format(self.learner.act(observations, deterministic=False))

    def _evaluate(self, log: MetricsLog) -> Crash | None:
        """Evaluates the policy as it is; training goes on as if nothing had happened."""
        numbers = itertools.count()

        def policy(observations: NDArray[Any]) -> NDArray[np.floating[Any]]:
            seen = self.intake.perceive(observations)
            return self.intake.from_format(self.learner.act(seen, deterministic=True, number=next(numbers)))

        evaluation = evaluate(self.evaluation_environments, policy, seed=self.config.seed, step=self.step)
        if evaluation.crashed:
            return Crash(self.step, "the policy took a non-finite action in evaluation")
        self.last_evaluation = evaluation
        values = {
            "return_mean": evaluation.mean,
            "return_std": evaluation.std,
            "returns": list(evaluation.returns),
        }
        log.write("eval", self.step, values)
        if self.config.keep_networks:
            write_networks(self.files.snapshots, self.step, self.learner.layers())
        if self.numerics:
            log.write("numerics", self.step, self.numerics.record())
        self._report()
        return None

    def _save(self, log: MetricsLog) -> None:
        """Writes a checkpoint."""
        with self.stopwatch.measure("checkpoints"):
            self._write_checkpoint(log)

    def _write_checkpoint(self, log: MetricsLog) -> None:
        self.last_checkpoint = self.step
        state = {
            "config": self.config.as_json(),
            "agent": self.learner.state_dict(),
            **self.recorder.state_dict(),
            "environment": self.sampler.state_dict(),
            "metrics": {name: value.clone() for name, value in self.metrics.items()},
            "numerics": self.numerics.state_dict() if self.numerics else None,
            "step": self.step,
            "seconds": self._seconds(),
            "metrics_length": log.synced_length(),
        }
        checkpoint.save(self.files.checkpoint, state)

    def _resume(self) -> int:
        """Takes over the checkpoint; returns the length that ``metrics.jsonl`` had."""
        state = checkpoint.load(self.files.checkpoint)
        try:
            check_same_config(state["config"], self.config, str(self.files.checkpoint))
            self.learner.load_state_dict(state["agent"])
            self.recorder.load_state_dict(state)
            observations = self.sampler.load_state_dict(state["environment"])
            self.observations = [self.intake.perceive(part) for part in observations]
            self.metrics = {name: value.to(self.device) for name, value in state["metrics"].items()}
            if self.numerics:
                self.numerics.load_state_dict(state["numerics"])
            self.step = self.last_checkpoint = state["step"]
            self.seconds_before = state["seconds"]
            length: int = state["metrics_length"]
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise FileError(
                f"{self.files.checkpoint}: is no complete checkpoint of this run ({type(error).__name__}: {error});"
                " delete the run's folder to start the run anew"
            ) from error
        return length

    def _finish(self, crash: Crash | None) -> Result:
        """Writes what a finished run leaves; the result comes last, since it says that all else is there."""
        if crash:
            result = Result("crashed", 0.0, 0.0, self.step, crash)
        else:
            assert self.last_evaluation is not None
            result = Result("done", self.last_evaluation.mean, self.last_evaluation.std, self.step)
        checkpoint.save(self.files.agent, dict(self.learner.weights()))
        if self.config.keep_networks:
            assert isinstance(self.intake.replay, Replay)  # refused for pixels
            write_states(self.files.snapshots, self.intake.replay)
        if self.numerics:
            self.numerics.write_table(self.files.numerics)
        seconds = self._seconds()
        spent = {name: round(value, 3) for name, value in self.stopwatch.seconds.items()}
        timing = {"seconds": seconds, "steps_per_second": self.step / seconds, "spent": spent}
        write_json(self.files.timing, timing | origin())
        write_json(self.files.result, result.as_json())
        self.files.checkpoint.unlink(missing_ok=True)
        return result

    def _seconds(self) -> float:
        """Wall-clock time spent on the run that was not lost to interruptions."""
        return self.seconds_before + time.perf_counter() - self.started - self.seconds_away

    def _report(self) -> None:
        self.last_report = time.perf_counter()
        if self.on_progress:
            last_return = self.last_evaluation.mean if self.last_evaluation else None
            loss_scale = self.learner.loss_scale
            self.on_progress(Progress(self.step, self.config.steps, last_return, loss_scale))
