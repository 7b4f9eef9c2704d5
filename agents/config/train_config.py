"""What a training run is given: one frozen, validated description."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..environments.task_check import check_task
from .baselines import check_baseline
from .fixes import FIXES, parse_fixes
from .pixel_keys import check_pixel_keys


def _canonical_format(name: str) -> str:
    from ...formats import FloatFormat, Format  # noqa: PLC0415  imports torch, which costs seconds

    fmt = Format.parse(name)
    if not isinstance(fmt, FloatFormat):
        raise ValueError(  # noqa: TRY004 pydantic wants it
            f"an agent trains in a floating-point format, such as fp32, bf16 or e5m10; {fmt} is none: the loss scaling"
            " and the buffers need its largest and its smallest number"
        )
    return str(fmt)


def _check_policy(policy: Any) -> dict[str, Any]:
    from ...formats import FormatError  # noqa: PLC0415  imports torch, which costs seconds
    from ...simulate import Policy  # noqa: PLC0415  likewise

    if isinstance(policy, str):
        policy = {"preset": policy}
    if isinstance(policy, dict) and "format" in policy:
        raise ValueError("policy has no format of its own: set the key format, and formats in rules")
    try:
        Policy.parse(policy, "e5m10")
    except FormatError as error:
        raise ValueError(str(error)) from None
    plain: dict[str, Any] = json.loads(json.dumps(policy, sort_keys=True))
    return plain


# The formats that PyTorch computes in itself, and what it calls them.
NATIVE_FORMATS = {"e5m10": "float16", "e8m7": "bfloat16"}


def _check_device(name: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f'unknown device "{name}"; allowed are cpu, cuda, and cuda:0, cuda:1, ...')
    return name


_Positive = Annotated[int, Field(ge=1)]
_Count = Annotated[int, Field(ge=0)]
_PositiveFloat = Annotated[float, Field(gt=0)]
_Below1 = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(BaseModel):
    """Everything a run depends on; its fields are all the keys that a sweep file may set.

    The defaults are the paper's (Tables 4 and 5). Text is not taken for a number; an integer is taken for a float.

    Attributes:
        task: ``<domain>_<task>`` of the DeepMind control suite, or ``gym:<id>`` of a Gymnasium environment with
            continuous actions.
        format: the number format of the whole agent; stored in canonical form.
        policy: what is simulated in ``format``, and how: ``every-op``, ``storage``, ``mixed-precision``, or a mapping
            with a preset, settings (rounding, granularity, accumulate, scalars, operands) and rules for operations and
            roles; see ``roundoff.Policy``.
        native: compute with real tensors of PyTorch's type for ``format`` (e5m10: torch.float16, bf16: torch.bfloat16)
            instead of simulating it; see docs/native.md.
        keep_networks: keep the networks as they are at each evaluation, so that `roundoff plot` can compare them with
            those of the same run in fp32 (under ``snapshots/``: about 4 bytes a weight, for each evaluation).
        observe: count what rounding does to every operation: adds records to the metrics, and ``numerics.csv``.
        seed: every random stream of the run derives from it.
        fixes: ``"all"``, ``"none"`` or names; stored as a tuple in the order of Table 1.
        baseline: one of the paper's baselines in place of the fixes: ``naive``, ``coercion``, ``loss_scaling``,
            ``mixed_precision``, ``amp`` or ``eps``; ``fixes`` is then none. ``none``: the agent with its fixes. See
            docs/baselines.md.
        steps: length of training in environment steps (agent steps x action repeat).
        action_repeat: how often the environment repeats each action; the rewards are summed.
        hidden_units: width of the hidden layers of actor and critics.
        hidden_layers: how many there are.
        batch_size: transitions per update.
        discount: factor per agent step.
        lr: learning rate of actor, critics and temperature.
        adam_beta1: decay of the first moment.
        adam_beta2: decay of the second moment.
        adam_eps: added to the denominator of Adam.
        initial_temperature: initial weight of the entropy.
        tau: part of the way that the target critics move at each of their updates.
        target_update_every: updates per update of the target critics.
        actor_update_every: updates per update of actor and temperature.
        seed_steps: agent steps with uniform random actions, before updates begin.
        log_sigma_min: smallest logarithm of the policy's standard deviation.
        log_sigma_max: largest.
        sigma_eps: added to the policy's standard deviation.
        initial_loss_scale: for ``compound_loss_scaling``, and for baselines with loss scaling (``amp`` has its own).
        loss_scale_growth_interval: consecutive finite steps after which the loss scale doubles; likewise.
        softplus_threshold: K of ``softplus_fix``, above which softplus is linear; lowered to the logarithm of the
            format's largest number where that is smaller.
        kahan_momentum_scale: C of ``kahan_momentum``.
        replay_capacity: transitions kept (images, if observations are pixels); older ones are overwritten.
        eval_every: environment steps between evaluations.
        eval_episodes: episodes of an evaluation.
        checkpoint_every: environment steps between checkpoints.
        environments: environments that training steps together, in two alternating groups if there are several, with
            one call of the policy per group; see docs/environments.md. Updates stay one per transition.
        environment_workers: processes that step the environments of training and evaluation; 0: this one does. The
            metrics do not depend on it.
        device: ``cpu``, ``cuda`` or ``cuda:<n>``.
        threads: CPU threads of PyTorch.
        observations: ``states``, or ``pixels``: see docs/pixels.md. The keys below are about pixels alone.
        image_size: height and width of an image.
        frames: images an observation is made of, the newest and those before it.
        fast_rendering: render without shadows, reflections and smoothed edges; other images, several times faster.
        image_shift: pixels by which images are shifted at most, at random, in each direction.
        original_images: one of the two copies of every image in an update is not shifted, as in the paper; false: both
            are, as in DrQ.
        filters: of each convolution.
        feature_size: numbers an observation is reduced to.
        weight_standardization: of the linear layer to the features: ``units`` (each unit's weights), ``matrix`` (all
            its weights together, which changes nothing in exact arithmetic) or ``none``.
        feature_limit: features are scaled down to this magnitude before layer normalization; null: they are not.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    task: Annotated[str, AfterValidator(check_task)] = "cartpole_swingup"
    format: Annotated[str, AfterValidator(_canonical_format)] = "fp32"
    policy: Annotated[dict[str, Any], BeforeValidator(_check_policy)] = {}
    native: bool = False
    observe: bool = False
    keep_networks: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    fixes: Annotated[tuple[str, ...], BeforeValidator(parse_fixes)] = FIXES
    baseline: Annotated[str, AfterValidator(check_baseline)] = "none"
    steps: _Positive = 500_000
    action_repeat: _Positive = 1
    hidden_units: _Positive = 1024
    hidden_layers: _Positive = 2
    batch_size: _Positive = 1024
    discount: Annotated[float, Field(ge=0, le=1)] = 0.99
    lr: _PositiveFloat = 1e-4
    adam_beta1: _Below1 = 0.9
    adam_beta2: _Below1 = 0.999
    adam_eps: _PositiveFloat = 1e-8
    initial_temperature: _PositiveFloat = 0.1
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    target_update_every: _Positive = 2
    actor_update_every: _Positive = 1
    seed_steps: _Count = 5000
    log_sigma_min: float = -5.0
    log_sigma_max: float = 2.0
    sigma_eps: Annotated[float, Field(ge=0)] = 0.0
    initial_loss_scale: _PositiveFloat = 1e4
    loss_scale_growth_interval: _Positive = 10_000
    softplus_threshold: _PositiveFloat = 10.0
    kahan_momentum_scale: _PositiveFloat = 1e4
    replay_capacity: _Positive = 1_000_000
    eval_every: _Positive = 10_000
    eval_episodes: _Positive = 10
    checkpoint_every: _Positive = 10_000
    environments: _Positive = 1
    environment_workers: _Count = 0
    device: Annotated[str, AfterValidator(_check_device)] = "cpu"
    threads: _Positive = 1
    observations: Literal["states", "pixels"] = "states"
    image_size: _Positive = 84
    frames: _Positive = 3
    fast_rendering: bool = False
    image_shift: _Count = 4
    original_images: bool = True
    filters: _Positive = 32
    feature_size: Annotated[int, Field(ge=2)] = 50
    weight_standardization: Literal["none", "units", "matrix"] = "units"
    feature_limit: _PositiveFloat | None = 10.0

    @model_validator(mode="before")
    @classmethod
    def _baselines_have_no_fixes(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("baseline", "none") != "none":
            return {"fixes": "none", **data}
        return data

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.baseline != "none" and self.fixes:
            raise ValueError(
                f"baseline: {self.baseline} takes the place of the fixes, got fixes: {', '.join(self.fixes)};"
                " leave fixes out, or set baseline: none"
            )
        return self

    @model_validator(mode="after")
    def _check_log_sigma(self) -> Self:
        if self.log_sigma_min >= self.log_sigma_max:
            raise ValueError(
                f"log_sigma_min must be below log_sigma_max, got {self.log_sigma_min} and {self.log_sigma_max}"
            )
        return self

    @model_validator(mode="after")
    def _check_environment_workers(self) -> Self:
        most = max(self.environments, self.eval_episodes)
        if self.environment_workers > most:
            raise ValueError(
                f"environment_workers is {self.environment_workers}, but there are {self.environments} environments to"
                f" train in and {self.eval_episodes} to evaluate in; allowed are 0 to {most}"
            )
        return self

    @model_validator(mode="after")
    def _check_pixels(self) -> Self:
        check_pixel_keys(self)
        return self

    @model_validator(mode="after")
    def _check_native(self) -> Self:
        if not self.native:
            return self
        if self.format not in NATIVE_FORMATS:
            allowed = " and ".join(f"{name} (torch.{dtype})" for name, dtype in NATIVE_FORMATS.items())
            raise ValueError(
                f"native: true computes in a half precision of PyTorch: allowed are {allowed}, got format"
                f" {self.format}; simulate it with native: false (fp32 and fp64 are PyTorch's own there too)"
            )
        for key in ("policy", "observe"):
            if getattr(self, key):
                raise ValueError(
                    f"native: true runs without a simulation, which {key} is about, got {key}: {getattr(self, key)};"
                    f" leave {key} out, or set native: false"
                )
        return self

    def as_json(self) -> dict[str, Any]:
        """The config as JSON values, sorted by key; ``TrainConfig(**config.as_json()) == config``."""
        return dict(sorted(self.model_dump(mode="json").items()))
