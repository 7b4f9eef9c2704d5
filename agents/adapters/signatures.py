"""Arguments of a library's constructors, read from its source without importing it."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def parameters(place: str) -> tuple[str, ...] | None:
    """The names of the constructor parameters of a class.

    Args:
        place: ``<package>.<module>:<class>``.

    Returns:
        The parameters of its constructor, without ``self``; None where the package is not installed, or has another
        class there.
    """
    found = _constructor(place)
    return None if found is None else tuple(one.arg for one in (*found.args, *found.kwonlyargs) if one.arg != "self")


def default(place: str, name: str) -> Any:
    """Returns the default of a parameter of a class; None if it is unknown or not a literal."""
    found = _constructor(place)
    if found is None:
        return None
    given = dict(zip((one.arg for one in reversed(found.args)), reversed(found.defaults), strict=False))
    given |= {one.arg: value for one, value in zip(found.kwonlyargs, found.kw_defaults, strict=True) if value}
    value = given.get(name)
    return value.value if isinstance(value, ast.Constant) else None


@cache
def _constructor(place: str) -> ast.arguments | None:
    """Returns the parameters of the constructor of a class; None if it is not found."""
    module, _, name = place.partition(":")
    package, *rest = module.split(".")
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return None
    try:
        tree = ast.parse(Path(folders[0]).joinpath(*rest).with_suffix(".py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    found = [part for body in bodies for part in body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    return found[0].args if found else None
