"""Soft actor-critic, from states."""
