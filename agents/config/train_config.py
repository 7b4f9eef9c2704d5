"""The frozen, validated config of a training run. Its algorithm decides which keys it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from roundoff.errors import check_name

from ..environments.opening import check_task
from . import own_algorithms
from .fields import Count, KeyRole, Panel, Positive, key, later_keys, plain_data
from .quantization_aware import QuantizationAware, read_qat
from .rules import KeyRule, check

if TYPE_CHECKING:
    from ...formats import Format

ALGORITHMS = tuple(sorted(path.parent.name for path in Path(__file__).parents[1].glob("algorithms/*/settings.py")))
"""The names of roundoff's algorithms: the folders in ``agents/algorithms``."""

LIBRARIES = ("sb3:NAME", "tianshou:NAME")
"""Notation of the algorithms of other libraries; ``agents/adapters/settings.py`` has their names."""

_LIBRARY_PREFIXES = tuple(name.removesuffix("NAME") for name in LIBRARIES)


def _canonical_format(name: str) -> str:
    from ...formats import Format  # noqa: PLC0415  costs seconds

    fmt = Format.parse(name)
    if not _can_train(fmt):
        raise ValueError(
            "an agent trains in a format that has a sign, a largest and a smallest number, and rounds each float64 by"
            f" itself, such as fp32, bf16, e4m3, posit16, lns16_8 or q7.8; {fmt} does not: a policy with a rule can"
            " have the operands of products in it"
        )
    return str(fmt)


@cache
def _can_train(fmt: Format) -> bool:
    import torch  # noqa: PLC0415  costs seconds

    # Block formats are not elementwise; unsigned formats have a ``min`` of 0, and some formats lack an end.
    return bool(fmt.fits_in(torch.float64) and fmt.elementwise and fmt.max and fmt.min and fmt.min < 0 and fmt.smallest)


def check_policy(policy: Any) -> dict[str, Any]:
    """Returns a policy as plain data; raises ValueError for anything else."""
    from ...formats import FormatError  # noqa: PLC0415  imports torch, which costs seconds
    from ...simulate import Policy  # noqa: PLC0415  imports torch, which costs seconds

    if isinstance(policy, str):
        policy = {"preset": policy}
    if isinstance(policy, dict) and "format" in policy:
        raise ValueError("policy takes no format: set the key format, and formats in rules")
    try:
        Policy.parse(policy, "e5m10")  # Any format: the one of the run is another key.
    except FormatError as error:
        raise ValueError(str(error)) from None
    plain: dict[str, Any] = plain_data("policy", policy)
    return plain


def parse_quantizations(value: object) -> tuple[str | dict[str, Any], ...]:
    """Reads a list of quantizations, each as plain data, canonical; raises ValueError for anything else."""
    from ...formats import FormatError  # noqa: PLC0415  imports torch, which costs seconds
    from ..quantization.quantization import Quantization  # noqa: PLC0415  imports torch, which costs seconds

    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be a list such as [fp16, quarl8, int8_ax0], got {value!r}")  # noqa: TRY004  pydantic
    try:
        quantizations = [Quantization.parse(item) for item in value]
    except FormatError as error:
        raise ValueError(str(error)) from None
    for quantization in quantizations:
        if quantizations.count(quantization) > 1:
            raise ValueError(f"{quantization} is given twice")
    return tuple(quantization.as_json() for quantization in quantizations)


