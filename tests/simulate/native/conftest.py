"""What tests of the C++ ask for, and what comes to simulations through Python all the same."""

import pytest

from roundoff.simulate.dispatch.simulation import Simulation
from roundoff.simulate.native import building, library


@pytest.fixture
def asked_for(monkeypatch):
    """The library; where there is no compiler, the test is skipped."""
    monkeypatch.setenv(library.VARIABLE, "1")
    if library.library() is None:
        if building.compiler():
            pytest.fail(library.reason_against_native())
        pytest.skip(library.reason_against_native())


@pytest.fixture
def through_python(monkeypatch):
    """The names of operations that come to simulations through Python."""
    seen = []
    dispatch = Simulation.__torch_dispatch__

    def seeing(self, func, types, args=(), kwargs=None):
        seen.append(func.overloadpacket.__name__)
        return dispatch(self, func, types, args, kwargs)

    monkeypatch.setattr(Simulation, "__torch_dispatch__", seeing)
    return seen
