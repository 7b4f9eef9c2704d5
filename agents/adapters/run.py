"""A run of an algorithm of another library: the library learns, and the run watches it from the environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import MetricsLog
from roundoff.runs.result import Crash, Result

from ...simulate import OTHER_REASONS, damaged_weight, exact, lost_numbers
from ..algorithms.arithmetic import change_to, simulation_of
from ..environments.parallel import EnvironmentGroup, VectorEnvironment
from ..errors import RunError
from ..quantization.products import Ranges
from ..quantization.quantization import Quantization
from ..run.evaluate import Evaluation
from ..run.profile import Profile, Stopwatch
from ..run.reporter import Numerics, Progress, Reporter
from ..run.restored import take_over
from ..run.stopping import Stopped, StopRequest
from .evaluation import STEPS_OF_TRAINING, Model, ModelEvaluation, make_model, seeded
from .settings import AdapterConfig

if TYPE_CHECKING:
    from .world import World


class _LeaveLibrary(BaseException):  # Not an Exception: a library may catch all of those.
    """Leaves the library in the middle of a step.

    Args:
        crash: the reason; None if the run received a request to stop.
    """

    def __init__(self, crash: Crash | None = None) -> None:
        super().__init__(crash)
        self.crash = crash


@final
class AdaptedRun:
    """A run of a library's algorithm, from its beginning to its end; it cannot be continued.

    Args:
        config: the config of the run.
        files: its folder, claimed and locked.
        device: the device of its tensors.
        on_progress: see :func:`roundoff.agents.train`.
        stop: as in ``train``.
        allow_imports: as in ``train``.

    Attributes:
        model: the library's model; None before :meth:`train`.
    """

    def __init__(
        self,
        config: AdapterConfig,
        files: RunDirectory,
        device: torch.device,
        on_progress: Callable[[Progress], None] | None,
        stop: StopRequest,
        allow_imports: Collection[str],
        *,
        wait: bool = False,
    ) -> None:
        self.config, self.files, self.device = config, files, device
        self.stop = stop
        self.model: Model | None = None
        on_gpu = device.type == "cuda"
        self.stopwatch = Stopwatch(partial(torch.cuda.synchronize, device)) if wait and on_gpu else Stopwatch()
        self._waited = wait if on_gpu else None
        self._allow_imports = list(allow_imports)
        self._step = self._evaluated_at = 0
        self._simulation = simulation_of(config)
        self._inside = ExitStack()  # Leaves the simulation that the library learns in.
        self._quantized = False
        numerics = Numerics(self._simulation) if config.observe and self._simulation else None
        self._reporter = Reporter(files, self.stopwatch, numerics, on_progress, config.steps)

    def profile(self) -> Profile:
        """Reports how the time has been spent so far."""
        return Profile(self.stopwatch.spent(), self._step // self.config.action_repeat, self._waited)

    def train(self) -> Result:
        """Trains from the beginning to the end.

        Raises:
            Stopped: on request; the run cannot be continued.
            RunError: the library refuses the options or the task, or an environment failed.
            Exception: whatever else the library raises while all its numbers are finite.
        """
        for old in self.files.path.glob("tensorboard/events*"):  # Such a run restarts if its process was killed.
            old.unlink()
        with (
            self._reporter.logging(MetricsLog(self.files, length=0, step=0)),
            self._evaluation_group() as self._group,
            seeded(self.device, self.config.seed),
        ):
            self._reporter.report(self._step)
            crash = self._reporter.crashed(self._learn(), self._step)
        assert self.model is not None
        result = self._reporter.result(crash, self._step, self.model.updates)
        weights = {name: tensor.detach().cpu() for name, tensor in self.model.weights().items()}
        return self._reporter.end(result, weights, self.profile)

    @contextmanager
    def restored(
        self, weights: Mapping[str, torch.Tensor], step: int
    ) -> Iterator[Callable[..., tuple[Evaluation, Ranges]]]:
        """Restores the run's end: gives :meth:`.ModelEvaluation.episodes` of it, for the block; nothing is written.

        Args:
            weights: the final weights of the run.
            step: environment steps that it had taken.

        Raises:
            RunError: these are not weights of this model.
        """
        with self._evaluation_group() as self._group, seeded(self.device, self.config.seed):
            model, self._step = self._make(), step
            take_over(weights, model.weights(), str(self.files.agent))
            self._be_quantized()
            yield partial(self._evaluation.episodes, step)

    @contextmanager
    def _evaluation_group(self) -> Iterator[EnvironmentGroup]:
        opening = {"task": self.config.task, "action_repeat": self.config.action_repeat}
        opening |= {"allow_imports": self._allow_imports}
        workers = min(self.config.environment_workers, self.config.eval_episodes)
        episodes = [self.config.eval_episodes]
        with VectorEnvironment(opening, episodes, [False], workers=workers, on_stop=self.stop.make) as evaluation:
            yield evaluation.groups[0]

    def _learn(self) -> Crash | None:
        """Lets the library learn; returns the crash, if there was one."""
        with self.stopwatch.measure("library"):
            model = self._make()
        try:
            with warnings.catch_warnings(), self.stopwatch.measure("library"), self._inside:
                self._enter()
                # The library's own lines read numbers; the user cannot change them.
                warnings.filterwarnings("ignore", "the number .* is read inside a simulation")
                # A copy is an operation of the simulation: it rounds initial weights as the policy rounds updated ones.
                with torch.no_grad():
                    for tensor in model.weights().values():
                        if tensor.is_floating_point():
                            tensor.copy_(tensor.clone())
                # The return before learning is a reference for scores; runs in fp32 are compared with other runs.
                if self.config.format == "fp32" and self._simulation is None:
                    self._reporter.look_at_untrained(self._episodes())
                model.learn(self.config.transitions)
            self._be_quantized()
            self._evaluate()  # After the last update.
        except _LeaveLibrary as left:
            if left.crash is None:
                raise Stopped(self._step, saved=False) from None  # A library's run has no checkpoints.
            return left.crash
        except Exception as error:
            crash = self._reporter.raised(error, self._lost_numbers(error), self._step, self.config.algorithm)
            if crash is None:
                raise
            return crash
        return None

    def _lost_numbers(self, error: Exception) -> str | None:
        """Describes the values that were not finite when the library raised; None if it raised for another reason."""
        assert self.model is not None
        description = lost_numbers(error, self.model.weights())
        if description is None and self._simulation is not None and not isinstance(error, OTHER_REASONS):
            return str(self._simulation.last_read) or None  # A number that the program read, such as a loss.
        return description

    def _enter(self) -> None:
        if self._simulation is not None:
            self._inside.enter_context(self._simulation)

    def _be_quantized(self) -> bool:
        """Changes to the numbers of ``qat`` if these begin now; the simulation is then left. Returns whether it did."""
        if self._quantized or not self.config.is_quantized(self._step):
            return False
        self._quantized = True
        self._inside.close()
        assert self._simulation is not None
        change_to(self._simulation, self.config, quantized=True)
        self._evaluation.be_quantized()
        return True

    def _make(self) -> Model:
        """Makes the model, and its evaluation."""
        try:
            self.model = make_model(self.config, self._open)
        except (TypeError, ValueError, AssertionError, AttributeError, KeyError, NotImplementedError) as error:
            raise RunError(
                f"{self.config.algorithm} cannot be made with options {self.config.options} for {self.config.task}:"
                f" {type(error).__name__}: {error}"
            ) from error
        self._evaluation = ModelEvaluation(self.config, self.model, self._group, self.device)
        return self.model

    def _open(self, number: int) -> World:
        from .world import open_world  # noqa: PLC0415  imports the simulators

        total = 0.0

        def after(reward: float, last: bool) -> None:
            nonlocal total
            self._step += self.config.action_repeat
            total += reward
            if last:
                assert self.model is not None
                with self.stopwatch.measure("logging"):
                    self._reporter.log.write("train", self._step, {"episode_return": total, **self.model.logged()})
                self._reporter.report(self._step)
                total = 0.0

        return open_world(self.config, number, self._before_step, after, self.stopwatch)

    def _before_step(self, action: Any) -> None:
        """Called by an environment before each step of training."""
        if self._be_quantized():
            self._enter()
        if self._simulation is not None:
            self._simulation.step = self._step // self.config.action_repeat % STEPS_OF_TRAINING
        every = self.config.eval_every
        if self._step // every > self._evaluated_at // every and self._step < self.config.steps:
            with exact():  # Only the library's own operations are simulated and counted.
                self._evaluate()
        if self.stop.made:
            raise _LeaveLibrary
        if not np.isfinite(action).all():
            raise _LeaveLibrary(Crash(self._step, "the policy took a non-finite action in training"))
        if self._reporter.is_due:
            self._reporter.report(self._step)

    def _evaluate(self) -> None:
        """Evaluates the model as it is, with separate random streams; training is not affected.

        Raises:
            _LeaveLibrary: weights or actions are not finite.
        """
        assert self.model is not None
        self._evaluated_at = self._step
        if damaged := damaged_weight(self.model.weights()):
            raise _LeaveLibrary(Crash(self._step, f"the weights {damaged} are not finite"))
        with self.stopwatch.measure("evaluation"):
            crash = self._reporter.evaluate(self._step, self.config.evaluate_in, self._episodes)
        if crash:
            raise _LeaveLibrary(crash)
        self._reporter.report(self._step)

    def _episodes(self, quantization: Quantization | None = None) -> Evaluation:
        return self._evaluation.episodes(self._step, quantization)[0]
