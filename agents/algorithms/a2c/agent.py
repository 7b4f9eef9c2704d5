"""A2C: one step of a policy gradient for each short rollout of several environments; from states."""

from __future__ import annotations

from typing import final

import torch

from ...experience.on_policy import RolloutRecorder, record_rollouts
from ...sizes import Sizes
from ..part import Metrics
from ..policy_gradient import PolicyGradient
from .settings import A2CConfig


@final
class A2C(PolicyGradient):
    """The surrogate log pi * A.

    Source:
        Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", Algorithm S3, synchronous.
    """

    config: A2CConfig

    def surrogate(
        self,
        log_prob: torch.Tensor,  # noqa: ARG002
        old_log_prob: torch.Tensor,  # noqa: ARG002
        advantage: torch.Tensor,
    ) -> tuple[torch.Tensor, Metrics]:
        """The advantage."""
        return advantage, {}


def make(config: A2CConfig, sizes: Sizes, device: torch.device) -> tuple[A2C, RolloutRecorder]:
    """The learner with its initial weights, and the recorder of its experience."""
    learner = A2C(sizes, config, device)
    return learner, record_rollouts(config, sizes, learner.dtype, device, learner.judge, normalizer=learner.normalizer)
