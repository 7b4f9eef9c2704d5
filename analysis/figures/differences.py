"""Draws the distance between the weights and Q values of two runs that differ only in format."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from roundoff.files import open_to_read
from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import RETURN, Metric

from ...agents.config import KeyRole, keys_with
from ..runs.experiment import Experiment
from ..tables.summary import REFERENCE
from .drawing.axes import sort_formats
from .drawing.style import SCREEN, Size, figure, legend_under, ordered_looks, points
from .drawing.tooltips import add_line_tooltips, without_intervals

_STEP = re.compile(r"[0-9]{1,15}", re.ASCII)
_DISTANCE = "_l1"  # after the name of the network
_VALUES = "q_difference"
_NUMBERS = 1 << 22  # results of a layer that are computed at a time


def differences_table(experiment: Experiment, warnings: list[str]) -> pd.DataFrame:
    """Compares every run that kept its networks with the fp32 run of the same config otherwise, seed included.

    Args:
        experiment: its runs; those with ``keep_networks`` have a folder ``snapshots``.
        warnings: gets a line for each file that cannot be read.

    Returns:
        A row per run and evaluation that both have: ``task``, ``format``, ``seed``, ``id``, ``reference`` (id of the
        fp32 run), ``step``, for each network the mean absolute difference of its weights (``actor_l1``), and
        ``q_difference``, the mean absolute difference of the critics' outputs for up to 2000 states and actions of the
        fp32 run, computed in float64; NaN before that run has ended. A weight that is not finite makes its mean NaN.

    Source:
        Low-precision SAC, Appendix, Figures 11 and 12.
    """
    rows: list[dict[str, Any]] = []
    for reference, run in _pairs(experiment):
        reference_files, folder = (RunDirectory(experiment.folders[name]).snapshots for name in (reference, run["id"]))
        inputs = np.atleast_1d(_load(reference_files / "states.npz", warnings).get("inputs", np.empty(0)))
        identity = {key: run[key] for key in ("task", "format", "seed", "id")} | {"reference": reference}
        paths = (path for path in folder.glob("*.npz") if _STEP.fullmatch(path.stem))
        for path in sorted(paths, key=lambda path: int(path.stem)):
            expected, arrays = _load(reference_files / path.name, warnings), _load(path, warnings)
            if expected and expected.keys() == arrays.keys():
                try:
                    rows.append({**identity, "step": int(path.stem), **_compared(expected, arrays, inputs)})
                except (KeyError, IndexError, ValueError, MemoryError):  # layers do not fit each other, or anything
                    other = reference_files / path.name
                    warnings.append(f"{path}: holds no networks that can be compared with {other}")
    distances = sorted({name for row in rows for name in row if name.endswith(_DISTANCE)})
    return pd.DataFrame(rows, columns=["task", "format", "seed", "id", "reference", "step", *distances, _VALUES])


def distances_of(table: pd.DataFrame) -> dict[str, str]:
    """Returns the columns of :func:`differences_table` with distances of weights, by the name of the network."""
    return {name.removesuffix(_DISTANCE): name for name in table.columns if name.endswith(_DISTANCE)}


def draw_differences(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`differences_table`: a row per task, a thick line per format for the mean, a thin one per pair."""
    tasks = sorted(table["task"].unique())
    formats = sort_formats(table["format"])
    looks = dict(zip(formats, ordered_looks(len(formats)), strict=True))
    labels = {column: f"mean |difference| of {network} weights" for network, column in distances_of(table).items()}
    labels[_VALUES] = "mean |difference| of Q values"
    panels = [(task, column) for task in tasks for column in labels]
    columns = min(len(labels), size.columns)
    title = f"{name}: networks compared with {REFERENCE} networks of the same seed"
    with figure(len(panels), title, 4.4, 3.6, size, columns=columns) as (canvas, axes):
        for axis, (task, column) in zip(axes, panels, strict=True):
            for fmt, style in looks.items():
                rows = table[(table["task"] == task) & (table["format"] == fmt)].dropna(subset=[column])
                for _, pair in rows.groupby("id"):
                    axis.plot(pair["step"], pair[column], color=style.color, linewidth=points(0.6), alpha=0.6)
                    label = f"{fmt}, seed {pair['seed'].iloc[0]}"
                    add_line_tooltips(
                        axis, label, "step", without_intervals(pair["step"], pair[column]), of_means=False
                    )
                mean = rows.groupby("step")[column].mean()
                axis.plot(
                    mean.index, mean, color=style.color, linestyle=style.line, marker=style.marker,
                    markersize=points(4), label=fmt,
                )  # fmt: skip
                add_line_tooltips(axis, str(fmt), "step", without_intervals(mean.index, mean))
            axis.set_title(task)
            axis.set_ylabel(labels[column])
            axis.set_xlabel(metric.steps)
            axis.set_ylim(bottom=0)
        legend_under(canvas, *axes[0].get_legend_handles_labels())
        return canvas


