"""Trackers of experiments, to which a sweep logs itself: which one a file names, and what each is told of a run."""

from .log_to import LogTo
from .tracker import TrackedRun, Tracker, open_tracker

__all__ = ["LogTo", "TrackedRun", "Tracker", "open_tracker"]
