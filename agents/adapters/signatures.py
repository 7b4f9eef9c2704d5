"""What a library's constructors take, read from its source: nothing of it is imported to check a config."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def parameters(place: str) -> tuple[str, ...] | None:
    """The names of what a class is made with.

    Args:
        place: ``<package>.<module>:<class>``.

    Returns:
        The parameters of its constructor, without ``self``; None where the package is not installed, or has another
        class there.
    """
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
    if not found:
        return None
    arguments = found[0].args
    return tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs) if argument.arg != "self")
