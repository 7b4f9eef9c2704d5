"""Algorithms of other libraries, unchanged, as runs of this one."""