def _pairs(experiment: Experiment) -> list[tuple[str, pd.Series[Any]]]:
    runs = experiment.runs
    if "keep_networks" not in runs:
        return []
    ignored = keys_with(KeyRole.ARITHMETIC | KeyRole.EXECUTION)  # these may differ in a pair
    keys = [key for key in runs.columns if key in experiment.config_keys and key not in ignored]
    kept = runs[runs["keep_networks"].eq(other=True)]
    candidates = kept[(kept["format"] == REFERENCE) & (kept.get("policy", "none") == "none")]
    references = {tuple(row[keys]): str(row["id"]) for _, row in candidates[::-1].iterrows()}
    pairs = [(references.get(tuple(row[keys])), row) for _, row in kept.iterrows()]
    return [(reference, row) for reference, row in pairs if reference is not None and reference != row["id"]]


def _load(path: Path, warnings: list[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of a file, in float64; returns none if it is missing or damaged."""
    try:
        with open_to_read(path) as raw, np.load(raw, allow_pickle=False) as file:
            if any(part.compress_type != zipfile.ZIP_STORED for part in file.zip.infolist()):  # may be a zip bomb
                raise ValueError("it is compressed, and snapshots are not")  # noqa: TRY301  it is damaged
            return {name: _as_float64(file[name]) for name in file.files}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, MemoryError) as error:
        warnings.append(f"{path}: cannot be read ({error}); left out")
        return {}


def _as_float64(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiub":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    return values.astype(np.float64)


def _compared(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], inputs: np.ndarray) -> dict[str, float]:
    expected, networks = _networks(a), _networks(b)
    with np.errstate(all="ignore"):  # weights that are not finite
        distances = {f"{name}{_DISTANCE}": _distance(expected[name], networks[name]) for name in expected}
        return {**distances, _VALUES: _q_distance(expected.values(), networks.values(), inputs)}


def _networks(arrays: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Groups arrays to the layers of each network: layer i of a network is the array ``<network>_<i>``."""
    names = sorted({name.rpartition("_")[0] for name in arrays})
    counts = {name: sum(key.rpartition("_")[0] == name for key in arrays) for name in names}
    return {name: [arrays[f"{name}_{i}"] for i in range(count)] for name, count in counts.items()}


def _distance(a: Iterable[np.ndarray], b: Iterable[np.ndarray]) -> float:
    distances = np.concatenate([np.abs(x - y).ravel() for x, y in zip(a, b, strict=True)])
    if not distances.size:
        raise ValueError("it has no weights")
    return float(distances.mean())


def _q_distance(a: Iterable[list[np.ndarray]], b: Iterable[list[np.ndarray]], inputs: np.ndarray) -> float:
    """Returns the distance between the critics of two runs for stored states and actions."""
    if not inputs.size:
        return float("nan")
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x[0].shape[-2] == inputs.shape[-1]]
    if not pairs:
        return float("nan")
    total, count = 0.0, 0
    for x, y in pairs:
        widest = max(layer.size // max(1, layer.shape[-2]) for layer in (*x, *y))
        rows = max(1, _NUMBERS // max(1, widest))
        for start in range(0, len(inputs), rows):
            batch = inputs[start : start + rows]
            distances = np.abs(_forward(x, batch) - _forward(y, batch))
            total, count = total + float(distances.sum()), count + distances.size
    return total / count if count else float("nan")


def _forward(layers: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """Evaluates an ensemble of perceptrons with ReLU, as agents do; returns (ensemble, batch, out)."""
    for i in range(0, len(layers), 2):
        x = (np.maximum(x, 0.0) if i else x) @ layers[i] + layers[i + 1]
    return x
