"""Everything ``roundoff plot`` makes from a folder of runs."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from roundoff.analysis.comparison import draw_comparison
from roundoff.analysis.curves import draw_curves
from roundoff.analysis.degradation import draw_degradation
from roundoff.analysis.differences import differences, draw_differences
from roundoff.analysis.errors import AnalysisError
from roundoff.analysis.exponents import draw_exponents
from roundoff.analysis.store import read_experiment
from roundoff.analysis.summary import conditions, ended, summarize
from roundoff.analysis.training import draw_training

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DPI = 150
_NO_DATE = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def plot(directory: str | Path) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the degradation plot, the learning curves and their tables into ``directory``.

    Files: ``summary.csv`` (see :func:`roundoff.analysis.summary.summarize`) and ``runs.csv`` (every run);
    ``degradation``, ``curves`` and ``training``, each ``.png`` and ``.svg``; ``comparison``, if something besides
    task, format and seed varies; ``exponents``, if runs were observed;
    ``differences``, also ``.csv``, if runs kept their networks. The same runs give the same bytes. Each file is
    replaced as a whole.

    Args:
        directory: the folder of a sweep, or of runs.

    Returns:
        The files written, and warnings about what was left out: damaged files, unfinished runs.

    Raises:
        AnalysisError: nothing to plot, or the folder cannot be written to.
    """
    path = Path(directory)
    experiment = read_experiment(path)
    finished = ended(experiment.runs)
    warnings = list(experiment.warnings)
    open_runs = experiment.runs[~experiment.runs["id"].isin(finished["id"])]
    if finished.empty:
        raise AnalysisError(
            f"{path}: none of its {len(open_runs)} runs has ended yet; continue with the command that started it"
        )
    if len(open_runs):
        counts = ", ".join(f"{count} {status}" for status, count in open_runs["status"].value_counts().items())
        warnings.append(f"{path}: {len(open_runs)} runs have not ended ({counts}) and are not in the degradation plot")
    summary = summarize(experiment)
    written = [
        _write(path / "summary.csv", _csv(summary)),
        _write(path / "runs.csv", _csv(experiment.runs)),
    ]
    figures = {"degradation": draw_degradation(experiment, summary), "curves": draw_curves(experiment)}
    if conditions(experiment.runs):
        figures["comparison"] = draw_comparison(experiment, summary)
    if len(experiment.training):
        figures["training"] = draw_training(experiment)
    if len(experiment.exponents):
        figures["exponents"] = draw_exponents(experiment)
    distances = differences(experiment, warnings)
    if len(distances):
        written.append(_write(path / "differences.csv", _csv(distances)))
        figures["differences"] = draw_differences(experiment, distances)
    for name, drawn in figures.items():
        written += [_write(path / f"{name}.{suffix}", _image(drawn, suffix)) for suffix in ("png", "svg")]
    return written, tuple(warnings)


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, float_format="%.10g", lineterminator="\n").encode()


def _image(drawn: Figure, suffix: str) -> bytes:
    import matplotlib as mpl  # noqa: PLC0415

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "roundoff"}):
        drawn.savefig(buffer, format=suffix, dpi=_DPI, metadata=_NO_DATE[suffix])
    return _fewer_colours(buffer) if suffix == "png" else buffer.getvalue()


def _fewer_colours(png: io.BytesIO) -> bytes:
    """The picture with 256 colours, chosen from its own: a third to a half of the bytes, and no difference to see."""
    from PIL import Image  # noqa: PLC0415

    with Image.open(png) as picture:
        few = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    few.save(smaller, "PNG", optimize=True, dpi=(_DPI, _DPI))
    return smaller.getvalue()


def _write(path: Path, content: bytes) -> Path:
    """Replaces a file as a whole: a killed plot leaves no half of one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise AnalysisError(f"{path}: cannot be written ({error.strerror}); make the folder writable") from error
    return path
