"""A run in progress: its learner, environments and experience, step by step to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from roundoff.runs.folder import RunDirectory, check_same_config
from roundoff.runs.log import MetricsLog, NoLog
from roundoff.runs.result import Crash, Result

from ...simulate import lost_numbers
from ..actors.stage import Stage
from ..algorithms.part import Metrics
from ..config.train_config import TrainConfig
from ..environments.parallel import VectorEnvironment
from ..experience.replay import Replay
from ..experience.sampling import NotFinite, Sample
from ..learners.single import LearnerLost, Learners, SingleLearner
from ..quantization.quantization import Quantization
from ..sizes import KnownSizes
from . import checkpoint
from .checkpoint import write_networks, write_states
from .evaluate import Evaluation, EvaluationPolicy, evaluate
from .profile import Profile, Stopwatch
from .reporter import Progress, Reporter
from .state import RunState
from .stopping import Stopped, StopRequest

Training: TypeAlias = "Generator[Any, tuple[Metrics, float], Result]"
_Updates: TypeAlias = "Generator[Any, tuple[Metrics, float], Crash | None]"


@final
class Run:
    """A run in progress: its learner, environments and experience, and its progress.

    Args:
        config: the config of the run.
        files: the run's folder, claimed and locked; the run continues from the checkpoint there.
        device: the device of its tensors.
        environments: the environments, without seeds.
        on_progress: see :func:`train`.
        stop: see :func:`train`.
        learners: the group of its learner; None: there is one learner. The leader evaluates, logs and writes results.
        stage: the actors that act for the run; None: the learner acts.
        wait: whether to wait for the GPU at the end of each activity, so that its time is not counted for the next one.

    Attributes:
        state: the contents of its checkpoints.
        learner: its learner.
    """

    def __init__(
        self,
        config: TrainConfig,
        files: RunDirectory,
        device: torch.device,
        environments: VectorEnvironment,
        on_progress: Callable[[Progress], None] | None,
        stop: StopRequest,
        *,
        learners: Learners | None = None,
        stage: Stage | None = None,
        wait: bool = False,
    ) -> None:
        self.config = config
        self.learners: Learners = learners or SingleLearner()
        self.files = files
        self.stop = stop
        self.evaluation_environments = environments.groups[-1]
        self.sizes = KnownSizes.of(environments)
        self.state = RunState(config.share(), environments, device, stage)
        self.agent, self.learner = self.state.agent, self.state.agent.learner
        self.intake = self.agent.recorder.intake
        self.last_checkpoint = 0
        on_gpu = device.type == "cuda"
        self.stopwatch = Stopwatch(partial(torch.cuda.synchronize, device)) if wait and on_gpu else Stopwatch()
        self._waited = wait if on_gpu else None
        self.reporter = Reporter(files, self.stopwatch, self.state.numerics, on_progress, config.steps)
        self.log_length = 0  # Bytes of metrics.jsonl at the last checkpoint.
        self.log_checksum: int | None = None
        self._evaluated_at = -1
        with self.stopwatch.measure("actors" if stage else "environment"):
            # Continues from the checkpoint, if there is one; the leader's step tells the others which one.
            step = -1
            if self.learners.leads and self.files.checkpoint.exists():
                self._resume(self.files.checkpoint)
                step = self.state.step
            step = self.learners.first_step(step)
            if step < 0:
                self.state.begin()
            elif not self.learners.leads:
                self._resume(self.files.checkpoint_of(self.learners.rank, step))
                self.files.forget_checkpoints_after(self.learners.rank, step)
        self._be_quantized()
        self.learners.join(self.learner.optimizers, self.state.step)
        self._first_step = self.state.step
        self.stopwatch.pause()  # Until ``training``: other runs of this process may begin before.

    @property
    def updates_to_come(self) -> int:
        """The number of remaining updates, if the run does not crash."""
        return self.config.updates_in((self.config.steps - self.state.step) // self.config.action_repeat)

    @property
    def has_company(self) -> bool:
        """Whether other processes learn or act for this run."""
        return not isinstance(self.learners, SingleLearner) or self.state.sampler.is_remote

    def profile(self) -> Profile:
        """Returns how this process has spent its time so far."""
        action_count = (self.state.step - self._first_step) // self.config.action_repeat
        return Profile(self.stopwatch.spent(), action_count, self._waited)

    def training(self) -> Training:
        """Runs from the current step to the end, as a generator.

        Yields:
            A batch for an update of the agent; the caller sends the update's metrics and its duration in seconds.
        """
        self.stopwatch.go_on()
        self._report()
        log: MetricsLog | NoLog = NoLog()
        if self.learners.leads:
            log = MetricsLog(self.files, length=self.log_length, step=self.state.step, checksum=self.log_checksum)
        with self.reporter.logging(log):
            crash = None
            self._look_at_untrained()
            try:
                while self.state.step < self.config.steps and crash is None:
                    self._stop_if_asked()
                    if self.state.step - self.last_checkpoint >= self.config.checkpoint_every:
                        self._save()
                    crash = yield from self._agent_step()
            except LearnerLost:
                crash = self.learners.why_lost()  # None: the learner died, but its agent did not crash.
                if crash is None:
                    raise
            except Stopped:
                raise
            except Exception as error:
                description = lost_numbers(error, self.learner.weights())
                crash = self.reporter.raised(error, description, self.state.step, "the agent")
                if crash is None:
                    raise
            if crash is None and self._evaluated_at != self.state.step:
                crash = self._evaluate()  # The last step is not a multiple of eval_every.
            crash = self.reporter.crashed(crash, self.state.step)
        return self._finish(crash)

    def _stop_if_asked(self) -> None:
        if self.learners.is_to_stop(self.stop.made):
            self._save()
            raise Stopped(self.state.step)

    def _agent_step(self) -> _Updates:
        """Acts in one group of environments, and learns from the steps of the next group, or from steps of actors."""
        sampler, not_finite, sample = self.state.sampler, None, None
        try:
            with self.stopwatch.measure(sampler.activity):
                sample = sampler.next(self._choose_actions, self.agent.recorder.waits)
        except NotFinite as error:
            not_finite = error
        for group, observations in sampler.begun():
            self.agent.begin_anew(group, observations)
        for record in sampler.pulls():
            self.reporter.log.write("pull", self.state.step, record)
        if not_finite:
            if not_finite.args:  # The actor that took the action describes it.
                return Crash(self.state.step, str(not_finite))
            reason = "the policy took a non-finite action in training"
            if not all(bool(part.isfinite().all()) for part in self.agent.observations):
                reason += f"; its observation is not finite in {self.config.format}, as it is outside of the range"
            return Crash(self.state.step, reason)
        return (yield from self._learn(sample)) if sample else None

    def _learn(self, sample: Sample) -> _Updates:
        """Stores the transitions of a sample one by one, and updates the agent after each."""
        config, steps = self.config, sample.steps
        with self.stopwatch.measure("copies"):
            rows = self.agent.see(sample)
        ends = zip(steps.last.tolist(), sample.returns.tolist(), strict=True)
        for i, (last, episode_return) in enumerate(ends):
            if self.state.step >= config.steps:
                return None
            with self.stopwatch.measure("replay"):
                self.agent.recorder.add(rows[i], sample, i)
            previous_step = self.state.step
            self.state.step = self.learners.advance(previous_step, config.action_repeat)
            yield from self._update()
            self._be_quantized()
            if self.state.step // config.eval_every != previous_step // config.eval_every:
                with self.stopwatch.measure("evaluation"):
                    crash = self._evaluate()
                if crash:
                    return crash
            if last:
                with self.stopwatch.measure("logging"):
                    values = self.learner.summarize(self.state.metrics) if self.state.metrics else {}
                    self.reporter.log.write("train", self.state.step, {"episode_return": episode_return, **values})
            if last or self.reporter.is_due:
                self.learners.look_after()
                self._report()
        return None

    def _be_quantized(self) -> None:
        """Switches quantization-aware training on or off as ``qat`` says for this step; called after its updates."""
        self.learner.be_quantized(quantized=self.config.is_quantized(self.state.step))

    def _update(self) -> Generator[Any, tuple[Metrics, float], None]:
        due = self.agent.due()
        metrics: Metrics | None = None
        while True:
            try:
                with self.stopwatch.measure("replay"):
                    batch = due.send(metrics)
            except StopIteration:
                return
            start = time.perf_counter()
            metrics, seconds = yield batch
            # The caller may have updated other runs meanwhile: only this run's share counts.
            self.stopwatch.count(seconds - (time.perf_counter() - start))
            # The first update of a process compiles, or reads compiled programs from the disk.
            self.stopwatch.add("updates" if "first update" in self.stopwatch.seconds else "first update", seconds)
            self.state.metrics |= metrics

    def _choose_actions(self, group: int, first: int, under_way: int) -> NDArray[np.floating[Any]]:
        """Returns the agent's actions for a group; the sampler calls it."""
        with self.stopwatch.measure("actions"):
            return self.agent.choose(group, first, under_way)

    def _evaluate(self) -> Crash | None:
        """Evaluates the current policy, without an effect on training."""
        if not self.learners.leads:
            return None
        self._evaluated_at = self.state.step
        step = self._moment()
        episodes = partial(self._episodes, step)
        crash = self.reporter.evaluate(step, self.config.evaluate_in, episodes, crash_step=self.state.step)
        if crash is None:
            if self.config.keep_networks:
                write_networks(self.files.snapshots, step, self.learner.layers())
            self._report()
        return crash

    def _look_at_untrained(self) -> None:
        """Evaluates the untrained policy of a run in fp32, to show later whether the run has learned at all."""
        if self.state.step or self.config.format != "fp32" or self.learner.simulation or not self.learners.leads:
            return
        with self.stopwatch.measure("evaluation"):
            self.reporter.look_at_untrained(self._episodes(0))

    def _episodes(self, step: int, quantization: Quantization | None = None) -> Evaluation:
        """Runs the episodes of an evaluation, which depend only on the policy, the step and the seed."""
        learner = self.learner.quantized(quantization) if quantization else self.learner
        policy = EvaluationPolicy(learner, self.intake, quantization, step=step)
        return evaluate(self.evaluation_environments, policy, seed=self.config.seed, step=step)

    def _moment(self) -> int:
        """Returns the step of an evaluation: for asynchronous learners the last multiple of ``eval_every`` passed."""
        if self.learners.in_step:
            return self.state.step
        config, step = self.config, self.state.step
        return config.steps if step >= config.steps else step // config.eval_every * config.eval_every

    def _save(self) -> None:
        """Writes a checkpoint of each learner, the leader's last: if it exists, the others' are complete."""
        learners = self.learners
        if not learners.leads and not learners.in_step:
            return
        with self.stopwatch.measure("checkpoints"):
            self.last_checkpoint = self.state.step
            state = {
                "config": self.config.as_json(),
                **self.state.state_dict(),
                "seconds": self.stopwatch.total,
                "untrained": self.reporter.untrained,
                "metrics_length": self.reporter.log.synced_length(),
                "metrics_checksum": self.reporter.log.checksum,
            }
            if not learners.leads:
                checkpoint.save(self.files.room_for_checkpoint_of(learners.rank, self.state.step), state)
            learners.meet()  # All others have saved.
            if learners.leads:
                checkpoint.save(self.files.checkpoint, state)

    def _resume(self, path: Path) -> None:
        """Restores the run from a checkpoint."""
        state = checkpoint.load(path)
        with checkpoint.taking_over(path):
            check_same_config(state["config"], self.config, str(path))
            self.state.load_state_dict(state)
            self.last_checkpoint = self.state.step
            self.stopwatch.continue_from(state["seconds"])
            self.reporter.untrained = state.get("untrained")  # Missing in checkpoints of older versions.
            self.log_length, self.log_checksum = state["metrics_length"], state.get("metrics_checksum")

    def _finish(self, crash: Crash | None) -> Result:
        """Writes the final files of a finished run, if this learner leads."""
        assert crash or self._evaluated_at == self.state.step or not self.learners.leads
        result = self.reporter.result(crash, self.state.step, self.learner.updates)
        if not self.learners.leads:
            return result
        if self.config.keep_networks:
            assert isinstance(self.intake.replay, Replay)  # A rule refuses the key for pixels.
            with self.stopwatch.measure("checkpoints"):
                write_states(self.files.snapshots, self.intake.replay)
        weights, timing = self.learner.weights(), self.state.sampler.timing()
        return self.reporter.end(result, weights, self.profile, timing, self.sizes)

    def _report(self) -> None:
        step = min(self.state.step, self.config.steps)  # The last action may be repeated beyond the end.
        self.reporter.report(step, lambda: self.learner.loss_scale)
