"""A table of the combinations of config keys that are not allowed, and its only check.

An algorithm's own rows are next to its own keys (``rules`` of its class) and are checked after these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, final

from pydantic import BaseModel, ValidationError

from ..environments.opening import has_discrete_actions
from .fixes import COMPENSATED_STEPS, EXACT_ERRORS, NEED_SINGLE_STEPS, STOCHASTIC_TARGETS, is_stochastic
from .storage import LAYERS, STOCHASTIC, check_fit

NATIVE_FORMATS = {"e5m10": "float16", "e8m7": "bfloat16"}
"""The formats with tensors in PyTorch, and the names of the dtypes."""

ENGINE_FORMATS = {"onnxruntime": ("fp32", "int8", "int8_ax0")}
"""The formats of actors' engines that do not have all formats."""

_MOST_SHOWN = 12
_PLAIN = {"baseline": "none", "learners": 1, "native": False, "qat": None, "evaluate_in": ()}  # runs with storage
_SUITE_STEPS = 1000  # Of an episode of the control suite.
_MOST_LEFT = 0.05  # The smallest weight of the last reward of n steps.


@final
class KeyRule(NamedTuple):
    """A row of the table.

    Attributes:
        condition: a function of the config that is true if the config breaks the rule; its result is ``found``.
        key: the key that the rule is about. A config without such a key satisfies the rule.
        message: the error for a config that breaks it, with ``{c.lr}`` for the value of a key, and ``{found}``.
    """

    condition: Callable[[Any], Any]
    key: str
    message: str


def check(config: BaseModel, *more: KeyRule) -> None:
    """Raises ValueError with the message of the first rule that a config breaks.

    Args:
        config: with all its keys.
        more: rows to check after the table.
    """
    keys = type(config).model_fields
    for condition, key, message in (*RULES, *more):
        if key in keys and (found := condition(config)):
            raise ValueError(message.format(c=config, found=found))


def complaint(check: Callable[..., object], *values: Any) -> str:
    """Returns the message of the ValueError that a check of values raises; empty if it raises none."""
    try:
        check(*values)
    except ValueError as error:
        return str(error)
    return ""


