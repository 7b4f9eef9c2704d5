"""A soft actor-critic as one writes it with torch.nn and torch.optim, for comparison: float32, nothing for less."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


def mlp(inputs: int, units: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, outputs)
    )


class ReferenceSAC(nn.Module):
    """SAC from states with two critics and a learned temperature; the defaults are those of ``TrainConfig``."""

    def __init__(self, observation: int, action: int, units: int, lr: float = 1e-4, tau: float = 0.005) -> None:
        super().__init__()
        self.tau, self.target_entropy, self.updates = tau, -float(action), 0
        self.actor = mlp(observation, units, 2 * action)
        self.critics = nn.ModuleList(mlp(observation + action, units, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(requires_grad=False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.1)))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=lr)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=lr)

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_sigma = self.actor(observations).chunk(2, dim=-1)
        log_sigma = -1.5 + 3.5 * torch.tanh(log_sigma)
        normal = torch.distributions.Normal(mean, log_sigma.exp(), validate_args=False)
        u = normal.rsample()
        log_prob = normal.log_prob(u) - 2 * (math.log(2) - u - F.softplus(-2 * u))
        return torch.tanh(u), log_prob.sum(-1, keepdim=True)

    def update(self, observations, actions, rewards, next_observations, discounts) -> None:
        self.updates += 1
        with torch.no_grad():
            next_actions, log_prob = self.sample(next_observations)
            inputs = torch.cat([next_observations, next_actions], -1)
            value = torch.minimum(self.targets[0](inputs), self.targets[1](inputs))
            target = rewards + 0.99 * discounts * (value - self.log_temperature.exp() * log_prob)
        inputs = torch.cat([observations, actions], -1)
        loss = sum(F.mse_loss(critic(inputs), target) for critic in self.critics)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()

        sampled, log_prob = self.sample(observations)
        inputs = torch.cat([observations, sampled], -1)
        value = torch.minimum(self.critics[0](inputs), self.critics[1](inputs))
        loss = (self.log_temperature.exp().detach() * log_prob - value).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()

        loss = (self.log_temperature.exp() * (-log_prob - self.target_entropy).detach()).mean()
        self.temperature_optimizer.zero_grad()
        loss.backward()
        self.temperature_optimizer.step()

        if self.updates % 2 == 0:
            with torch.no_grad():
                for parameter, target in zip(self.critics.parameters(), self.targets.parameters(), strict=True):
                    target.lerp_(parameter, self.tau)
