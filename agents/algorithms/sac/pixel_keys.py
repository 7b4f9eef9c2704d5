"""The keys of a config that are about pixels, and which of their values go together."""

from __future__ import annotations

from typing import Any

from ...environments.tasks import Kind, kind_of

# Four 3x3 convolutions, the first with stride 2, leave at least one pixel.
SMALLEST_IMAGE = 15

PIXEL_KEYS = (
    "image_size",
    "frames",
    "fast_rendering",
    "image_shift",
    "original_images",
    "filters",
    "feature_size",
    "weight_standardization",
    "feature_limit",
)


def check_observations(config: Any) -> None:
    """Refuses keys about pixels in a run from states, those about states in one from pixels, and sizes too small.

    Args:
        config: a ``TrainConfig``, which calls this when it is made.

    Raises:
        ValueError: naming the key, its value and what to do.
    """
    if (config.observations == "pixels") != (config.algorithm == "drq"):
        raise ValueError(
            f"observations: pixels and algorithm: drq go together, got observations: {config.observations} with"
            f" algorithm: {config.algorithm}; leave one of them out"
        )
    if config.observations == "states":
        for key in sorted(config.model_fields_set.intersection(PIXEL_KEYS)):
            value = getattr(config, key)
            if value != type(config).model_fields[key].default:
                raise ValueError(
                    f"{key} is about learning from pixels, got {key}: {value} with observations: states;"
                    f" set observations: pixels, or leave {key} out"
                )
        return
    if kind_of(config.task) is not Kind.SUITE:
        raise ValueError(
            f"observations: pixels is for tasks of the control suite, got task: {config.task};"
            " set observations: states, or choose another task"
        )
    if config.keep_networks:
        raise ValueError(
            "keep_networks keeps networks whose values are compared on states, got keep_networks: True with"
            " observations: pixels; set observations: states, or leave keep_networks out"
        )
    if config.image_size < SMALLEST_IMAGE:
        raise ValueError(
            f"image_size must be at least {SMALLEST_IMAGE}, for the four convolutions to leave a pixel,"
            f" got {config.image_size}"
        )
    least = config.environments * (config.frames + 1)
    if config.replay_capacity < least:
        each = f"frames + 1 = {least}" if config.environments == 1 else f"environments x (frames + 1) = {least}"
        raise ValueError(
            f"replay_capacity counts images if observations: pixels, and must be at least {each}, got"
            f" {config.replay_capacity}"
        )
