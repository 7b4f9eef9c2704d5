"""Actors away from the learner: processes that act with a quantized copy of its policy."""
