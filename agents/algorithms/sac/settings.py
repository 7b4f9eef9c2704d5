"""The keys of soft actor-critic, from states or from pixels, and its logged values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...config.fields import Count, KeyRole, NonNegativeFloat, Panel, Positive, PositiveFloat, key
from ...config.learning_keys import OffPolicyKeys
from ...config.rules import KeyRule, other_than

_FREE = KeyRole.TIMELESS
_PIXEL_KEYS = (
    "fast_rendering", "feature_limit", "feature_size", "filters", "frames", "image_shift", "image_size",
    "original_images", "weight_standardization",
)  # fmt: skip


def _needless_pixel_key(config: Any) -> tuple[str, Any] | None:
    """Returns a key about pixels that a config from states sets, and its value."""
    if config.observations == "pixels":
        return None
    return other_than(config, {name: SACConfig.model_fields[name].default for name in _PIXEL_KEYS})


class SACConfig(OffPolicyKeys):
    """Soft actor-critic; the defaults are the paper's (Low-precision SAC, Tables 4 and 5)."""

    panels: ClassVar[Mapping[str, Panel]] = {
        "q": Panel("mean Q value"),
        "temperature": Panel("temperature", log=True),
        "critic_loss_scale": Panel("loss scale of the critics", log=True),
        "actor_loss_scale": Panel("loss scale of the actor", log=True),
    }

    rules: ClassVar[tuple[KeyRule, ...]] = (
        KeyRule(lambda c: c.log_sigma_min >= c.log_sigma_max, "log_sigma_min",
             "log_sigma_min must be below log_sigma_max, got {c.log_sigma_min} and {c.log_sigma_max}"),
        KeyRule(lambda c: (c.observations == "pixels") != (c.algorithm == "drq"), "observations",
             "observations: pixels and algorithm: drq go together, got observations: {c.observations} with algorithm:"
             " {c.algorithm}; leave one of them out"),
        KeyRule(_needless_pixel_key, "observations",
             "{found[0]} is about learning from pixels, got {found[0]}: {found[1]} with observations: states; set"
             " observations: pixels, or leave {found[0]} out"),
    )  # fmt: skip

    algorithm: str = key("sac", "The algorithm. Each algorithm has its own keys.", KeyRole.LATER)
    initial_temperature: PositiveFloat = key(0.1, "Initial weight of the entropy.", KeyRole.TIMELESS | KeyRole.DATA)
    target_update_every: Positive = key(2, "Updates per update of the target critics.")
    actor_update_every: Positive = key(1, "Updates per update of actor and temperature.")
    log_sigma_min: float = key(-5.0, "Smallest logarithm of the policy's standard deviation.", _FREE)
    log_sigma_max: float = key(2.0, "Largest logarithm of the policy's standard deviation.", _FREE)
    sigma_eps: NonNegativeFloat = key(0.0, "Added to the policy's standard deviation.", _FREE)
    softplus_threshold: PositiveFloat = key(
        10.0,
        "K of `softplus_fix`: softplus is linear above it. It is lowered to the logarithm of the format's largest"
        " value if this is smaller.",
        _FREE,
    )
    observations: Literal["states", "pixels"] = key("states", "`states`, or `pixels`: see docs/environments.md.")
    # The keys below are only for pixels.
    image_size: Positive = key(84, "Height and width of an image.")
    frames: Positive = key(3, "Number of images in an observation: the newest and the preceding ones.")
    fast_rendering: bool = key(
        False,
        "Render without shadows, reflections and antialiasing; the images differ, and rendering is several"
        " times faster.",
    )
    image_shift: Count = key(4, "Largest random shift of images in each direction, in pixels.")
    original_images: bool = key(
        True,
        "One of the two copies of every image in an update is not shifted, as in the paper; false: both are shifted,"
        " as in DrQ.",
    )
    filters: Positive = key(32, "Number of filters of each convolution.")
    feature_size: Annotated[int, Field(ge=2, lt=2**31)] = key(50, "Number of features of an observation.")
    weight_standardization: Literal["none", "units", "matrix"] = key(
        "units",
        "Standardization of the linear layer that computes the features: `units` (each unit's weights), `matrix`"
        " (all its weights together, which changes nothing in exact arithmetic) or `none`.",
    )
    feature_limit: PositiveFloat | None = key(
        10.0, "Features are scaled down to this magnitude before layer normalization; null: not scaled."
    )

    @property
    def stores_layers(self) -> bool:
        """Whether layers can be stored: only agents that learn from states can."""
        return self.observations == "states"


CONFIG = SACConfig
