"""A learner from states as compiled programs: the parts of its updates, and acting."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor

from ...formats import FloatFormat, Format, Rounding
from ...simulate import CompiledStep, FormatsAsData, Simulation, carriers_of_operands
from ..algorithms.learner import Learner
from ..algorithms.part import Metrics, Part
from ..config.fields import KeyRole
from ..config.fixes import draws_random_bits
from ..config.learning_keys import OptimizerKeys
from ..config.registry import keys_with
from ..config.train_config import TrainConfig
from ..experience.on_policy import Minibatch
from ..experience.replay import Batch
from ..optimizers.adam import LONGEST_TABLE, steps_until_constant

_BASELINES = ("none", "naive", "eps")  # Others add conventional loss scaling, coercion or master weights.

# Time of compilation (seconds, for programs that are on disk) over time saved in a small simulated update.
_WORTHWHILE_UPDATES = 3000

_ACTING = "acting"


def compile_updates(
    learner: Learner, updates: int, *, wanted: bool | None, on_notice: Callable[[str], None] | None = None
) -> str:
    """Compiles the updates of a learner, if that is possible and worthwhile.

    Args:
        learner: new or resumed; its ``compiled`` and ``acting`` are set.
        updates: the number of remaining updates.
        wanted: True compiles if it is possible, False never, None if it saves time.
        on_notice: called, in words, if the compiler fails when the updates begin; they then run eagerly.

    Returns:
        The decision and its reason, in words.
    """
    reason = reason_against(learner.config)
    if reason is None and wanted is None:
        reason = reason_not_to(learner.simulation, updates, learner.config.device)
    if reason is None and wanted is not False:
        compiled = CompiledUpdates(learner, on_notice)
        if compiled.reason is None:
            learner.compiled = compiled
            compile_acting(learner, on_notice)
            return "updates are compiled"
        reason = compiled.reason
    return f"updates run eagerly: {reason or 'as asked'}"


def compile_acting(learner: Learner, on_notice: Callable[[str], None] | None = None) -> None:
    """Compiles the choice of actions in training, which spends half of its time between operations."""
    settings = set() if learner.simulation is None else set(learner.simulation.policy.settings("rounding"))
    activations = learner.config.storage and learner.config.storage.activations
    if Rounding.STOCHASTIC in settings or (activations and activations.rounding == Rounding.STOCHASTIC):
        return  # Its random bits are numbered action by action.
    actor = learner.networks[learner.acting_network]

    def sample(parameters: Tensor, numbers: dict[str, Tensor], observations: Tensor, noise: Tensor) -> Tensor:
        return learner.acting_by(parameters, numbers).sample_actions(observations, noise)

    def choose_eagerly(reason: str) -> None:
        if on_notice:
            on_notice(f"actions are chosen eagerly: {reason}")

    programs = programs_of(learner)[_ACTING]
    fixed = (actor.flat, learner.numbers_to_act)
    learner.acting = CompiledStep[..., Any](
        sample, learner.simulation, programs, choose_eagerly, fixed=fixed, roles=True
    )


def reason_not_to(simulation: Simulation | None, updates: int, device: str) -> str | None:
    """Returns the reason why compiling would not save time; None if it would."""
    if device != "cpu":
        return "the time that compiling saves on a GPU has not been measured; --compile compiles them"
    if simulation is None:
        return "compiling saves little time where nothing is simulated"
    if updates < _WORTHWHILE_UPDATES:
        return f"compiling takes more time than it saves in {updates} updates"
    return None


def reason_against(config: TrainConfig) -> str | None:
    """Returns the reason why the updates of such a learner cannot be compiled; None if it may be possible."""
    if config.reason_not_compiled:
        return config.reason_not_compiled
    assert isinstance(config, OptimizerKeys)
    random = config.storage is not None and config.storage.is_random
    if random and config.policy.get("rounding") == Rounding.STOCHASTIC:
        return "policy and storage both round stochastically, and number their random bits together"
    return next(_reasons_against_optimizers(config), None)


def _reasons_against_optimizers(config: OptimizerKeys) -> Iterator[str]:
    if not isinstance(Format.parse(config.format), FloatFormat):
        yield f"{config.format} is not a float format"
    if config.native:
        yield "native half precision is computed by PyTorch's own kernels"
    if config.qat:
        yield "qat changes their arithmetic in the middle of a run"
    if config.learners > 1:
        yield "learners exchange gradients in the middle of an update"
    if config.baseline not in _BASELINES:
        yield f"the baseline {config.baseline} is not compiled"
    if (config.anneal_over or 0) >= LONGEST_TABLE:
        yield f"a learning rate that changes over {config.anneal_over} updates takes too long a table"
    for key in ("adam_beta1", "adam_beta2") if config.optimizer == "adam" else ():
        beta = getattr(config, key)
        if steps_until_constant(beta) > LONGEST_TABLE:
            yield f"{key} = {beta} is so near to 1 that the table of its bias corrections would be too long"


_Programs = defaultdict[str, dict[Any, Any]]
_PROGRAMS: dict[str, _Programs] = {}


def programs_of(learner: Learner, members: int = 1) -> _Programs:
    """Returns this process's programs for a kind of learner, by part; a worker with many runs traces each kind once."""
    sizes = (learner.observation_size, learner.action_size, learner.row_size)
    kind_of_programs = f"{members} {kind(learner.config, learner.simulation)}{sizes}"
    return _PROGRAMS.setdefault(kind_of_programs, defaultdict(dict))


