"""The cost of an agent's update in its arithmetic, counted over a few updates, with stored and sent bytes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch

from roundoff.runs.result import Result

from ...formats import Format
from ...simulate import MODELS, CostCounter, CostModel, CountedSteps, Simulation, learned
from ..actors.weights import FullPolicy
from ..algorithms.learner import Learner
from ..config.actor_keys import WithActors, has_actors
from ..config.train_config import TrainConfig
from ..errors import RunError
from ..learners.parcels import Parcel
from ..optimizers.kahan_momentum import MovingAverage
from ..optimizers.master_weights import MasterEMA
from ..run.loop import Run
from .alone import open_run

_FEW_TRANSITIONS = 64  # Before the first update.
_STORED = {"moment": "first_moments", "second": "second_moments", "compensation": "compensations"}
_KINDS = {"moment": "moments", "second": "moments", "compensation": "compensations"}


def count_updates(
    config: TrainConfig, allow_imports: Collection[str] = (), models: Sequence[CostModel] = tuple(MODELS.values())
) -> CountedSteps:
    """Counts the cost of an update of an agent, in the arithmetic of its run.

    A separate run in a temporary folder makes updates until every part has had its turn, after a first, uncounted
    update that rounds the initial weights to their formats. Everything outside of updates (acting, environments,
    evaluation) is not counted.

    Args:
        config: the config of the run.
        allow_imports: modules that may be imported to make the task.
        models: cost models of products.

    Returns:
        ``Cost.as_json`` for one update: ``bytes_kept`` with the replay buffer at its full size, by kind under
        ``kept``; and ``sent``, the bytes of a message of weights to actors, or of a learner's gradients, if any are
        sent. Also the networks and the averages of their weights before and after.

    Raises:
        RunError: the run is not valid, ended before it learned, or is of another library.
    """
    # A run in this process only, which learns soon and observes nothing.
    single: dict[str, Any] = {"learners": 1, "asynchronous": False, "communicate": None, "communicate_every": 1}
    single |= {"actors": None, "sampler_learner": None}
    changes = {"seed_steps": min(getattr(config, "seed_steps", 0), _FEW_TRANSITIONS), "observe": False, **single}
    keys = type(config).model_fields
    changed = config.model_copy(update={name: value for name, value in changes.items() if name in keys})
    with TemporaryDirectory() as folder, open_run(changed, f"{folder}/run", None, None, allow_imports) as run:
        if not isinstance(run, Run):
            raise RunError(f"{config.algorithm}: the cost of an update is counted only for agents of roundoff")
        learner = run.learner
        if learner.simulation is None:
            learner.simulation = Simulation("fp32", seed=config.seed)
        # The counter also watches computations outside of the simulation: with master weights.
        counter = learner.simulation.count_cost()
        for optimizer in learner.optimizers.values():
            optimizer.watch(counter)
        for average in learner.averages.values():
            if isinstance(average, MasterEMA):
                average.watch(counter)
        count = math.lcm(*(part.every for part in learner.parts))  # Updates in which each part is due at least once.
        replay = list(_tensors_of(getattr(run.intake, "replay", None)))
        input_format = None if config.native else Format.parse(config.format)  # Of data from environments.
        _declare_formats(learner, counter, begins=True)
        training = run.training()
        try:
            batch = next(training)  # For all updates, since the cost does not depend on the values in a batch.
        except StopIteration as end:
            result = end.value
            crash = result.crash if isinstance(result, Result) else None
            reason = crash.reason if crash else "it has no steps to learn in"
            raise RunError(f"the run ended before its cost was counted: {reason}") from None
        finally:
            training.close()
        initial = _learned_tensors(learner)
        for number in range(1 + count):
            if number == 1:
                counter.restart()  # The first update, which is not counted, has rounded the weights.
            _declare_format(counter, _tensors_of(batch), input_format)
            learner.update(batch)
            _declare_formats(learner, counter, begins=False)
        _declare_format(counter, replay, input_format)
        counted = counter.report(_kept_tensors(learner, replay)).as_json(count, models)
        sent = _count_sent_bytes(config, learner)
        return CountedSteps({**counted, **({"sent": sent} if sent else {})}, initial, _learned_tensors(learner))


def _learned_tensors(learner: Learner) -> dict[str, torch.Tensor]:
    networks = (optimizer.parameters for optimizer in learner.optimizers.values())
    return learned({"weights": networks, "averages": (average.average for average in learner.averages.values())})


def _declare_formats(learner: Learner, counter: CostCounter, *, begins: bool) -> None:
    """States the formats of an agent's initial tensors, and the rounding outside of its simulation."""
    assert learner.simulation is not None
    storage = getattr(learner.config, "storage", None)
    stored = {} if storage is None else storage.formats
    run_format = None if learner.config.native else learner.simulation.format
    default_format = run_format if begins else None

    def kept_in(key: str, *, is_stored: bool = True) -> Format | None:
        return Format.parse(stored[key].format) if is_stored and key in stored else default_format

    for average in learner.averages.values():
        has_master = isinstance(average, MasterEMA)
        _declare_format(counter, [average.average], run_format if has_master else kept_in("targets"))
        if not has_master:
            sums = [x for x in _hidden_tensors(average) if x.shape == average.average.shape]  # No tables of constants.
            _declare_format(counter, sums, kept_in("target_compensations"))
    for name, optimizer in learner.optimizers.items():
        is_stored = name in learner.networks  # Not a single number, such as a temperature.
        has_master = optimizer.parameters is not optimizer.flat  # Then the optimizer's state is in full precision.
        weights = run_format if has_master else kept_in("weights", is_stored=is_stored)
        _declare_format(counter, [optimizer.flat], weights)
        adam = optimizer.optimizer
        state = adam.state_of(optimizer.parameters, kahan=adam.param_groups[0]["kahan"])
        for buffer in state.keys() & _STORED.keys() if not has_master else ():
            _declare_format(counter, [state[buffer]], kept_in(_STORED[buffer], is_stored=is_stored))


