"""Epsilon-greedy exploration: the share of random actions, their choice, and the explorer of actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch

from ...streams import Stream, torch_generator
from ..categorical import expected
from .settings import DQNConfig

_RESOLUTION = 1 << 53  # Of the share: a float64 has 53 significant bits.


def share_of_random_actions(acted: int, start: float, end: float, steps: int) -> float:
    """Returns a share that falls linearly from ``start`` to ``end`` in this number of steps, and then is constant."""
    return end if acted >= steps else start + (end - start) * (acted / steps)


def random_actions(
    count: int, action_size: int, share: float, generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    """Draws rows with a one in the place of a random action, or zeros for no random action; (count, action).

    They are drawn as integers, which no simulation rounds: exploration is the same in every format, and rounding does
    not make one action more frequent than another.

    Args:
        count: rows.
        action_size: actions to choose from.
        share: the share of rows with a random action, in [0, 1].
        generator: also determines the device.
        dtype: the dtype of the rows.
    """
    options: dict[str, Any] = {"generator": generator, "device": generator.device}
    explores = torch.randint(_RESOLUTION, (count, 1), **options) < int(share * _RESOLUTION)
    return rows_of(torch.randint(action_size, (count, 1), **options), action_size, dtype) * explores


def rows_of(actions: torch.Tensor, action_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Converts actions (n, 1), by number, to rows with a one in their place."""
    return (torch.arange(action_size, device=actions.device) == actions).to(dtype)


@final
class EpsilonGreedy:
    """The :class:`~..explorer.Explorer` of DQN: replaces some of the best actions by random ones, as a learner does.

    Args:
        config: the config of the run.
        count: the number of actors; the schedule counts the actions of each for all.
        steps: the number of steps taken before, including the random ones at the beginning.
        stream_key: the key that makes its random actions differ; see ``torch_generator``.
    """

    def __init__(self, config: DQNConfig, count: int, steps: int, stream_key: tuple[int, ...]) -> None:
        self._config, self._count = config, count
        self._acted = self._acted_in(steps)
        self._generator = torch_generator(config.seed, Stream.ACTION_NOISE, torch.device("cpu"), *stream_key)

    def act(self, best: torch.Tensor) -> torch.Tensor:
        """Returns the best actions, some of them replaced by random ones; NaN remains."""
        count, action_size = best.shape
        share = self._share(self._acted)
        self._acted += count
        explores = random_actions(count, action_size, share, self._generator, best.dtype)
        return torch.where((explores != 0).any(dim=1, keepdim=True) & ~best.isnan(), explores, best)

    def basis(self, outputs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Returns Q values, (n, action), from the outputs of an engine; divergences and ratios follow from them."""
        config = self._config
        if config.atoms == 1:
            return outputs
        logits = outputs.view(len(outputs), -1, config.atoms)
        return expected(torch.softmax(logits, dim=2), torch.linspace(*config.support, config.atoms))

    def divergence(self, learner: torch.Tensor, actor: torch.Tensor) -> float:
        """Returns the divergence of Boltzmann policies softmax(Q); for greedy policies it would be 0 or infinite."""
        log_p, log_q = (torch.log_softmax(q.double(), dim=1) for q in (learner, actor))
        return float((log_p.exp() * (log_p - log_q)).sum(1).mean().clamp(min=0))

    def ratios(self, actions: torch.Tensor, learner: torch.Tensor, actor: torch.Tensor, steps: int) -> torch.Tensor:
        """Returns ratios of policies that take the action of the largest Q, except the current share of random ones."""
        share, action_size = self._share(self._acted_in(steps)), actions.shape[1]
        chance = torch.tensor([share / action_size, 1 - share + share / action_size], dtype=torch.float64)
        taken = actions.argmax(1)
        p_learner, p_actor = (chance[(q.argmax(1) == taken).long()] for q in (learner, actor))
        return (p_learner / p_actor).nan_to_num(1.0).clamp(max=1)  # 0 / 0: no random actions, and a tie of Q values.

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"generator": self._generator.get_state(), "acted": self._acted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        self._generator.set_state(state["generator"])
        self._acted = state["acted"]

    def _acted_in(self, steps: int) -> int:
        """Returns the number of actions that the policy chose in some steps; the first ``seed_steps`` were random."""
        return max(0, steps - -(-self._config.seed_steps // self._count))

    def _share(self, acted: int) -> float:
        config = self._config
        return share_of_random_actions(
            acted * self._count, config.exploration_start, config.exploration_end, config.exploration_steps
        )
