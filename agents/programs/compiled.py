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

_BASELINES = ("none", "naive", "eps")

# What compilation costs (seconds, for programs that are on disk) over what it saves of a small simulated update.
_WORTHWHILE_UPDATES = 3000

_ACTING = "acting"


def compile_updates(
    learner: Learner, updates: int, *, wanted: bool | None, on_notice: Callable[[str], None] | None = None
) -> str:
    """Compiles the updates of a learner, where that is possible and pays.

    Args:
        learner: new or resumed; its ``compiled`` is set, and its ``acting``.
        updates: the number of updates to come.
        wanted: True compiles where it is possible at all, False nowhere, None where it saves time.
        on_notice: called, in words, if the compiler fails when the updates begin; they run eagerly then.

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
        return  # its draws are numbered action by action
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
    """The reason that it would not save time; None if it would."""
    if device != "cpu":
        return "the time that compiling saves on a GPU has not been measured; --compile compiles them"
    if simulation is None:
        return "compiling saves little time where nothing is simulated"
    if updates < _WORTHWHILE_UPDATES:
        return f"compiling takes more time than it saves in {updates} updates"
    return None


def reason_against(config: TrainConfig) -> str | None:
    """The reason that the updates of such a learner cannot be compiled; None if it may be possible."""
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
    """The programs of this process for a kind of learner, by part: a worker that trains many traces each kind once."""
    sizes = (learner.observation_size, learner.action_size, learner.row_size)
    kind_of_programs = f"{members} {kind(learner.config, learner.simulation)}{sizes}"
    return _PROGRAMS.setdefault(kind_of_programs, defaultdict(dict))


def kind(config: TrainConfig, simulation: Simulation | None) -> str:
    """Returns a key of all that a learner's programs depend on except tensor shapes; formats are data to them."""
    other = keys_with(KeyRole.OUTSIDE_UPDATES | KeyRole.DATA)
    relevant: dict[str, Any] = {"algorithm": config.algorithm}
    relevant |= {key: value for key, value in config.as_json().items() if key not in other}
    if isinstance(config, OptimizerKeys):
        relevant["reward_scale"] = config.scale_of_rewards  # which depends on more, if it is automatic
    if simulation is not None:
        assert isinstance(config, OptimizerKeys)
        policy = simulation.policy
        relevant["products"] = simulation.products
        if simulation.narrow_products:  # whose dtypes are no data to a program
            relevant["carriers"] = [str(dtype) for dtype in carriers_of_operands(policy)]
        if set(policy.settings("rounding")) == {Rounding.NEAREST_EVEN}:
            dtype = Format.parse(policy.format).carrier
            formats = simulation.formats
            relevant["format"] = [str(dtype), FormatsAsData(formats, dtype, torch.device("cpu")).kind]
            # Which of those that are named are the same one: it is one input of a program.
            relevant["named"] = [(formats.index(fmt), fmt.native) for fmt in simulation.named_formats]
            relevant["policy"], relevant["storage"] = _without_formats(config)
        if draws_random_bits(config.fixes):  # stochastic rounding has its formats in the program
            relevant["stochastic"] = [str(fmt) for fmt in simulation.formats]
    return json.dumps(relevant)


def _without_formats(config: OptimizerKeys) -> tuple[dict[str, Any], dict[str, str]]:
    """A policy, and storage, without the formats that ``named`` tells apart.

    What is rounded stochastically has its format in the program.
    """
    policy = dict(config.policy)
    if "rules" in policy:
        policy["rules"] = [{**rule, "format": "format" in rule} for rule in policy["rules"]]
    stored = {} if config.storage is None else config.storage.formats
    plain = Rounding.NEAREST_EVEN
    return policy, {name: str(plain if one.rounding == plain else one) for name, one in stored.items()}


@final
class CompiledUpdates:
    """Takes the updates of a learner over: the same bits, in less time.

    The programs change the learner's own tensors.

    Args:
        learner: as it is, new or resumed.
        on_notice: called, in words, if the compiler fails later, when a program is first needed.

    Attributes:
        reason: the reason for eager updates, in words; None if they are compiled.
    """

    def __init__(self, learner: Learner, on_notice: Callable[[str], None] | None = None) -> None:
        self.reason: str | None = None
        self._on_notice: Callable[[str], None] | None = None  # what is known from the beginning is no news
        traced = TracedLearner(learner)
        programs = programs_of(learner)
        self._steps = {
            part.name: CompiledStep[..., Any](
                traced.program(part),
                learner.simulation,
                programs[part.name],
                self._run_eagerly,
                fixed=(traced.tensors,),
                roles=True,
            )
            for part in learner.parts
        }
        self._on_notice = on_notice

    def compute(self, part: Part, inputs: tuple[Any, ...]) -> Metrics:
        """Runs a part."""
        metrics: Metrics = self._steps[part.name](*as_tensors(inputs))
        return metrics

    def write_back(self) -> None:
        """There is nothing to tell: the programs change the learner's own tensors."""

    def _run_eagerly(self, reason: str) -> None:
        """Says, once, that the compiler has failed."""
        if self.reason is None and self._on_notice:
            self._on_notice(f"updates run eagerly: {reason}")
        self.reason = self.reason or reason


@final
class TracedLearner:
    """A learner as programs see it: tensors, which they change, and functions of such tensors.

    Args:
        learner: as it is, new or resumed.

    Attributes:
        learner: the same.
        tensors: all that an update reads and writes: of each optimizer and each average its tensors, by its name, and
            under ``numbers`` the hyper-parameters that are data to programs.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.tensors: dict[str, Any] = {name: one.tensors for name, one in learner.optimizers.items()}
        self.tensors |= {name: average.tensors for name, average in learner.traceable_averages.items()}
        options: dict[str, Any] = {"dtype": learner.dtype, "device": learner.device}
        self.tensors["numbers"] = {name: torch.as_tensor(value, **options) for name, value in learner.numbers.items()}

    def program(self, part: Part) -> Callable[..., Metrics]:
        """A part as a function of ``tensors`` and of the result of :func:`as_tensors`."""

        def compute(tensors: dict[str, Any], *inputs: torch.Tensor) -> Metrics:
            learner = self.learner.bound_to(tensors)
            rest = inputs[part.batch :]
            return learner.compute(part, ((learner.unpacked(inputs[0]),) if part.batch else ()) + rest)

        return compute


def as_tensors(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs of a part, with the batch as its rows."""
    return tuple(x.rows if isinstance(x, (Batch, Minibatch)) else x for x in inputs)
