"""Stable-Baselines3's PPO on CartPole, unchanged, and quantization-aware training by one rule of a policy."""

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

import roundoff


def train(
    arithmetic: roundoff.Simulation,
    seed: int,
    steps: int = 10_000,
    lr: float = 1e-3,
    eps: float = 1e-5,
    episodes: int = 20,
) -> dict:
    """Trains and evaluates in the run's arithmetic; returns the mean return of the episodes, 500 at most."""
    world = gymnasium.make("CartPole-v1")
    agent = PPO(
        "MlpPolicy", world, seed=seed, learning_rate=lr, n_steps=512, device="cpu",
        policy_kwargs={"net_arch": [64, 64], "optimizer_kwargs": {"eps": eps}},
    )  # fmt: skip
    with arithmetic:
        agent.learn(steps)
        mean, spread = evaluate_policy(agent, gymnasium.make("CartPole-v1"), n_eval_episodes=episodes, warn=False)
    return {"return": mean, "spread": spread}
