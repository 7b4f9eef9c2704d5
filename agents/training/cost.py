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

_FEW_TRANSITIONS = 64
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
        models: cost models of products, by their own figures.

    Returns:
        What ``Cost.as_json`` has, for one update: ``bytes_kept`` with the replay buffer at its full size, by kind under
        ``kept``; and ``sent``, the bytes of a message of weights to actors, or of a learner's gradients, where some
        are sent. And the networks and the averages of their weights before and after.

    Raises:
        RunError: the run cannot be made, ended before it learned, or is of another library.
    """
    alone: dict[str, Any] = {"learners": 1, "asynchronous": False, "communicate": None, "communicate_every": 1}
    alone |= {"actors": None, "sampler_learner": None}
    given = {"seed_steps": min(getattr(config, "seed_steps", 0), _FEW_TRANSITIONS), "observe": False, **alone}
    known = type(config).model_fields
    changed = config.model_copy(update={name: value for name, value in given.items() if name in known})
    with TemporaryDirectory() as folder, open_run(changed, f"{folder}/run", None, None, allow_imports) as run:
        if not isinstance(run, Run):
            raise RunError(f"{config.algorithm}: the cost of an update is counted of agents of roundoff's own alone")
        learner = run.learner
        if learner.simulation is None:
            learner.simulation = Simulation("fp32", seed=config.seed)
        counter = learner.simulation.count_cost()
        for optimizer in learner.optimizers.values():
            optimizer.watch(counter)
        for average in learner.averages.values():
            if isinstance(average, MasterEMA):
                average.watch(counter)
        count = math.lcm(*(part.every for part in learner.parts))
        replay = list(_tensors_of(getattr(run.intake, "replay", None)))
        numbers = None if config.native else Format.parse(config.format)  # of what environments give
        _say_formats(learner, counter, begins=True)
        training = run.training()
        try:
            batch = next(training)  # which is learned from again and again: numbers do not matter, and may be lost
        except StopIteration as end:
            result = end.value
            why = result.crash.reason if isinstance(result, Result) and result.crash else "it has no steps to learn in"
            raise RunError(f"the run ended before its cost was counted: {why}") from None
        finally:
            training.close()
        begin = _learned_tensors(learner)
        for number in range(1 + count):
            if number == 1:
                counter.restart()
            _say_format(counter, _tensors_of(batch), numbers)
            learner.update(batch)
            _say_formats(learner, counter, begins=False)
        _say_format(counter, replay, numbers)
        counted = counter.report(_kept_tensors(learner, replay)).as_json(count, models)
        sent = _sent(config, learner)
        return CountedSteps({**counted, **({"sent": sent} if sent else {})}, begin, _learned_tensors(learner))


def _learned_tensors(learner: Learner) -> dict[str, torch.Tensor]:
    networks = (optimizer.parameters for optimizer in learner.optimizers.values())
    return learned({"weights": networks, "averages": (average.average for average in learner.averages.values())})


def _say_formats(learner: Learner, counter: CostCounter, *, begins: bool) -> None:
    """States the formats of an agent's initial tensors, and the rounding outside of its simulation."""
    assert learner.simulation is not None
    storage = getattr(learner.config, "storage", None)
    stored = {} if storage is None else storage.formats
    own = None if learner.config.native else learner.simulation.format
    results = own if begins else None

    def kept_in(key: str, *, is_stored: bool = True) -> Format | None:
        return Format.parse(stored[key].format) if is_stored and key in stored else results

    for average in learner.averages.values():
        has_master = isinstance(average, MasterEMA)
        _say_format(counter, [average.average], own if has_master else kept_in("targets"))
        if not has_master:
            sums = [x for x in _behind(average) if x.shape == average.average.shape]  # and no table of constants
            _say_format(counter, sums, kept_in("target_compensations"))
    for name, optimizer in learner.optimizers.items():
        is_stored = name in learner.networks  # and no single number, such as a temperature
        has_master = optimizer.parameters is not optimizer.flat  # whose state is in full precision, too
        weights = own if has_master else kept_in("weights", is_stored=is_stored)
        _say_format(counter, [optimizer.flat], weights)
        adam = optimizer.optimizer
        state = adam.state_of(optimizer.parameters, kahan=adam.param_groups[0]["kahan"])
        for what in state.keys() & _STORED.keys() if not has_master else ():
            _say_format(counter, [state[what]], kept_in(_STORED[what], is_stored=is_stored))


def _say_format(counter: CostCounter, tensors: Iterable[torch.Tensor], format: Format | None) -> None:
    for x in tensors:
        if format is not None and x.is_floating_point():
            counter.stored(x, format)


def _kept_tensors(learner: Learner, replay: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Returns the tensors that an agent keeps from one update to the next, by kind."""
    kept: dict[str, list[torch.Tensor]] = {"weights": [network.flat for network in learner.networks.values()]}
    for optimizer in learner.optimizers.values():
        kept["weights"].append(optimizer.flat)
        if optimizer.parameters is not optimizer.flat:
            kept.setdefault("master weights", []).append(optimizer.parameters)
    for average in learner.averages.values():
        kept.setdefault("targets", []).append(average.average)
        if behind := _behind(average):
            kind = "master weights" if isinstance(average, MasterEMA) else "sums behind targets"
            kept.setdefault(kind, []).extend(behind)
    for optimizer in learner.optimizers.values():
        scale = optimizer.scaler.tensors if optimizer.scaler else {}
        state = {**optimizer.optimizer.state[optimizer.parameters], **scale}
        for name, x in ((name, x) for name, x in state.items() if isinstance(x, torch.Tensor)):
            kept.setdefault(_KINDS.get(name, "scales and steps"), []).append(x)
    return kept | ({"replay": list(replay)} if replay else {})


def _behind(average: MovingAverage) -> list[torch.Tensor]:
    """Returns the tensors of an average: sums, their rounding errors, the average in full precision."""
    held = [x for x in (*vars(average).values(), *average.state_dict().values()) if isinstance(x, torch.Tensor)]
    return list({id(x): x for x in held if x.dim() and x is not average.average}.values())


def _tensors_of(kept: Any, depth: int = 2) -> Iterator[torch.Tensor]:
    """The tensors that a replay buffer holds, including those in nested buffers."""
    if kept is None or depth == 0:
        return
    held = [getattr(kept, field.name) for field in fields(kept)] if is_dataclass(kept) else list(vars(kept).values())
    for value in held:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value).__module__.startswith("roundoff.agents.experience"):
            yield from _tensors_of(value, depth - 1)


def _sent(config: TrainConfig, learner: Learner) -> dict[str, float]:
    """The bytes sent: a policy to an actor, each time that it pulls; a learner's gradients, each update."""
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