def kind(config: TrainConfig, simulation: Simulation | None) -> str:
    """Returns a key of everything that programs of a learner depend on except tensor shapes; formats are their data."""
    irrelevant = keys_with(KeyRole.OUTSIDE_UPDATES | KeyRole.DATA)
    relevant: dict[str, Any] = {"algorithm": config.algorithm}
    relevant |= {key: value for key, value in config.as_json().items() if key not in irrelevant}
    if isinstance(config, OptimizerKeys):
        relevant["reward_scale"] = config.scale_of_rewards  # An automatic scale depends on irrelevant keys.
    if simulation is not None:
        assert isinstance(config, OptimizerKeys)
        policy = simulation.policy
        relevant["products"] = simulation.products
        if simulation.narrow_products:  # A program contains the dtypes of such products.
            relevant["carriers"] = [str(dtype) for dtype in carriers_of_operands(policy)]
        # Only rounding to nearest-even takes formats as data; for other modes ``format`` itself is relevant.
        if set(policy.settings("rounding")) == {Rounding.NEAREST_EVEN}:
            dtype = Format.parse(policy.format).carrier
            formats = simulation.formats
            relevant["format"] = [str(dtype), FormatsAsData(formats, dtype, torch.device("cpu")).kind]
            # Equal formats with several names are one input of a program.
            relevant["named"] = [(formats.index(fmt), fmt.native) for fmt in simulation.named_formats]
            relevant["policy"], relevant["storage"] = _without_formats(config)
        if draws_random_bits(config.fixes):  # The program contains the formats of stochastic rounding.
            relevant["stochastic"] = [str(fmt) for fmt in simulation.formats]
    return json.dumps(relevant)


def _without_formats(config: OptimizerKeys) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a policy, and storage, without the formats that ``named`` describes.

    Storage with stochastic rounding keeps its formats, which the program contains.
    """
    policy = dict(config.policy)
    if "rules" in policy:
        policy["rules"] = [{**rule, "format": "format" in rule} for rule in policy["rules"]]
    stored = {} if config.storage is None else config.storage.formats
    nearest = Rounding.NEAREST_EVEN
    return policy, {name: str(nearest if kept.rounding == nearest else kept) for name, kept in stored.items()}


@final
class CompiledUpdates:
    """Computes the updates of a learner by programs: the same bits, in less time.

    The programs change the learner's tensors.

    Args:
        learner: the learner, new or resumed.
        on_notice: called, in words, if the compiler fails later, when a program is first needed.

    Attributes:
        reason: the reason for eager updates, in words; None if they are compiled.
    """

    def __init__(self, learner: Learner, on_notice: Callable[[str], None] | None = None) -> None:
        self.reason: str | None = None
        self._on_notice: Callable[[str], None] | None = None  # Not during construction: the caller reads ``reason``.
        traced = TracedLearner(learner)
        programs, simulation = programs_of(learner), learner.simulation
        options: dict[str, Any] = {"fixed": (traced.tensors,), "roles": True}
        self._steps = {
            name: CompiledStep[..., Any](traced.program(part), simulation, programs[name], self._run_eagerly, **options)
            for name, part in ((part.name, part) for part in learner.parts)
        }
        self._on_notice = on_notice

    def compute(self, part: Part, inputs: tuple[Any, ...]) -> Metrics:
        """Runs a part."""
        metrics: Metrics = self._steps[part.name](*as_tensors(inputs))
        return metrics

    def write_back(self) -> None:
        """Does nothing: the programs change the learner's own tensors."""

    def _run_eagerly(self, reason: str) -> None:
        """Reports, once, that the compiler has failed."""
        if self.reason is None and self._on_notice:
            self._on_notice(f"updates run eagerly: {reason}")
        self.reason = self.reason or reason


@final
class TracedLearner:
    """A learner in the form for programs: tensors, which they change, and functions of such tensors.

    Args:
        learner: the learner, new or resumed.

    Attributes:
        learner: the argument.
        tensors: all tensors that an update reads and writes: for each optimizer and average, by name, and under
            ``numbers`` the hyper-parameters that are data to programs.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.tensors: dict[str, Any] = {name: optimizer.tensors for name, optimizer in learner.optimizers.items()}
        self.tensors |= {name: average.tensors for name, average in learner.traceable_averages.items()}
        options: dict[str, Any] = {"dtype": learner.dtype, "device": learner.device}
        self.tensors["numbers"] = {name: torch.as_tensor(value, **options) for name, value in learner.numbers.items()}

    def program(self, part: Part) -> Callable[..., Metrics]:
        """Returns a part as a function of ``tensors`` and of the result of :func:`as_tensors`."""

        def compute(tensors: dict[str, Any], *inputs: torch.Tensor) -> Metrics:
            learner = self.learner.bound_to(tensors)
            batch = (learner.unpacked(inputs[0]),) if part.batch else ()
            return learner.compute(part, batch + inputs[part.batch :])

        return compute


def as_tensors(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Returns the inputs of a part as tensors: a batch becomes its rows."""
    return tuple(x.rows if isinstance(x, (Batch, Minibatch)) else x for x in inputs)
