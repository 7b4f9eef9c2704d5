"""Writes every record of every run into one table, in Parquet or CSV; docs/running-sweeps.md has the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from roundoff.files import parse_json
from roundoff.runs.folder import RunDirectory, config_in, unplanned_runs
from roundoff.runs.log import damaged_line_warning, read_log

from ..errors import AnalysisError
from .files import planned_runs, read_json, write_file
from .outcome import read_outcome

# Always there, in this order; the numbers that runs log follow in alphabetical order.
_RECORD_COLUMNS = {
    "kind": pa.string(),
    "step": pa.int64(),
    "return_mean": pa.float64(),
    "return_std": pa.float64(),
    "returns": pa.list_(pa.float64()),
    "episode_return": pa.float64(),
    "numerics": pa.string(),
}
_NO_NUMBERS = ("numerics", "returns")
# A list or a mapping in a list, or two mappings on a line: records with these are read line by line.
_NESTED = re.compile(rb"\[[^\]\n]*[\[{]|\{[^\n]*\{")
_AT_ONCE = 8 << 20  # bytes of files that are parsed together
_RUN_COLUMNS = ("sweep", "run", "status")
_CONFIG = "config_"
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
"""Errors of Arrow for values that do not fit into an array of a type."""


def collect(directories: Sequence[str | Path], path: str | Path) -> tuple[int, int, list[str]]:
    """Writes one row per record of ``metrics.jsonl``, with the settings of its run.

    Torn lines, and missing or foreign files or folders, are left out, with a warning.

    Args:
        directories: the folders of sweeps, or of single runs, also of sweeps that are running.
        path: the file to write: CSV if its name ends with ``.csv``, else Parquet.

    Returns:
        The number of records, the number of runs, and warnings about omissions.

    Raises:
        AnalysisError: there is nothing to collect, or the file cannot be written.
    """
    warnings: list[str] = []
    runs: list[dict[str, Any]] = []
    records = _Records(warnings)
    for directory in directories:
        for sweep, folder, config in _find(Path(directory), warnings):
            status = read_outcome(folder, warnings)["status"]
            runs.append({"sweep": sweep, "run": folder.name, "status": status, "config": config})
            records.add(RunDirectory(folder).metrics)
    if not runs:
        raise AnalysisError("\n".join(["there is no run to collect", *warnings]))
    table = _table(runs, *records.all_records())
    path = Path(path)
    if path.suffix.lower() == ".csv":
        write_file(path, lambda file: pc.write_csv(_without_lists(table), file))
    else:
        write_file(path, lambda file: pq.write_table(table, file, compression="zstd"))
    return table.num_rows, len(runs), warnings


def _without_lists(table: pa.Table) -> pa.Table:
    """Returns the table with JSON in place of lists, which CSV does not have."""
    for place, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = [None if value is None else json.dumps(value) for value in table[field.name].to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table


def _find(directory: Path, warnings: list[str]) -> Iterable[tuple[str, Path, dict[str, Any]]]:
    """Yields the runs in a folder: the name of the sweep, the folder and the config of each."""
    marker, runs = directory / "sweep.json", directory / "runs"
    if not marker.exists():
        content = read_json(RunDirectory(directory).config, warnings)
        if (config := config_in(content)) is not None:
            yield "", directory, config
        elif content is None:
            warnings.append(f"{directory}: is not the folder of a sweep or a run; left out")
        return
    plan = read_json(marker, warnings)
    try:
        name, planned = str(plan["name"]), planned_runs(plan)
    except (KeyError, TypeError, ValueError, AttributeError):
        warnings.append(f"{marker}: is not the plan of a sweep; left out")
        return
    warnings += unplanned_runs(runs, planned)
    for identity, config in planned.items():
        yield name, runs / identity, config


class _Records:
    """Reads the records of runs into ``_RECORD_COLUMNS`` and further columns; many files are parsed at a time."""

    def __init__(self, warnings: list[str]) -> None:
        self._warnings = warnings
        self._tables: list[pa.Table] = []
        self._sizes: list[int] = []  # records of each run
        self._waiting: list[tuple[Path, bytes]] = []
        self._bytes = 0

    def add(self, path: Path) -> None:
        """Reads the file of the next run."""
        content = read_log(path, self._warnings)
        self._waiting.append((path, content))
        self._bytes += len(content)
        if self._bytes > _AT_ONCE:
            self._parse_waiting()

    def all_records(self) -> tuple[pa.Table, list[int]]:
        """Returns all records, and the number of records of each run."""
        self._parse_waiting()
        return pa.concat_tables(self._tables, promote_options="default"), self._sizes

    def _parse_waiting(self) -> None:
        files, self._waiting, self._bytes = self._waiting, [], 0
        contents = [content for _, content in files]
        sizes = [content.count(b"\n") for content in contents]
        if all(not content or content.endswith(b"\n") for content in contents):
            table = _read_whole(b"".join(contents))
            if table is not None and table.num_rows == sum(sizes):
                self._tables.append(table)
                self._sizes += sizes
                return
        for path, content in files:  # one by one, since one is damaged, or unlike the others
            table = _read_whole(content)
            table = _read_lines(path, content, self._warnings) if table is None else table
            self._tables.append(table)
            self._sizes.append(table.num_rows)


def _read_whole(content: bytes) -> pa.Table | None:
    """Reads undamaged records without mappings, which are nearly all, several times faster; None for others."""
    if _NESTED.search(content):  # Arrow's parser would recurse to any depth, and crash
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(content),
            pj.ReadOptions(use_threads=False, block_size=len(content) + 1),
            pj.ParseOptions(explicit_schema=pa.schema(list(_RECORD_COLUMNS.items()))),
        )
    except pa.ArrowInvalid:
        return None
    further = table.schema.names[len(_RECORD_COLUMNS) :]
    kinds = (table.schema.field(name).type for name in further)
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind) for kind in kinds):
        return None
    if table["step"].null_count:
        return None
    return table.cast(pa.schema([*_RECORD_COLUMNS.items(), *((name, pa.float64()) for name in further)]))


def _read_lines(path: Path, content: bytes, warnings: list[str]) -> pa.Table:
    """Reads the records line by line, and skips damaged ones."""
    rows = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = parse_json(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise ValueError  # noqa: TRY301  it is no record
            rows.append(_without_mappings(record))
        except ValueError:
            warnings.append(damaged_line_warning(path, number, len(lines)))
    columns = {}
    further = sorted(set().union(*rows) - _RECORD_COLUMNS.keys())
    for name, kind in (_RECORD_COLUMNS | dict.fromkeys(further, pa.float64())).items():
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values, kind)
        except _UNFIT:
            warnings.append(f"{path}: {name} has other values than {kind}; these are left out")
            columns[name] = pa.array([_fitting(value, kind) for value in values], kind)
    return pa.table(columns)


def _without_mappings(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record without mappings: the mappings of numerics records, by role, become one text.

    A program's number with the name of a column of another type gets a trailing ``_``.
    """
    if record.get("kind") == "log":
        return {f"{name}_" if name in _NO_NUMBERS else name: value for name, value in record.items()}
    if record.get("kind") != "numerics":
        return record
    nested = {key: value for key, value in record.items() if isinstance(value, dict)}
    return {key: value for key, value in record.items() if key not in nested} | {
        "numerics": json.dumps(nested, sort_keys=True)
    }


