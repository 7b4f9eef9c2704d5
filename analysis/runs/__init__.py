"""Reads the files of runs into tables."""