def other_than(config: Any, allowed: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Returns the first of some keys that does not have its allowed value, and its value."""
    return next(((key, value) for key in allowed if (value := getattr(config, key)) != allowed[key]), None)


# Conditions that take more than a line, in the order of their rows.


def _unfit_quantization(config: Any, values: Sequence[Any] | None = None) -> str:
    """Describes the first quantization that does not fit, of ``values`` or else ``evaluate_in``; empty if all fit."""
    values = config.evaluate_in if values is None else values
    if not values:  # Without an import of PyTorch.
        return ""
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds
    from ..quantization.quantization import Quantization  # noqa: PLC0415  imports torch, which costs seconds

    carrier = Format.parse(config.format).carrier
    return next(filter(None, (complaint(Quantization.parse(value).check_fits, carrier) for value in values)), "")


def _simulated_in_native(config: Any) -> tuple[str, Any] | None:
    values = config.as_json() if config.native else {}
    return next(((key, values[key]) for key in ("policy", "observe", "evaluate_in", "qat") if values.get(key)), None)


def _unfit_qat(config: Any) -> tuple[Any, Any, str] | None:
    if config.qat is None:
        return None
    import torch  # noqa: PLC0415  costs seconds

    from ...formats import Format, round  # noqa: PLC0415  costs seconds

    fmt, run_format = Format.parse(config.qat.format), Format.parse(config.format)
    reason = complaint(round, torch.zeros(1, dtype=run_format.carrier), fmt)
    return (fmt, run_format, reason) if reason else None


def _is_stored(config: Any, name: str) -> bool:
    return config.storage is not None and name in config.storage.formats


def _compensates(config: Any) -> bool:
    return COMPENSATED_STEPS in config.fixes


def _steps_without_update(config: Any) -> tuple[int, str, int] | None:
    share = config.share()
    least = share.seed_steps + math.ceil(1 / Fraction(share.updates_per_transition))
    learner = f"each of the {config.learners} learners" if config.learners > 1 else "the run"
    return (least, learner, share.transitions) if share.transitions < least else None


def _uneven_rollout(config: Any) -> tuple[Any, str, str] | None:
    share = config.share()
    learner = f" of each of the {config.learners} learners" if config.learners > 1 else ""
    divisors = [str(size) for size in range(1, share.rollout + 1) if share.rollout % size == 0]
    allowed = ", ".join(divisors if len(divisors) <= _MOST_SHOWN else [*divisors[:3], "...", *divisors[-3:]])
    return (share, learner, allowed) if share.rollout % share.batch_size else None


def _largest_of_support(config: Any) -> tuple[float, float] | None:
    if config.atoms == 1:
        return None
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds

    largest = Format.parse(config.format).max
    assert largest is not None
    least, most = (end * config.scale_of_rewards for end in config.support)
    needed = max(-least, most, config.atoms - 1)
    return (needed, largest) if needed > largest else None


def beyond_support(config: Any) -> float | None:
    """Returns the largest possible value with the suite's rewards, 0 to 1 a step, if it is beyond the atoms."""
    if config.atoms == 1 or ":" in config.task:
        return None
    steps = -(-_SUITE_STEPS // config.action_repeat)
    weights = steps if config.discount == 1 else (1 - config.discount**steps) / (1 - config.discount)
    most: float = weights * (1 if config.clip_rewards else config.action_repeat)
    return most if most > config.support[1] else None


def _reasons(make: Callable[[], object]) -> str:
    """Returns the reasons why a config cannot be made, on one line; empty if it can."""
    try:
        make()
    except ValidationError as error:
        return "; ".join(
            ": ".join((*map(str, item["loc"]), item["msg"].removeprefix("Value error, "))) for item in error.errors()
        )
    return ""


# fmt: off
RULES = (
    # Every run.
    KeyRule(lambda c: complaint(c.check_algorithm), "algorithm", "{found}"),
    KeyRule(lambda c: complaint(c.check_actions, has_discrete_actions(c.task)), "task", "{found}"),
    KeyRule(lambda c: c.environment_workers > (most := max(c.environments, c.eval_episodes)) and most,
         "environment_workers",
         "environment_workers is {c.environment_workers}, but there are {c.environments} environments to train in and"
         " {c.eval_episodes} to evaluate in; allowed are 0 to {found}"),
    KeyRule(_unfit_quantization, "evaluate_in", "evaluate_in: {found}"),
    KeyRule(lambda c: c.native and c.format not in NATIVE_FORMATS, "native",
         "native: true computes in a half precision of PyTorch: allowed are "
         + " and ".join(f"{name} (torch.{dtype})" for name, dtype in NATIVE_FORMATS.items())
         + ", got format {c.format}; simulate it with native: false (fp32 and fp64 are PyTorch's own there too)"),
    KeyRule(_simulated_in_native, "native",
         "native: true runs without a simulation, which {found[0]} is about, got {found[0]}: {found[1]}; leave"
         " {found[0]} out, or set native: false"),
    KeyRule(_unfit_qat, "qat", "qat.format: {found[0]} is not for an agent in {found[1]}: {found[2]}"),
    # First weights that are moved.
    KeyRule(lambda c: c.perturb and c.format != "fp32" and c.format, "perturb",
         "perturb: {c.perturb} moves the first weights of runs in fp32, got format: {found}; set format: fp32"),
    KeyRule(lambda c: c.perturb and next((k for k in ("policy", "storage", "qat") if getattr(c, k)), None), "perturb",
         "perturb: {c.perturb} is for runs that nothing rounds, got {found}; leave one of them out"),
    KeyRule(lambda c: c.perturb and c.baseline != "none", "perturb",
            "perturb: {c.perturb} is for runs without a baseline, since it does not change master weights, got"
            " baseline: {c.baseline}; leave one of them out"),
    # Several learners.
    KeyRule(lambda c: c.environments % c.learners, "learners",
         "learners is {c.learners}, and each has the same number of the {c.environments} environments; allowed are"
         " divisors of environments"),
    KeyRule(lambda c: c.learners > 1 and ":" in c.device, "learners",
         "each of the {c.learners} learners has its own GPU, got device: {c.device}; allowed are cpu and cuda,"
         " which are cuda:0, cuda:1, ..."),
    KeyRule(lambda c: c.learners == 1 and other_than(c, {"communicate": None, "asynchronous": False}), "learners",
         "{found[0]}: {found[1]} is for several learners, and there is one; leave it out, or set learners"),
    KeyRule(lambda c: c.asynchronous and c.communicate, "asynchronous",
         "communicate: {c.communicate} is for gradients that are sent; asynchronous learners share memory: leave it"
         " out, or set asynchronous: false"),
    KeyRule(lambda c: c.asynchronous and c.device != "cpu", "asynchronous",
         "asynchronous learners share the processor's memory, got device: {c.device}; use cpu"),
    KeyRule(lambda c: c.asynchronous and c.baseline not in ("none", "naive", "eps"), "asynchronous",
         "asynchronous learners have no baseline {c.baseline}; allowed are none, naive and eps"),
    KeyRule(lambda c: not c.asynchronous and c.communicate_every > 1, "communicate_every",
         "communicate_every: {c.communicate_every} is for asynchronous learners; others sum the gradients of each"
         " step: leave it out, or set asynchronous: true"),
    KeyRule(lambda c: c.communicate_every > 1 and c.optimizer != "adam", "communicate_every",
         "communicate_every: {c.communicate_every} sums the steps of adam, got optimizer: {c.optimizer}; exchange"
         " after every step"),
    KeyRule(lambda c: c.communicate_every > 1 and " and no ".join(fix for fix in NEED_SINGLE_STEPS if fix in c.fixes),
         "communicate_every",
         "communicate_every: {c.communicate_every} adds up steps, and allows no {found}; leave them out of fixes, or"
         " exchange after every step"),
    # Errors of values.
    KeyRule(lambda c: EXACT_ERRORS in c.fixes and getattr(c, "atoms", 1) > 1, "fixes",
         "fixes: exact_errors is for the error of a value, and atoms: {c.atoms} learns distributions; leave it out, or"
         " set atoms: 1"),
    KeyRule(lambda c: {EXACT_ERRORS, STOCHASTIC_TARGETS} <= {*c.fixes} and hasattr(c, "tau"), "fixes",
         "fixes: exact_errors rounds no target, which stochastic_targets would round; leave one of them out"),
    # Rewards.
    KeyRule(lambda c: c.reward_scale == "auto" and c.discount == 1, "reward_scale",
         "reward_scale: auto divides by the horizon 1 / (1 - discount), and discount is 1; give a power of two, or a"
         " discount below 1"),
    # What is kept in formats of its own.
    KeyRule(lambda c: not c.stores_layers and next((name for name in LAYERS if _is_stored(c, name)), None), "storage",
         "storage.{found} is for sac from states; leave it out"),
    KeyRule(lambda c: _is_stored(c, "compensations") and not _compensates(c), "storage",
         f"storage.compensations is for {COMPENSATED_STEPS}; add that to fixes, or leave it out"),
    KeyRule(lambda c: _is_stored(c, "target_compensations") and c.storage.targets is None, "storage",
         "storage.target_compensations is for the losses of storage.targets; set storage.targets, or leave it out"),
    KeyRule(lambda c: _is_stored(c, "targets") and is_stochastic(c.fixes, "averages"), "storage",
         "storage.targets replaces kahan_momentum, which stochastic_compensation of averages is for: name only"
         " stochastic_compensation_of_weights, and give storage.target_compensations a rounding"),
    KeyRule(lambda c: c.optimizer != "adam" and _is_stored(c, "first_moments"), "storage",
         "storage.first_moments: {c.optimizer} has none; leave it out"),
    KeyRule(lambda c: _is_stored(c, "targets") and getattr(c, "tau", 1) == 1, "storage",
         "storage.targets is for targets that tau moves; copies, with tau: 1, are stored like weights: leave it out"),
    KeyRule(lambda c: c.storage and c.storage.weights and c.storage.weights.rounding == STOCHASTIC and _compensates(c),
         "storage",
         f"storage.weights are rounded stochastically, and {COMPENSATED_STEPS} compensates for rounding to nearest:"
         " leave that out of fixes, or round weights to nearest"),
    KeyRule(lambda c: c.storage and other_than(c, _PLAIN), "storage",
         "storage is not for runs with {found[0]}, got {found[0]}: {found[1]}; leave one of them out"),
    KeyRule(lambda c: c.storage and complaint(check_fit, c.storage, c.format), "storage", "{found}"),
    # Baselines.
    KeyRule(lambda c: c.baseline != "none" and ", ".join(c.fixes), "baseline",
         "baseline: {c.baseline} takes the place of the fixes, got fixes: {found}; leave fixes out, or set baseline:"
         " none"),
    KeyRule(lambda c: c.baseline != "none" and c.qat, "baseline",
         "baseline: {c.baseline} is a training to compare the fixes with, which qat changes: leave qat out, or set"
         " baseline: none"),
    # Learning from replay.
    KeyRule(_steps_without_update, "seed_steps",
         "nothing would be learned: with seed_steps {c.seed_steps} the first update falls due after {found[0]} agent"
         " steps, and {found[1]} has {found[2]}; allowed are as many steps or more, or fewer seed_steps"),
    # Learning from rollouts.
    KeyRule(_uneven_rollout, "horizon",
         "batch_size must divide horizon x environments{found[1]}, got {found[0].batch_size}, and {found[0].horizon} x"
         " {found[0].environments} = {found[0].rollout}; allowed are {found[2]}"),
    KeyRule(lambda c: c.learners > 1 and c.lr_schedule != "constant", "lr_schedule",
         "lr_schedule: {c.lr_schedule} is for one learner, got learners: {c.learners}; leave it out"),
    KeyRule(lambda c: c.normalize_advantages and c.batch_size == 1, "normalize_advantages",
         "normalize_advantages needs a batch_size of 2 or more, got 1; or set it to false"),
    KeyRule(lambda c: c.learners > 1
             and [name for name in ("normalize_observations", "normalize_rewards") if getattr(c, name)],
         "normalize_observations",
         "{found[0]}: true is for one learner, since others would not have its running moments, got learners:"
         " {c.learners}; leave one of them out"),
    KeyRule(lambda c: c.normalize_rewards and c.clip_rewards, "normalize_rewards",
         "normalize_rewards: true and clip_rewards: true both bound rewards; leave one of them out"),
    KeyRule(lambda c: c.keep_networks, "horizon",
         "keep_networks is for actors and critics with networks of their own; leave it out"),
    KeyRule(lambda c: c.transitions < c.rollout, "horizon",
         "nothing would be learned: a rollout is horizon x environments = {c.rollout} agent steps, and the run has"
         " {c.transitions}; allowed are as many steps or more, or a shorter horizon"),
    KeyRule(lambda c: c.rollouts and c.native, "rollouts",
         "rollouts in an arithmetic of their own are simulated, and native: true simulates nothing; leave one of them"
         " out"),
    KeyRule(lambda c: c.rollouts and _unfit_quantization(c, [c.rollouts.format]), "rollouts",
         "rollouts.format: {found}"),
    KeyRule(lambda c: c.rollouts and not c.rollouts.least < c.rollouts.threshold, "rollouts",
         "rollouts.least must be less than rollouts.threshold, or no weight is left, got {c.rollouts.least:g} and"
         " {c.rollouts.threshold:g}"),
    # The keys under `actors`, which are a config of their own, and that key.
    KeyRule(lambda c: c.noise_of is not None and (c.format, c.engine) != ("fp32", "simulated"), "noise_of",
         "noise_of is added to actors in fp32: set format: fp32 and engine: simulated, got format: {c.format} and"
         " engine: {c.engine}"),
    KeyRule(lambda c: c.noise_of and c.communicate, "noise_of",
         "noise_of is added to actors in fp32, which receive weights in fp32, got communicate: {found}; leave one of"
         " them out"),
    KeyRule(lambda c: c.format not in (found := ENGINE_FORMATS.get(c.engine, (c.format,))) and " or ".join(found),
         "engine",
         "engine: {c.engine} computes in {found}, got format: {c.format}; use one of them, or engine: simulated"),
    KeyRule(lambda c: c.actors and c.environments % c.actors.count, "actors",
         "actors.count is {c.actors.count}, and each actor has the same number of the {c.environments} environments;"
         " allowed are divisors of environments"),
    KeyRule(lambda c: c.actors and c.learners > 1, "actors",
         "actors serve one learner, got learners: {c.learners}; leave actors or learners out"),
    KeyRule(lambda c: c.actors and c.actors.samples_per_insert not in (None, c.training_intensity), "actors",
         "actors.samples_per_insert is {c.actors.samples_per_insert:g}, and training_intensity says the same with"
         " another number, {c.training_intensity}; leave one of them out"),
    KeyRule(lambda c: c.actors and c.actors.importance_weights and getattr(c, "n_steps", 1) == 1, "actors",
         "actors.importance_weights are of the actions after the first one of a transition, and transitions have one"
         " step; leave it out, or set n_steps (dqn, d4pg) above 1"),
    KeyRule(lambda c: c.actors and c.evaluation == "sampled", "actors",
         "evaluation: sampled takes the actions of training, and each actor has its own noise; leave it out"),
    KeyRule(lambda c: c.actors and c.random_start, "actors",
         "random_start: {c.random_start} is for environments that step together; actors do not: leave it out"),
    # Another agent that acts.
    KeyRule(lambda c: c.sampler_learner is not None and other_than(
                c, {"learners": 1, "qat": None, "perturb": 0, "native": False, "evaluation": "deterministic"}),
            "sampler_learner",
         "sampler_learner is for runs without {found[0]}, got {found[0]}: {found[1]}; leave one of them out"),
    KeyRule(lambda c: c.sampler_learner is not None and getattr(c, "actors", None), "sampler_learner",
         "sampler_learner acts in place of actors; leave one of them out"),
    KeyRule(lambda c: c.sampler_learner is not None and _reasons(c.of_sampler_learner), "sampler_learner",
         "sampler_learner: {found}"),
    # Values of several steps, as distributions.
    KeyRule(lambda c: c.atoms == 1 and other_than(c, {"v_min": None, "v_max": None}), "atoms",
         "{found[0]} is of a categorical head, and atoms is 1; leave {found[0]} out, or set atoms: 51"),
    KeyRule(lambda c: c.atoms > 1 and c.support[0] >= c.support[1], "atoms",
         "v_min must be less than v_max, got v_min {c.support[0]:g} and v_max {c.support[1]:g}"),
    KeyRule(lambda c: beyond_support(c) if c.v_max is None else None, "atoms",
         "values on {c.task} reach {found:.4g}, and the atoms end at {c.support[1]:g}, where larger values would be"
         " clipped; set v_max: {found:.4g} or more"),
    KeyRule(_largest_of_support, "atoms",
         "atoms {c.atoms} between v_min {c.support[0]:g} and v_max {c.support[1]:g} need numbers up to {found[0]:g},"
         " but the largest of format {c.format} is {found[1]:g}"),
    KeyRule(lambda c: c.replay_capacity < c.batch_size, "n_steps",
         "replay_capacity must be at least batch_size, got {c.replay_capacity} and {c.batch_size}"),
    KeyRule(lambda c: c.discount ** (c.n_steps - 1) < _MOST_LEFT and c.n_steps - 1, "n_steps",
         "n_steps is {c.n_steps}, of which the last reward would count {c.discount:g}^{found} of the first one; at"
         f" least {_MOST_LEFT:g} is allowed"),
)
# fmt: on
"""All rows about keys that several algorithms have, in the order in which they are checked."""
