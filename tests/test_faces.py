"""The faces of agents: what they name is there, and is what its module has."""

import types

import pytest

from roundoff import agents
from roundoff.agents import config


def test_every_name_is_there():
    for face, places in ((agents, agents._MODULES | agents._FOR_OTHER_FOLDERS), (config, config._PLACES)):
        for name, place in places.items():
            found = getattr(face, name)
            assert isinstance(found, types.ModuleType) == place.endswith(":"), name
    assert set(agents.__all__) == set(agents._MODULES)
    assert set(config.__all__) == set(config._PLACES)
    for face in (agents, config):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            face.nothing  # noqa: B018
