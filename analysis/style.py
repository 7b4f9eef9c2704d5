"""How figures look: readable in print, in greyscale and for colour-blind readers, and the same bytes every time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Look(NamedTuple):
    """What sets one series apart, three times over: colour, marker and line."""

    color: str
    marker: str
    line: str


# Okabe & Ito's colours, which colour-blind readers can tell apart, the dark before the light.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))

REFERENCE = Look("#444444", "none", "--")
CRASH = "#000000"

_SETTINGS = {
    "font.size": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "roundoff",  # else ids in SVG files are random
    "figure.dpi": 100.0,
    "savefig.dpi": 150.0,
}


def return_limits(tasks: Iterable[str], returns: Iterable[float]) -> tuple[float, float]:
    """Ends of an axis of returns, with a margin.

    Args:
        tasks: shown there. Those of the control suite return 0 to 1000, others (``gym:...``) anything.
        returns: all that are shown; NaN is passed over.
    """
    low, high = 0.0, 1000.0
    if any(":" in task for task in tasks):
        finite = [0.0, *(float(value) for value in returns if value == value)]  # noqa: PLR0124  not NaN
        low, high = min(finite), max(finite)
    margin = 0.04 * ((high - low) or 1.0)
    return low - margin, high + margin


def look(number: int) -> Look:
    """The look of one of a few series that have no order, by its number."""
    line = _LINES[(number + number // 6) % 6]  # when colours come again, then with other lines
    return Look(_COLORS[number % 6], _MARKERS[number % 10], line)  # type: ignore[arg-type]


def ordered_looks(count: int) -> list[Look]:
    """The looks of ``count`` series that have an order, from dark to light: the order survives in greyscale."""
    shades = mpl.colormaps["viridis"]([0.88 * i / max(count - 1, 1) for i in range(count)])
    return [
        Look(to_hex(shade), _MARKERS[i % 10], _LINES[i % 6])  # type: ignore[arg-type]
        for i, shade in enumerate(shades)
    ]


@contextmanager
def figure(columns: int, rows: int, width: float = 5.2, height: float = 3.9) -> Iterator[Figure]:
    """A figure for ``columns`` x ``rows`` panels, drawn without touching matplotlib's global state.

    Args:
        columns: panels side by side.
        rows: panels above each other.
        width: of a panel, in inches.
        height: of a panel, in inches.
    """
    with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
        yield Figure(figsize=(width * columns + 0.6, height * rows + 0.5), layout="constrained")
