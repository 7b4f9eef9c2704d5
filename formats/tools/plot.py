"""Plots of number formats: their resolution at each magnitude, and their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from roundoff.files import atomic_writer

from ..base.errors import FormatError
from ..base.format import Format
from ..base.modes import Rounding
from .table import is_scaled, listed

# Okabe and Ito's colours, which colour-blind readers tell apart, in an order of falling contrast; line styles tell them
# apart in grey.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
_SAMPLES = 4000
_SUFFIXES = (".png", ".svg", ".pdf")


class _PlottedFormat(NamedTuple):
    label: str
    positive: torch.Tensor
    """Numbers above zero in ascending order, float64; of wide formats, pairs of neighbours here and there."""
    complete: bool
    """Whether these are all."""


def plot_formats(names: Sequence[str | Format], path: str | Path) -> Path:
    """Draws the relative spacing of formats against magnitude, and their numbers on a number line.

    The upper panel shows (v' - v) / v against v for neighbours v < v' above zero, both axes logarithmic: half of it is
    the largest relative error of rounding to nearest there. The lower one shows the numbers themselves between 0 and
    the largest number of the narrowest format. Blocks and integers scaled by the data are shown at a scale of 1.

    Args:
        names: one format or more, or their names.
        path: where to write; .png, .svg or .pdf.

    Returns:
        The path.

    Raises:
        FormatError: no names, a name is not a format, the file has another ending, or a format cannot list its values.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise FormatError(f"a plot is written as {', '.join(_SUFFIXES)}, got {str(path)!r}")
    if not names:
        raise FormatError("no format to plot: name one or more")
    shown = [_plotted(name) for name in names]
    figure = Figure(figsize=(8.0, 5.2 + 0.28 * len(shown)), layout="constrained")
    spacing, line = figure.subplots(2, 1, height_ratios=(4.0, 0.7 + 0.38 * len(shown)))
    looks = list(zip(shown, cycle(_COLOURS), cycle(_STYLES), strict=False))
    _draw_spacing(spacing, looks)
    # The numbers of each format on a line of its own
    limit = min(float(fmt.positive.max()) for fmt, _, _ in looks)
    for row, (fmt, colour, _) in enumerate(looks):
        if fmt.complete:
            numbers = fmt.positive[fmt.positive <= limit * 1.0001]
            line.vlines([0.0, *numbers.tolist()], row - 0.32, row + 0.32, color=colour, linewidth=0.9)
        else:
            line.fill_between([0.0, limit], row - 0.32, row + 0.32, color=colour, linewidth=0)
    line.set_yticks(range(len(looks)), [fmt.label for fmt, _, _ in looks])
    line.set_ylim(len(looks) - 0.5, -0.5)
    line.set_xlim(-0.01 * limit, limit * 1.01)
    line.set_xlabel("numbers from zero to the largest that all formats reach (solid: too close to tell apart)")
    for side in ("top", "right", "left"):
        line.spines[side].set_visible(False)
    line.tick_params(axis="y", length=0)
    with atomic_writer(path) as file:
        figure.savefig(file, dpi=150, format=path.suffix[1:].lower())
    return path


def _plotted(name: str | Format) -> _PlottedFormat:
    fmt = Format.parse(name)
    label = f"{str(name).strip()}{' (scale 1)' if is_scaled(fmt) else ''}"
    values, smallest, largest = listed(fmt), fmt.smallest, fmt.max
    if values is not None:
        return _PlottedFormat(label, values[values > 0], complete=True)
    if smallest is None or largest is None:
        raise FormatError(f"{fmt} cannot be plotted: it lists no numbers, and has no largest and smallest one")
    exponents = torch.linspace(math.log2(smallest), math.log2(largest), _SAMPLES, dtype=torch.float64)
    x = (2.0**exponents).clamp(smallest, largest)
    below, above = torch.empty_like(x), torch.empty_like(x)
    fmt.round_into(x, below, Rounding.TOWARD_ZERO)
    fmt.round_into(torch.nextafter(below, torch.full_like(x, torch.inf)), above, Rounding.UP)
    pairs = torch.stack([below, above], 1)[(above > below) & above.isfinite()]
    return _PlottedFormat(label, pairs, complete=False)


def _draw_spacing(axes: Axes, looks: Sequence[tuple[_PlottedFormat, str, object]]) -> None:
    for number, (shown, colour, style) in enumerate(looks):
        if shown.complete:
            below, above = shown.positive[:-1], shown.positive[1:]
        else:
            below, above = shown.positive.unbind(1)
        axes.plot(
            below.log2().tolist(),
            ((above - below) / below).log2().tolist(),
            color=colour,
            linestyle=style,
            linewidth=1.4 + 0.5 * (len(looks) - number - 1) / len(looks),  # Narrower lines are drawn above wider ones.
            label=shown.label,
        )
    # Logarithms on plain axes: matplotlib's logarithmic ones overflow on the ends of fp64.
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 4, 8, 10]))
        axis.set_major_formatter(FuncFormatter(lambda exponent, _: f"$2^{{{exponent:.0f}}}$"))
    axes.set_xlabel("magnitude v")
    axes.set_ylabel("relative distance to the next number")
    axes.grid(visible=True, color="0.88", linewidth=0.6)
    axes.legend(
        frameon=False,
        fontsize=9,
        handlelength=3.5,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=min(len(looks), 4),
    )
