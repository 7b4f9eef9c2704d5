"""DQN: Q-learning with a scalar or categorical head, and the additions of Rainbow."""
