"""The fixture that runs commands, and one for figures that many of them draw alike."""

import pytest
from drawn_once import figures_drawn_once
from hostile.inputs import Commands


@pytest.fixture
def commands(tmp_path, capfd, monkeypatch):
    """Runs ``roundoff`` in a folder beside precious files; see :class:`Commands`."""
    return Commands(tmp_path, capfd, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def what_damage_does_not_reach():
    """Most of the figures of a damaged folder are as they were: those are drawn once for all tests."""
    with figures_drawn_once():
        yield
