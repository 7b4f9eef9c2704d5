"""Tools for tests of numerical code."""
