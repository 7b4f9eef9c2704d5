"""Figures that are drawn once for all tests in which nothing that they are drawn from differs."""

from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module

import pytest

MOST = 32  # figures that are kept


@contextmanager
def figures_drawn_once():
    """Has ``roundoff.analysis`` draw a figure once for one table, title, size and metric; the result is the same."""
    plotting = import_module("roundoff.analysis.plot")  # the face has a function of this name
    draw, drawn = plotting.draw, {}

    def draw_once(name, content, table, title, size, metric):
        key = (name, content, repr(table.dtypes.to_dict()), title, size, metric.model_dump_json())
        found = drawn.pop(key, None) or draw(name, content, table, title, size, metric)
        drawn[key] = found
        if len(drawn) > MOST:
            del drawn[next(iter(drawn))]  # the one that was not wanted for longest
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "draw", draw_once)
        patch.setattr(plotting, "_svg", lru_cache(2 * MOST)(plotting._svg))
        yield
