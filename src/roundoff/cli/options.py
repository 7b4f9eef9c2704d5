"""Shared parts of commands: options, comma-separated lists, warnings and interruption."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from roundoff.own_modules import import_all, look_in
from roundoff.printable import printable
from roundoff.processes import let_go, terminals

if TYPE_CHECKING:
    from pandas import DataFrame

    from roundoff.sweeps import Summary

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings that replace the file's settings; docs/keys.md lists them."
    ),
]
Compiled = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compile the updates [default: if it saves time].")
]
Population = Annotated[
    int, typer.Option(min=1, help="The maximum number of runs that a worker trains at once, with one compiled program.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="The number of runs at a time [default: one per core].")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the runs and an estimate of their time, and write nothing.")
]
NoEstimate = Annotated[bool, typer.Option("--no-estimate", help="Do not estimate the time in a dry run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
Margin = Annotated[
    float,
    typer.Option(min=0, max=1, help="The largest difference that counts as equivalent, relative to fp32's mean score."),
]
Reference = Annotated[
    list[str] | None,
    typer.Option(
        "--reference", metavar="KEY=VALUE", help="Compare with runs of this setting, not format=fp32; may be repeated."
    ),
]
ResultsFolder = Annotated[
    Path | None, typer.Option("--out", "-o", help="The folder of the results [default: results/NAME].")
]
FileTypes = Annotated[str, typer.Option("--type", help="The types of figure files: png, svg, pdf, with commas.")]


AllowImport = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="Import this module, for formats that it registers, tasks gym:MODULE:ID and algorithms MODULE:CLASS; may"
        " be repeated.",
    ),
]


def import_allowed(modules: list[str] | None, file: Path | None = None, option: str = "'--allow-import'") -> None:
    """Imports modules, so that the formats and algorithms that they have are known by their names.

    Args:
        modules: Modules named by the user.
        file: a file in the folder to search first; the current folder is also searched.
        option: the option or key that names them, for messages.
    """
    if not modules:
        return
    _search_folder_of(file)
    try:
        import_all(modules)
    except ImportError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def allowed_imports(modules: list[str] | None, arguments: list[str] | None, file: Path | None = None) -> list[str]:
    """Returns the modules that the user has allowed, or named in ``key=value`` arguments.

    Imports them, except for modules of tasks, which are imported when the task is made.
    """
    from roundoff.agents import modules_of_tasks_in
    from roundoff.agents.config import modules_of_algorithms_in

    algorithms = [module for argument in arguments or () for module in modules_of_algorithms_in(argument)]
    task_modules = [module for argument in arguments or () for module in modules_of_tasks_in(argument)]
    import_allowed(modules, file)
    import_allowed(algorithms, file, "'algorithm'")
    if task_modules:
        _search_folder_of(file)
    return [*(modules or ()), *task_modules]


def _search_folder_of(file: Path | None) -> None:
    look_in([*([file.parent] if file else []), "."])


def parts(text: str) -> list[str]:
    """Splits a list with commas into its names."""
    return [part.strip() for part in text.split(",") if part.strip()]


def settings_of(reference: list[str] | None) -> dict[str, str]:
    """Parses the settings of ``--reference``, by key."""
    pairs = [argument.partition("=") for argument in reference or ()]
    for argument, (key, sign, value) in zip(reference or (), pairs, strict=True):
        if not (key and sign and value):
            raise typer.BadParameter(f"--reference is KEY=VALUE, such as actors.format=fp32, got {argument!r}")
    return {key: value for key, _, value in pairs}


def say(text: object, *, error: bool = False) -> None:
    """Prints lines without control sequences, since much of the text comes from files of unknown origin."""
    stream = sys.stderr if error else sys.stdout
    with closed_pipe(stream):
        print(printable(str(text), lines=True), file=stream, flush=error)


def say_json(value: Any) -> None:
    """Prints a value as JSON for scripts, in ASCII, without control characters.

    Raises:
        ValueError: a number is not finite; JSON lacks such numbers.
    """
    with closed_pipe(sys.stdout):
        print(json.dumps(value, indent=1, allow_nan=False).replace("\x7f", "\\u007f"))  # DEL, which JSON allows


def say_table(table: DataFrame, text: str, *, as_json: bool) -> None:
    """Prints a table for people, or its rows for scripts, with null for missing values."""
    if as_json:
        say_json(table.astype(object).where(table.notna(), None).to_dict("records"))
    else:
        say(text)


@contextmanager
def closed_pipe(stream: TextIO) -> Iterator[None]:
    """Ignores in a block that nobody reads a stream any more, as with ``| head``; the command continues."""
    try:
        yield
    except BrokenPipeError:  # Python would otherwise fail again when it flushes the stream at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_warnings(warnings: Iterable[str]) -> None:
    """Prints warnings: problems that do not stop the command."""
    for warning in warnings:
        say(f"roundoff: warning: {warning}", error=True)


def say_outcome(summary: Summary, findings: Sequence[object], directory: Path) -> None:
    """Prints the findings and the outcome of a sweep; exits with 1 if runs failed."""
    for finding in findings:
        say(finding)
    ran = summary.done + summary.crashed + summary.failed
    say(f"{directory}: {summary.done} done, {summary.crashed} crashed, {summary.failed} failed of {ran} runs")
    if summary.failed:
        say(f"failed runs are tried again by the same command; see failed.json and {directory / 'logs'}", error=True)
        raise typer.Exit(1)


class stoppable:  # noqa: N801  used as a statement
    """Ends the block on Ctrl-C, SIGTERM or SIGHUP with a hint and the usual status, 130, 143 or 129.

    SIGHUP, sent when a terminal closes, stays ignored if it is ignored already, as with ``nohup``.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._signal = signal.SIGINT
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._terminals = terminals()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, _frame: FrameType | None) -> NoReturn:
        self._signal = signal.Signals(number)
        if number == signal.SIGHUP:  # the terminal is closed, and printing the hint would fail
            let_go(self._terminals)
        raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt):
            say(f"roundoff: stopped; {self._hint}", error=True)
            raise SystemExit(128 + self._signal) from None  # the status that shells give to a signal