def check_device(name: str) -> str:
    """Returns ``name`` if it is the name of a device; raises ValueError if not."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f'unknown device "{name}"; allowed are cpu, cuda, and cuda:0, cuda:1, ...')
    return name


class TrainConfig(BaseModel):
    """All settings of a run. Its fields are the keys that a sweep file may set.

    ``TrainConfig(algorithm="td3", ...)`` makes a config of that algorithm's class, with its keys and defaults. Text is
    not accepted for a number; an integer is accepted for a float.

    Raises:
        pydantic.ValidationError: a key or value is wrong, or values contradict each other.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    leading: ClassVar[str] = "critic"
    """The optimizer with the loss scale that is shown during a run."""
    panels: ClassVar[Mapping[str, Panel]] = {}
    """The logged values that are drawn, by name."""
    acts: ClassVar[tuple[str, ...]] = ("continuous",)
    """The kinds of actions that the algorithm can choose: ``continuous``, ``discrete``."""
    rules: ClassVar[tuple[KeyRule, ...]] = ()
    """Rules about its keys, checked after the table of all rules (``config/rules.py``)."""
    reason_not_compiled: ClassVar[str | None] = "its algorithm has no optimizers that could be compiled"
    """The reason why updates of the algorithm cannot be compiled; None if they can."""

    algorithm: str = key("sac", "The algorithm. Each algorithm has its own keys.")
    task: Annotated[str, AfterValidator(check_task)] = key(
        "cartpole_swingup",
        "`<domain>_<task>` of the DeepMind control suite, `gym:<id>` of a Gymnasium environment, `minatar:<game>`, or"
        " `atari:<Game>`; see docs/environments.md.",
        KeyRole.OUTSIDE_UPDATES,
    )
    format: Annotated[str, AfterValidator(_canonical_format)] = key(
        "fp32",
        "The number format of the entire agent: float, posit, logarithmic or fixed point; in canonical form.",
        KeyRole.ARITHMETIC,
    )
    policy: Annotated[dict[str, Any], BeforeValidator(check_policy)] = key(
        {},
        "The policy, with the operations that are simulated in `format`: `every-op`, `storage`, `mixed-precision`, a"
        " recipe such as `fp8-tensorwise`, or a mapping with a preset, settings (rounding, granularity, accumulate,"
        " scalars, operands) and rules for operations and roles; see `roundoff.Policy`.",
        KeyRole.ARITHMETIC,
    )
    native: bool = key(
        False,
        "Compute with PyTorch tensors of the dtype for `format` (e5m10: torch.float16, bf16: torch.bfloat16) instead"
        " of simulating it; see docs/fidelity.md.",
        KeyRole.ARITHMETIC,
    )
    observe: bool = key(
        False,
        "Count the effects of rounding in every operation: adds records to the metrics, and `numerics.csv`.",
        KeyRole.ARITHMETIC,
    )
    keep_networks: bool = key(
        False,
        "Store the networks at each evaluation, so that `roundoff plot` can compare them with the same run in fp32"
        " (under `snapshots/`: about 4 bytes a weight, for each evaluation).",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS,
    )
    qat: Annotated[QuantizationAware | None, BeforeValidator(read_qat)] = key(
        None,
        "Quantization-aware training: `{format: int8_row, operands: both, after: 0.5}` rounds operands of the"
        " networks' products to `format`, after that fraction of the steps, and also in evaluations; see"
        " docs/quantization.md.",
        KeyRole.ARITHMETIC | KeyRole.LATER,
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = key(
        0, "The seed of every random stream of the run.", KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS
    )
    steps: Positive = key(
        500_000,
        "Length of training in environment steps (agent steps x action repeat).",
        KeyRole.OUTSIDE_UPDATES | KeyRole.AMOUNT,
    )
    action_repeat: Positive = key(
        1, "Number of times that the environment repeats each action; the rewards are summed.", KeyRole.OUTSIDE_UPDATES
    )
    eval_every: Positive = key(
        10_000, "Environment steps between evaluations.", KeyRole.OUTSIDE_UPDATES | KeyRole.AMOUNT
    )
    eval_episodes: Positive = key(10, "Episodes per evaluation.", KeyRole.OUTSIDE_UPDATES | KeyRole.AMOUNT)
    evaluate_in: Annotated[tuple[str | dict[str, Any], ...], BeforeValidator(parse_quantizations)] = key(
        (),
        "Repeats each evaluation, in the same episodes, with the policy quantized in each of these ways: formats such"
        " as `fp16`, `quarl8`, `int8_ax0`, or mappings; see docs/quantization.md. Training does not depend on it.",
        KeyRole.EXECUTION | KeyRole.OUTSIDE_UPDATES | KeyRole.LATER,
    )
    checkpoint_every: Positive = key(
        10_000, "Environment steps between checkpoints.", KeyRole.EXECUTION | KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS
    )
    environments: Positive = key(
        1,
        "Number of training environments that step together, with one call of the policy per group. Several"
        " environments form two alternating groups. The number of updates per transition stays the same. See"
        " docs/environments.md.",
        KeyRole.OUTSIDE_UPDATES,
    )
    environment_workers: Count = key(
        0,
        "Processes that step the environments of training and evaluation; 0: the run's process steps them. The"
        " metrics do not depend on it.",
        KeyRole.EXECUTION | KeyRole.OUTSIDE_UPDATES,
    )
    random_start: Count = key(
        0,
        "The first episode of each training environment begins with a random number of random actions, up to this"
        " number. The agent does not learn from them. Several environments are then at different positions of their"
        " episodes.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS | KeyRole.LATER,
    )
    clip_rewards: bool = key(
        False,
        "Learn from rewards clipped to [-1, 1], as usual for Atari. Returns use unclipped rewards.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS | KeyRole.LATER,
    )
    device: Annotated[str, AfterValidator(check_device)] = key("cpu", "`cpu`, `cuda` or `cuda:<n>`.", KeyRole.EXECUTION)
    threads: Positive = key(1, "CPU threads of PyTorch.", KeyRole.EXECUTION)

    def __new__(cls, **keys: Any) -> Self:
        """Makes a config of the algorithm's class."""
        config: Self = super().__new__(config_class(keys) if cls is TrainConfig else cls)  # type: ignore[assignment]
        return config  # Python then calls ``__init__`` of this class, as for any instance of a subclass.

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        own_algorithms.note(cls, cls.model_fields["algorithm"].default)  # A user's class becomes known by its import.

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that its operations have, for rules of ``policy``."""
        return ("forward", "backward", "optimizer")

    @property
    def scale_of_rewards(self) -> float:
        """The factor of rewards that are learned from: a power of two."""
        return 1.0

    @property
    def kinds_of_actions(self) -> tuple[str, ...]:
        """The kinds of actions that the algorithm can choose, of ``acts``."""
        return self.acts

    @property
    def steps_before_learning(self) -> int:
        """Agent steps before the first update."""
        return 0

    def soon_learning(self) -> dict[str, Any]:
        """Keys to change for a run with steps of the same duration where learning begins at once, to time it."""
        return {}

    @property
    def transitions(self) -> int:
        """Agent steps of the whole run."""
        return -(-self.steps // self.action_repeat)  # Rounded up.

    def is_quantized(self, step: int) -> bool:
        """Whether ``qat`` applies after this number of environment steps."""
        return self.qat is not None and step >= self.qat.after * self.steps

    def share(self) -> Self:
        """Returns the config of one of several learners; the run's own config if there is one learner."""
        return self

    def updates_in(self, transitions: int) -> int:
        """Returns the largest number of updates for this number of transitions."""
        return transitions

    def world(self) -> dict[str, Any]:
        """Returns the arguments of environments that set their observations; empty: states."""
        return {}

    def as_json(self) -> dict[str, Any]:
        """Returns the config as JSON values, sorted by key; ``TrainConfig(**config.as_json()) == config``.

        They identify the run: they determine its name, and a folder with a different config belongs to another run.
        Keys of ``KeyRole.LATER`` are left out at their defaults, so that older runs keep their names.
        """
        unsaid, values = self.unsaid(), self.model_dump(mode="json")
        return {key: values[key] for key in sorted(values) if key not in unsaid or getattr(self, key) != unsaid[key]}

    @classmethod
    @cache
    def unsaid(cls) -> dict[str, Any]:
        """Returns the keys that :meth:`as_json` leaves out at their defaults, with the defaults."""
        return later_keys(cls)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        """Raises ValueError for keys that only other algorithms have; adds keys that follow from the given ones."""
        if not isinstance(data, dict):
            return data  # Pydantic refuses it.
        algorithm = data.get("algorithm")
        if own_algorithms.module_of_algorithm(algorithm):
            own_algorithms.check_own_algorithm(str(algorithm), (*ALGORITHMS, *LIBRARIES))
        for name in data:
            if name in cls.model_fields:
                continue
            owners = [other for other in (*ALGORITHMS, *LIBRARIES) if name in config_of(other).model_fields]
            if owners:  # Else pydantic refuses the key.
                is_library = str(algorithm).startswith(_LIBRARY_PREFIXES)
                own = algorithm if is_library else cls.model_fields["algorithm"].default
                raise ValueError(
                    f"{name} is a key of {', '.join(owners)}, not of {own}; leave it out, or set algorithm:"
                    f" {' or '.join(owners)}"
                )
        return cls.completed(dict(data))  # A copy: ``data`` is the caller's.

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given`` with the missing keys that follow from it."""
        return given

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check(self, *self.rules)  # After the rules of all algorithms.
        return self

    def check_algorithm(self) -> None:
        """Raises ValueError if ``algorithm`` is not the one of the class."""
        own = type(self).model_fields["algorithm"].default
        names = (*ALGORITHMS, *LIBRARIES, *(own_algorithms.known() or (own_algorithms.HOW_WRITTEN,)))
        if check_name("algorithm", self.algorithm, names) != own:
            raise ValueError(f"{type(self).__name__} is for algorithm: {own}, got {self.algorithm}; use TrainConfig")

    def check_actions(self, discrete: bool | None) -> None:
        """Raises ValueError if the algorithm cannot choose the actions of its task, naming an algorithm that can.

        Args:
            discrete: whether an action is one of several; None if unknown.
        """
        kind, kinds = "discrete" if discrete else "continuous", self.kinds_of_actions
        if discrete is not None and kind not in kinds:
            able = [name for name in (*ALGORITHMS, *LIBRARIES) if kind in config_of(name).acts]
            raise ValueError(
                f"algorithm {self.algorithm} takes {' or '.join(kinds)} actions, and those of {self.task} are"
                f" {kind}; " + (f"these algorithms take them: {', '.join(able)}" if able else "no algorithm takes them")
            )


@cache
def config_of(algorithm: str) -> type[TrainConfig]:
    """Returns the class of an algorithm's configs: ``CONFIG`` in the ``settings`` of its folder or library.

    A user's algorithm has the name of its class, and must have been imported.
    """
    if own := own_algorithms.class_of(algorithm):
        return own
    library, colon, _ = algorithm.partition(":")
    if colon:  # An algorithm of a library.
        adapted: type[TrainConfig] = import_module("..adapters.settings", __package__).CONFIGS[library]
        return adapted
    settings = import_module(f"..algorithms.{algorithm}.settings", __package__)
    config: type[TrainConfig] = settings.CONFIG
    return config


def config_class(keys: Mapping[str, Any]) -> type[TrainConfig]:
    """Returns the class for a config with ``keys``."""
    # Older configs of sac and drq lack the algorithm; the ones with pixels are drq's.
    name = keys.get("algorithm", "drq" if keys.get("observations") == "pixels" else "sac")
    if own_algorithms.module_of_algorithm(name):
        return own_algorithms.class_of(name) or TrainConfig  # Its validation says what is missing.
    # The class of any algorithm refuses an unknown name.
    known = name in ALGORITHMS or (isinstance(name, str) and name.startswith(_LIBRARY_PREFIXES))
    return config_of(name if known else "sac")
