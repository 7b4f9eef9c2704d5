"""Every docstring can be understood by itself: it names its thing, and does not begin as a fragment."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("formats", "simulate", "agents", "analysis", "sweeps", "src/roundoff", "bench", "docs", "examples", "tests")
FRAGMENT = re.compile(
    r"(Of|Which|Whose|Where|Nor|Those|Their|Its|They|Such|It|As|So|And|But|Or|Then|Likewise|By|Without|Along|None:|"
    r"In which|That|The same|The latter)(?!\w)"
)


def docstrings(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def test_no_docstring_begins_as_a_fragment():
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in docstrings(file)
        if FRAGMENT.match(text)
    ]
    assert len(files) > 700
    assert not found, "name the thing, then the verb:\n" + "\n".join(found)
