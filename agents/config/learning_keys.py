"""Keys that several algorithms have: how parameters are moved, and learning from a replay buffer."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from .fields import Below1, Count, KeyRole, Positive, PositiveFloat, key, plain_data
from .fixes import FIXES, check_baseline, parse_fixes
from .storage import Storage, read_storage
from .train_config import TrainConfig

SHARED = (
    "algorithm", "task", "seed", "steps", "action_repeat", "eval_every", "eval_episodes", "evaluate_in", "evaluation",
    "checkpoint_every", "environments", "environment_workers", "random_start", "clip_rewards", "device", "threads",
    "native", "observe", "keep_networks", "perturb", "qat", "learners", "asynchronous", "communicate",
    "communicate_every", "actors", "sampler_learner", "observations", "image_size", "frames", "fast_rendering",
)  # fmt: skip
"""The keys of a run and its environments, which a run shares with its sampler-learner."""
_MANY_STEPS = 10**9  # More than any rule about steps demands.
_FREE = KeyRole.TIMELESS
_DATA = KeyRole.TIMELESS | KeyRole.DATA
AUTO = "auto"

_HEADROOM = 2
"""The ratio of the largest number to the largest expected value, for entropy in soft values and critics' errors."""


def read_reward_scale(value: Any) -> Any:
    """Returns a value of the key; raises a descriptive ValueError for anything else."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # frexp returns a mantissa in [0.5, 1): it is 0.5 for a power of two.
    if value == AUTO or (number and 0 < value < math.inf and math.frexp(value)[0] == 0.5):
        return float(value) if number else value
    hint = ""
    if number and 0 < value < math.inf:
        below = 2.0 ** math.floor(math.log2(value))
        hint = f"; the nearest are {below:g} and {2 * below:g}"
    raise ValueError(
        f"must be a power of two such as 0.0625, which scales rewards exactly, or {AUTO}, got {value!r}{hint}"
    )


def automatic_reward_scale(format: str, discount: float, largest: float) -> float:
    """Returns the largest power of two, at most 1, that scales values to at most half of a format's largest number.

    The value of a reward of ``largest`` at every step is largest / (1 - discount).

    Args:
        format: the format of the agent.
        discount: below 1.
        largest: the largest reward of an agent step.
    """
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds

    most = Format.parse(format).max
    assert most is not None  # A rule demands it of an agent's format.
    fits = most * (1 - discount) / (_HEADROOM * largest)
    return min(1.0, 2.0 ** math.floor(math.log2(fits)))  # Rewards are never scaled up.


def format_with_codes(name: str | None) -> str | None:
    """Returns the canonical name of a format, if its numbers have codes, as which they can be sent."""
    if name is None:
        return None
    import torch  # noqa: PLC0415  costs seconds

    from ...formats import Format, FormatError  # noqa: PLC0415  costs seconds

    fmt = Format.parse(name)
    try:
        fmt.encode(torch.zeros(1))  # A trial.
    except FormatError as error:
        raise ValueError(f"{fmt} cannot be sent: {error}") from None
    return str(fmt)


def read_sampler_learner(value: Any) -> Any:
    """Returns the keys of a sampler-learner as plain data; raises ValueError for a key that both agents share."""
    if not isinstance(value, dict):
        return value
    if shared := [name for name in value if name in SHARED]:
        raise ValueError(f"sampler_learner: {shared[0]} is a key of the run, which both agents share; leave it out")
    return plain_data("sampler_learner", value, allow_nan=True)  # Each key then refuses its NaN.


class OptimizerKeys(TrainConfig):
    """Sizes of networks, optimizers, the discount, and the fixes or the baseline; Low-precision SAC's defaults."""

    reason_not_compiled: ClassVar[str | None] = None

    fixes: Annotated[tuple[str, ...], BeforeValidator(parse_fixes)] = key(
        FIXES, "`all`, `none` or a list of names; stored as a tuple in the order of the paper's Table 1."
    )
    baseline: Annotated[str, AfterValidator(check_baseline)] = key(
        "none",
        "One of the paper's baselines instead of the fixes: `naive`, `coercion`, `loss_scaling`, `master_weights`,"
        " `amp` or `eps`; `fixes` is then none. `none`: the agent with its fixes. See docs/agents.md.",
    )
    evaluation: Literal["deterministic", "sampled"] = key(
        "deterministic",
        "The actions of evaluations. `deterministic`: the mean, most likely or greedy action, as in the papers on"
        " SAC, TD3, D4PG and low-precision SAC. `sampled`: the actions of training, including noise, as in the"
        " papers on A2C, PPO and accelerated methods; DQN then takes random actions as often as in training at that"
        " moment (Mnih et al.: 5 %).",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS | KeyRole.LATER,
    )
    perturb: Annotated[int, Field(ge=0, le=2**20)] = key(
        0,
        "Number of units in the last place by which each initial weight is moved, up or down according to the seed,"
        " in fp32. Such runs differ only by chance, and are a reference for differences between formats; see"
        " docs/reading.md.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS | KeyRole.LATER,
    )
    hidden_units: Positive = key(1024, "Width of the hidden layers of actor and critics.")
    hidden_layers: Positive = key(2, "Number of hidden layers of actor and critics.")
    batch_size: Positive = key(1024, "Transitions per update.")
    lr: PositiveFloat = key(1e-4, "Learning rate of all parameters.", _DATA)
    discount: Annotated[float, Field(ge=0, le=1)] = key(0.99, "Discount factor per agent step.", _DATA)
    reward_scale: Annotated[PositiveFloat | Literal["auto"], BeforeValidator(read_reward_scale)] = key(
        1.0,
        "Factor that scales rewards, values, targets and the entropy in them into the range of the format: a power"
        " of two, or `auto`. Gradients and logged values do not change; see docs/recipes.md.",
        KeyRole.ARITHMETIC | KeyRole.TIMELESS | KeyRole.LATER,
    )
    optimizer: Literal["adam", "rmsprop"] = key(
        "adam",
        "`adam`, or `rmsprop` without first moment and bias corrections; the fixes apply to both.",
        KeyRole.LATER,
    )
    adam_beta1: Below1 = key(0.9, "Decay of the first moment.", _FREE)
    adam_beta2: Below1 = key(0.999, "Decay of the second moment; RMSProp's alpha.", _FREE)
    adam_eps: PositiveFloat = key(1e-8, "Added to the denominator of Adam or RMSProp, outside of the root.", _FREE)
    initial_loss_scale: PositiveFloat = key(
        1e4,
        "Initial loss scale of `compound_loss_scaling`, and of baselines with loss scaling (`amp` has its own).",
        _FREE,
    )
    loss_scale_growth_interval: Positive = key(
        10_000, "Consecutive finite steps after which the loss scale doubles, for the same fix and baselines.", _FREE
    )
    kahan_momentum_scale: PositiveFloat = key(1e4, "C of `kahan_momentum`.", _FREE)
    storage: Annotated[Storage | None, BeforeValidator(read_storage)] = key(
        None,
        "Formats of tensors in memory, if they differ from `format`: `{weights: mxint8, weight_gradients: e5m2}`,"
        " optionally with a `rounding`: `{weights: {format: mxint8, rounding: stochastic}}`; see docs/recipes.md.",
        KeyRole.ARITHMETIC | KeyRole.LATER,
    )
    learners: Positive = key(
        1,
        "Number of processes that learn together and sum their gradients. Each has a part of `environments` and its"
        " own batches; see docs/learners.md.",
        KeyRole.LATER,
    )
    asynchronous: bool = key(
        False,
        "Learners apply their gradients to central parameters independently, instead of summing them. Such runs do"
        " not repeat.",
        KeyRole.LATER,
    )
    communicate_every: Positive = key(
        1, "Steps that an asynchronous learner takes between exchanges with the central parameters.", KeyRole.LATER
    )
    communicate: Annotated[str | None, AfterValidator(format_with_codes)] = key(
        None, "Format of the packed gradients that `learners` exchange; null: unchanged.", KeyRole.LATER
    )

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of every run, and ``targets``."""
        return (*super().roles, "targets")

    @property
    def scale_of_rewards(self) -> float:
        """``reward_scale``, as a number."""
        if self.reward_scale != "auto":
            return self.reward_scale
        return automatic_reward_scale(self.format, self.discount, largest=self.largest_reward)

    @property
    def largest_reward(self) -> float:
        """The largest expected reward of an agent step."""
        return 1.0 if self.clip_rewards else float(self.action_repeat)  # The suite's are at most 1 in each repeat.

    @property
    def anneal_over(self) -> int | None:
        """Optimizer steps until the learning rate reaches 0; None: it is constant."""
        return None

    @property
    def hidden_widths(self) -> list[int]:
        """The widths of the hidden layers, from the first to the last."""
        return [self.hidden_units] * self.hidden_layers

    @property
    def widths_of_all(self) -> list[int]:
        """The widths of the hidden layers of all networks."""
        return self.hidden_widths

    def share(self) -> Self:
        """Returns the config with a share of the steps, of the environments, and of the processes that step them."""
        return self.with_shares_of("environments", "environment_workers", "steps")

    def with_shares_of(self, *keys: str) -> Self:
        """Returns the config with a learner's share of some keys, rounded up."""
        return self.model_copy(update={key: -(-getattr(self, key) // self.learners) for key in keys})

    @property
    def stores_layers(self) -> bool:
        """Whether ``storage`` may set the formats that activations and their gradients are kept in."""
        return False

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given``, without fixes if there is a baseline, which replaces them."""
        given = super().completed(given)
        return {"fixes": "none", **given} if given.get("baseline", "none") != "none" else given


class OffPolicyKeys(OptimizerKeys):
    """Learning from a replay buffer, with slow copies of networks as targets."""

    tau: Annotated[float, Field(gt=0, le=1)] = key(
        0.005, "Fraction of the distance to their source that target networks move at each of their updates.", _DATA
    )
    seed_steps: Count = key(
        5000, "Agent steps with uniform random actions, before updates begin.", KeyRole.OUTSIDE_UPDATES | KeyRole.AMOUNT
    )
    replay_capacity: Positive = key(
        1_000_000,
        "Number of stored transitions (images, if observations are pixels); new ones overwrite the oldest.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS,
    )
    training_intensity: PositiveFloat | None = key(
        None,
        "Average number of updates that use a transition: updates x `batch_size` / transitions, counted after"
        " `seed_steps`. `null`: one update per transition.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.LATER,
    )
    sampler_learner: Annotated[dict[str, Any] | None, BeforeValidator(read_sampler_learner)] = key(
        None,
        "Another agent acts instead of this one, and learns as in a separate run. This one learns from the same"
        " transitions, in its own batches. A mapping of the keys that differ for the other agent: `{format: fp32}`,"
        " or `{}` if none differ; see docs/learners.md.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.LATER,
    )

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of every learner, and ``averages``, unless target networks are copies."""
        *others, targets = super().roles
        return (*others, targets) if self.tau == 1 else (*others, "averages", targets)  # Copies are not averages.

    @property
    def updates_per_transition(self) -> Fraction | int:
        """The mean number of updates for each transition after the first ``seed_steps``; exact."""
        if self.training_intensity is None:
            return 1
        return Fraction(repr(self.training_intensity)) / self.batch_size  # By its decimal digits: 0.1 is 1 / 10.

    def of_sampler_learner(self) -> Self:
        """Returns the config of ``sampler_learner``: this config with the keys that are given there.

        Raises:
            ValueError: the config of such a run is not valid.
        """
        keys = {name: value for name, value in self.as_json().items() if name not in ("sampler_learner", "evaluate_in")}
        changes = self.sampler_learner or {}
        if changes.get("baseline", "none") != "none":
            del keys["fixes"]
        # A copy for a measurement may have fewer steps than a rule demands: validates with many steps.
        config = type(self)(**keys | {"steps": max(self.steps, _MANY_STEPS)} | changes)
        return config.model_copy(update={"steps": self.steps})

    def updates_in(self, transitions: int) -> int:
        """Returns the largest number of updates for this number of transitions."""
        return int(transitions * self.updates_per_transition)

    @property
    def steps_before_learning(self) -> int:
        """Agent steps before the first update."""
        return self.seed_steps

    def share(self) -> Self:
        """Returns the config with a share also of the random actions before learning and of the replay capacity."""
        return super().share().with_shares_of("seed_steps", "replay_capacity")

    def soon_learning(self) -> dict[str, Any]:
        """Returns keys to change for a timing run: learning begins at once, in steps of the same duration."""
        return {"seed_steps": 1, "replay_capacity": min(self.replay_capacity, 10_000)}
