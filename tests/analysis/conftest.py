"""A fixture for tests that look at many pages and folders, and not at how figures are drawn."""

import pytest
from drawn_once import figures_drawn_once


@pytest.fixture(scope="module")
def same_figures_are_drawn_once():
    """Figures of the same table are drawn once for all tests of a file."""
    with figures_drawn_once():
        yield