def _declare_format(counter: CostCounter, tensors: Iterable[torch.Tensor], format: Format | None) -> None:
    for x in tensors:
        if format is not None and x.is_floating_point():
            counter.stored(x, format)


def _kept_tensors(learner: Learner, replay: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Returns the tensors that an agent keeps from one update to the next, by kind."""
    tensors: dict[str, list[torch.Tensor]] = {"weights": [network.flat for network in learner.networks.values()]}
    for optimizer in learner.optimizers.values():
        tensors["weights"].append(optimizer.flat)  # Again for networks: the counter counts each tensor once.
        if optimizer.parameters is not optimizer.flat:
            tensors.setdefault("master weights", []).append(optimizer.parameters)
    for average in learner.averages.values():
        tensors.setdefault("targets", []).append(average.average)
        if hidden := _hidden_tensors(average):
            kind = "master weights" if isinstance(average, MasterEMA) else "sums behind targets"
            tensors.setdefault(kind, []).extend(hidden)
    for optimizer in learner.optimizers.values():
        scale = optimizer.scaler.tensors if optimizer.scaler else {}
        state = {**optimizer.optimizer.state[optimizer.parameters], **scale}
        for name, x in ((name, x) for name, x in state.items() if isinstance(x, torch.Tensor)):
            tensors.setdefault(_KINDS.get(name, "scales and steps"), []).append(x)
    return tensors | ({"replay": list(replay)} if replay else {})


def _hidden_tensors(average: MovingAverage) -> list[torch.Tensor]:
    """Returns the other tensors of an average: sums, rounding errors, the average in full precision."""
    tensors = [x for x in (*vars(average).values(), *average.state_dict().values()) if isinstance(x, torch.Tensor)]
    return list({id(x): x for x in tensors if x.dim() and x is not average.average}.values())


def _tensors_of(owner: Any, depth: int = 2) -> Iterator[torch.Tensor]:
    """Yields the tensors of a replay buffer, also in nested buffers."""
    if owner is None or depth == 0:
        return
    names = [field.name for field in fields(owner)] if is_dataclass(owner) else list(vars(owner))
    for value in (getattr(owner, name) for name in names):
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value).__module__.startswith("roundoff.agents.experience"):
            yield from _tensors_of(value, depth - 1)


def _count_sent_bytes(config: TrainConfig, learner: Learner) -> dict[str, float]:
    """Returns the bytes of a message: a policy that an actor pulls, or a learner's gradients of an update."""
    if isinstance(config, WithActors) and has_actors(config) and config.actors:
        message = FullPolicy.of(learner.policy_layers()).packed(config.actors)
        return {"a pull of weights by an actor": float(message.nbytes)}
    if getattr(config, "learners", 1) == 1 or getattr(config, "asynchronous", False):
        return {}
    communicate = getattr(config, "communicate", None)
    fmt = Format.parse(communicate) if communicate else None
    gradients = (optimizer.flat.detach() for optimizer in learner.optimizers.values())
    parcels = [Parcel.of(torch.zeros_like(flat).contiguous(), fmt) for flat in gradients]
    return {"gradients of a learner, an update": float(sum(parcel.content.numel() for parcel in parcels))}
