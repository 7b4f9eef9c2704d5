"""DQN: Q-learning with a scalar or categorical head, and what Rainbow adds to it."""
