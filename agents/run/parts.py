"""Build the parts of a run from its config: environments, learner and recorder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from roundoff.extras import require

from ..config.actor_keys import WithActors, has_actors
from ..config.own_algorithms import agent_module
from ..config.train_config import TrainConfig
from ..environments.opening import check_task_imports
from ..environments.parallel import VectorEnvironment
from ..errors import RunError

if TYPE_CHECKING:
    import torch

    from ..algorithms.learner import Learner
    from ..algorithms.part import Metrics
    from ..experience.intake import Intake
    from ..experience.sampling import Sample
    from ..sizes import Sizes


class Recorder(Protocol):
    """The interface of the part of a run that keeps its experience; see ``OffPolicyRecorder``."""

    intake: Intake

    def begin(self, observation: NDArray[Any], environment: int) -> None:
        """Takes the first observation of an episode of a training environment, given its number."""

    def explore(self, count: int, under_way: int) -> NDArray[Any] | None:
        """Chooses actions, (count, action), while ``under_way`` others are pending; None: the learner chooses."""

    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """Returns the transitions of a sample, which began with ``observations``, by environment."""

    def add(self, row: torch.Tensor, sample: Sample, i: int) -> None:
        """Stores the transition of environment ``i`` of the sample's group."""

    def waits(self, under_way: int) -> bool:
        """Whether learning must come next, before actions other than the pending ones are taken."""

    def due(self) -> Generator[Any, Metrics | None, None]:
        """Yields the batches to learn from now; the caller sends the metrics of the update with each."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""


def check_run(config: TrainConfig, allow_imports: Collection[str] = ()) -> None:
    """Checks that the imports of a run are installed, allowed and suitable, before anything is written.

    Raises:
        MissingExtraError: a package is not installed.
        RunError: the task's own module is not allowed, or the algorithm cannot train in its environment.
    """
    if isinstance(config, WithActors) and config.actors:
        require("ray", *(("onnx", "onnxruntime") if config.actors.engine == "onnxruntime" else ()))
    try:
        discrete = check_task_imports(config.task, allow_imports)
        config.check_actions(discrete)
    except ValueError as error:
        raise RunError(str(error)) from error


def open_environments(
    config: TrainConfig, on_stop: Callable[[], None], allow_imports: Collection[str] = (), *, evaluation: bool = True
) -> VectorEnvironment:
    """Opens one or two alternating groups of training, and the evaluation group, which may be empty, without seeds.

    If actors have the environments of training, there are no groups of training.

    Raises:
        RunError: the task does not exist, its module is not allowed, the renderer is missing, or a worker failed.
    """
    half = config.environments // 2
    training = [] if has_actors(config) else [config.environments - half, *([half] if half else [])]
    groups = [*training, config.eval_episodes if evaluation else 0]
    begin_next = [*(True for _ in training), False]
    return VectorEnvironment(
        opening_of(config, allow_imports), groups, begin_next, workers=config.environment_workers, on_stop=on_stop
    )


def opening_of(config: TrainConfig, allow_imports: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of ``open_environment`` for a run, by name."""
    opening = {"task": config.task, "action_repeat": config.action_repeat, "allow_imports": list(allow_imports)}
    return opening | config.world()


def make_learner(config: TrainConfig, sizes: Sizes, device: torch.device) -> tuple[Learner, Recorder]:
    """Makes the learner with its initial weights, and the recorder of its experience, by the algorithm's ``make``."""
    parts: tuple[Learner, Recorder] = agent_module(config.algorithm).make(config, sizes, device)
    return parts
