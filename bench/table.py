"""``python -m bench.table``: docs/performance.md, the tables of everything in bench/results."""

from __future__ import annotations

import json
from pathlib import Path

from bench.timing import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
HEAD = """# Performance

Made by `python -m bench.table` from `bench/results/*.json`, which `make bench` writes (`python -m bench.NAME` one of
them). Every figure is a median of several rounds in which the contestants take turns in one process, on one thread.
Look at the ratios: seconds are those of the machine named.
"""
DIGITS = 3
WIDEST = 8  # columns; wider tables lie on their side


def cell(value: object) -> str:
    """A value in few digits."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}" if abs(value) < 1e5 else f"{value:.0f}"
    return str(value)


def section(path: Path) -> str:
    """One file: a table for each set of columns that its rows have."""
    result = json.loads(path.read_text())
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"## {path.stem}",
        "",
        f"{machine['processor']}, {machine['cpu_capability']}, {machine['gpu'] or 'no GPU'}; {versions}.",
    ]
    tables: list[list[dict[str, object]]] = []
    for row in result["rows"]:
        flat: dict[str, object] = {}
        for key, value in row.items():
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            flat |= {key if name is None else f"{name} [{key}]": inner for name, inner in parts}
        if not tables or list(tables[-1][0]) != list(flat):
            tables.append([])
        tables[-1].append(flat)
    for table in tables:
        columns = list(table[0])
        grid = [columns, *([cell(row[column]) for column in columns] for row in table)]
        if len(columns) > WIDEST:
            grid = [list(column) for column in zip(*grid, strict=True)]
        lines += ["", _line(grid[0]), "|" + "---|" * len(grid[0]), *map(_line, grid[1:])]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Writes the page."""
    PAGE.write_text("\n".join([HEAD, *(section(path) for path in sorted(RESULTS.glob("*.json")))]))
    print("written to", PAGE)


if __name__ == "__main__":
    main()
