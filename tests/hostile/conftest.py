"""The fixture that runs commands."""

import pytest
from hostile.inputs import Commands


@pytest.fixture
def commands(tmp_path, capfd, monkeypatch):
    """Runs ``roundoff`` in a folder beside precious files; see :class:`Commands`."""
    return Commands(tmp_path, capfd, monkeypatch)
