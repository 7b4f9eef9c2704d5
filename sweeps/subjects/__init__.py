"""Subjects of runs: agents, or a user's program."""
