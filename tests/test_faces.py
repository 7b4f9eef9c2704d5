"""The faces of packages: what they name is there, for type checkers too, and is what its module has."""

import ast
import types
from importlib import import_module
from pathlib import Path

import pytest

FACES = ("agents", "agents.config", "analysis", "formats", "simulate", "sweeps")


def tables(face):
    """The tables of a face from which names are imported when they are first used, in one."""
    return {
        name: place
        for table, value in vars(face).items()
        if table == "_MODULES" or table.startswith("_FOR_")
        for name, place in value.items()
    }


def names_of_type_checkers(face):
    """What a face imports for type checkers alone."""
    blocks = [
        statement
        for statement in ast.parse(Path(face.__file__).read_text()).body
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    ]
    imports = [line for block in blocks for line in block.body]
    return [alias.asname or alias.name for line in imports for alias in line.names]


@pytest.mark.parametrize("name", FACES)
def test_every_name_is_there(name):
    face = import_module(f"roundoff.{name}")
    places = tables(face)
    assert places
    for one, place in places.items():
        assert isinstance(getattr(face, one), types.ModuleType) == place.endswith(":"), one
    assert sorted(names_of_type_checkers(face)) == sorted(places)
    assert set(face.__all__) <= {*places, *vars(face)}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        face.nothing  # noqa: B018


def test_what_is_public_is_told_from_what_is_for_other_folders():
    from roundoff import agents, sweeps
    from roundoff.agents import config

    for face in (agents, config, sweeps):
        assert set(face.__all__) == set(face._MODULES)