def _fitting(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.array([value], kind)
    except _UNFIT:
        return None
    return value


def _table(runs: list[dict[str, Any]], all_records: pa.Table, sizes: list[int]) -> pa.Table:
    """Adds the columns of runs to their records; ``sizes`` has the number of records of each run."""
    run_of = pa.array(np.repeat(np.arange(len(runs), dtype=np.int32), sizes))
    columns: dict[str, pa.Array] = {
        name: _repeat(pa.array([run[name] for run in runs], pa.string()), run_of) for name in _RUN_COLUMNS
    }
    further = sorted(set(all_records.column_names) - _RECORD_COLUMNS.keys())
    columns |= {name: all_records[name] for name in (*_RECORD_COLUMNS, *further)}
    for key in sorted(set().union(*(run["config"] for run in runs))):
        columns[_CONFIG + key] = _repeat(_settings([run["config"].get(key) for run in runs]), run_of)
    return pa.table(columns)


def _repeat(values: pa.Array, run_of: pa.Array) -> pa.Array:
    """Returns the values of runs, repeated for each of their records."""
    is_constant = len(values.unique()) == 1  # as most settings are
    return pa.repeat(values[0], len(run_of)) if is_constant else values.take(run_of)


def _settings(values: list[Any]) -> pa.Array:
    """Makes the array of a setting's values by run: truth values, integers, numbers, or else text."""
    kinds = {type(value) for value in values if value is not None}
    for allowed, kind in (({bool}, pa.bool_()), ({int}, pa.int64()), ({int, float}, pa.float64())):
        if kinds and kinds <= allowed:
            with suppress(*_UNFIT):  # integers with too many bits
                return pa.array(values, kind)
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pa.array(texts, pa.string())
