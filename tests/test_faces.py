"""The faces of packages: what they name is there, and is what its module has."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

FACES = ("agents", "agents.config", "analysis", "formats", "simulate", "sweeps", "remedies")


def imports_for_type_checkers(face):
    """The names that a face imports when they are first used, each with whether it is public: without "as" itself."""
    blocks = [
        statement
        for statement in ast.parse(Path(face.__file__).read_text()).body
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    ]
    imports = [line for block in blocks for line in block.body]
    return {alias.asname or alias.name: alias.asname != alias.name for line in imports for alias in line.names}


@pytest.mark.parametrize("name", FACES)
def test_every_name_is_there(name):
    face = import_module(f"roundoff.{name}")
    names = imports_for_type_checkers(face)
    assert names
    for one in names:
        assert getattr(face, one) is not None, one
    assert set(face.__all__) <= {*names, *vars(face)}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        face.nothing  # noqa: B018


def test_a_name_may_be_a_module_or_have_another_name_in_its_module():
    from roundoff import agents
    from roundoff.agents import config
    from roundoff.agents.config import own_algorithms
    from roundoff.agents.run import checkpoint

    assert agents.checkpoint is checkpoint
    assert config.check_own_algorithm is own_algorithms.check_own_algorithm


def test_what_is_public_is_told_from_what_is_for_other_folders():
    from roundoff import agents, sweeps
    from roundoff.agents import config

    for face in (agents, sweeps):
        names = imports_for_type_checkers(face)
        assert set(face.__all__) == {name for name, public in names.items() if public}
    assert set(config.__all__) == set(imports_for_type_checkers(config))  # it writes none
