"""The significant digits of a script: a process for each sample, and the numbers that it prints and logs.

Run as a program, it runs one sample, as its :class:`SampleOrder` says; see :mod:`..scripts.processes`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundoff.current_run import part_of
from roundoff.files import read_json, write_json

from ..policy.policy import Policy
from ..scripts.processes import LoggedValues, Order, ScriptProcesses, received
from ..scripts.running import Script, ScriptError, end_as_python, run_as_main, show_as_python
from .digits import Digits, DigitsReport, checked_randomness, in_words, of_modules, sampled
from .rounding import Randomness

_LAST_LINES = 5
_SEED = "{seed}"
# Also numbers with a unit behind them (12.3ms); a group of three digits after a comma only before a decimal point.
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+\.\d*|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b", re.IGNORECASE
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class SampleOrder(Order):
    """The instructions for a sample, which leaves its values in a folder."""

    randomness: str | None
    seed: int | None  # type: ignore[assignment]  # None: no random rounding


def script_digits(
    script: Script,
    samples: int = 8,
    *,
    policy: Policy | None = None,
    randomness: Randomness | str = Randomness.RESULTS,
    seed: int = 0,
    seeds: int = 0,
    threads: int | None = None,
    imports: Sequence[str] = (),
    on_sample: Callable[[str], None] = lambda _: None,
) -> DigitsReport:
    """Counts the significant digits of the numbers that a script prints and logs; see :func:`.digits.digits`.

    The script runs unchanged, in a process for each sample; it seeds its generators itself. ``on_sample`` receives a
    line after each. With ``seeds``, the script also runs without random rounding for the seeds 0, 1, ..., which replace
    ``{seed}`` in its arguments; samples have the seed 0.

    Raises:
        FormatError: a setting does not exist.
        ScriptError: no such script, no argument has a place for seeds, or a run ended with another exit status than 0.
    """
    kind = checked_randomness(randomness, samples, seeds, has_format=policy is not None)
    if not script.is_module:
        _ = script.file  # raises ScriptError if it does not exist
    if seeds and not any(_SEED in argument for argument in script.arguments):
        raise ScriptError(f"seeds need a place in the arguments of the script, such as {script.target} --seed {_SEED}")
    outputs, logged, elements, failed = [], [], [], {}
    with tempfile.TemporaryDirectory(prefix="roundoff-digits-") as folder, ScriptProcesses(SampleOrder) as processes:
        values, arrays_file = Path(folder) / "values.json", Path(folder) / "kept.npz"
        for number in range(samples + seeds):
            values.unlink(missing_ok=True)
            order = SampleOrder(
                policy=None if policy is None else policy.as_json(), randomness=kind,
                seed=(seed << 20) + number if number < samples else None,
                threads=threads, imports=list(imports), is_module=script.is_module, outcome=folder,
            )  # fmt: skip
            number_of_seed = str(max(number - samples, 0))
            arguments = script.arguments
            if seeds:
                arguments = tuple(argument.replace(_SEED, number_of_seed) for argument in arguments)
            status, output, errors = processes.run(order, replace(script, arguments=arguments))
            if status:
                last = "".join(f"\n  {line}" for line in errors.splitlines()[-_LAST_LINES:])
                end = f"exit status {status}" if status > 0 else f"signal {-status}"
                raise ScriptError(f"a sample of {script.target} ended with {end}{last}")
            if not values.exists():
                raise ScriptError(f"a sample of {script.target} ended before it left its values, as by os._exit")
            outputs.append([_COLOUR.sub("", line) for line in output.splitlines()])
            record = read_json(values)
            logged.append({name: float(value) for name, value in record["logged"].items()})
            failed.update(record["failed"])
            with np.load(arrays_file, allow_pickle=False) as arrays:
                elements.append({(*key[:3], int(key[3])): arrays[f"a{n}"] for n, key in enumerate(record["keys"])})
            on_sample(f"sample {number + 1} of {samples}" if number < samples else f"seed {number_of_seed} of {seeds}")
    lines, rows = _digits_of_outputs(outputs[:samples], logged[:samples])
    results = tuple(row for row in rows if row.name in logged[0] or row.least != np.inf)  # not constants of the output
    rows_of_seeds = _digits_of_outputs(outputs[samples:], logged[samples:])[1] if seeds else []
    over_seeds = {row.name: row.digits for row in rows_of_seeds}
    return DigitsReport(samples, results, of_modules(elements[:samples]), failed, tuple(lines), over_seeds)


def _digits_of_outputs(
    outputs: Sequence[Sequence[str]], logged: Sequence[Mapping[str, float]]
) -> tuple[list[str], list[Digits]]:
    """Returns the first output, with the digits of its numbers, and the digits of all printed and logged numbers."""
    lines, rows = [], []
    for number, line in enumerate(outputs[0], 1):
        same_line = [output[number - 1] if number <= len(output) else "" for output in outputs]
        if len({re.sub(r"\s", "", _NUMBER.sub("#", text)) for text in same_line}) > 1:
            lines.append(f"{line}  [the text differs between samples]")
            continue
        matches = [list(_NUMBER.finditer(text)) for text in same_line]
        marked, end = "", 0
        for position, group in enumerate(zip(*matches, strict=True), 1):
            values = [float(match[0].replace(",", "")) for match in group]
            row = Digits.of(f"line {number}, number {position}: {line[end : group[0].start()].strip()[-30:]}", values)
            marked += line[end : group[0].end()] + (f" [{in_words(row.digits)}]" if row.least != np.inf else "")
            end = group[0].end()
            rows.append(row)
        lines.append(marked + line[end:])
    counts = sorted({len(output) for output in outputs})
    if len(counts) > 1:
        lines.append(f"[the samples printed {counts[0]} to {counts[-1]} lines; further lines are not compared]")
    names = [name for name in logged[0] if all(name in values for values in logged)]
    return lines, rows + [Digits.of(name, [values[name] for values in logged]) for name in names]


def main() -> None:
    """Runs one sample, and leaves its values."""
    order, script = received(SampleOrder)
    policy = None if order.policy is None else Policy.parse(order.policy)
    randomness = None if order.randomness is None else Randomness(order.randomness)
    simulation, watcher = sampled(policy, randomness, order.seed)
    logged = LoggedValues(each_step=True)
    with part_of(logged):
        error = run_as_main(script, simulation)
    folder = Path(order.outcome)
    arrays: dict[str, Any] = {f"a{n}": values for n, values in enumerate(watcher.elements.values())}
    np.savez(folder / "kept.npz", **arrays)
    texts = {name: repr(value) for name, value in logged.values.items()}
    write_json(folder / "values.json", {"logged": texts, "failed": watcher.failed, "keys": [*watcher.elements]})
    show_as_python(error)
    end_as_python(error)
