"""PPO: proximal policy optimization."""
