"""D4PG: distributional deterministic policy gradients; with one atom DDPG."""
