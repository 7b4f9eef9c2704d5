"""Runs as they lie on disk, read into tables."""
