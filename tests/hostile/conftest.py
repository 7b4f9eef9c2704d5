"""The fixture that runs commands, and one for figures that many of them draw alike."""

from functools import lru_cache
from importlib import import_module

import pytest
from hostile.inputs import Commands


@pytest.fixture
def commands(tmp_path, capfd, monkeypatch):
    """Runs ``roundoff`` in a folder beside precious files; see :class:`Commands`."""
    return Commands(tmp_path, capfd, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def figures_of_the_same_table_are_drawn_once():
    """Draws a figure once for all tests in which nothing that it is drawn from differs: damage reaches few figures."""
    plotting = import_module("roundoff.analysis.plot")  # the face has a function of this name
    draw, drawn = plotting.draw, {}

    def draw_once(name, content, table, title, size, metric):
        key = (name, content, repr(table.dtypes.to_dict()), title, size, metric.model_dump_json())
        found = drawn.pop(key, None) or draw(name, content, table, title, size, metric)
        drawn[key] = found
        if len(drawn) > 32:
            del drawn[next(iter(drawn))]  # the one that was not wanted for longest
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "draw", draw_once)
        patch.setattr(plotting, "_svg", lru_cache(64)(plotting._svg))
        yield
