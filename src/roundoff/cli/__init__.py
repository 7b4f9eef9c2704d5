"""Defines the command ``roundoff``; the other modules of this folder have its commands by subject.

Heavy imports are inside the commands: PyTorch takes seconds to import, and ``--help`` must not.
"""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from inspect import getdoc
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from roundoff import __version__
from roundoff.cli.costs import allocate, cost, pareto
from roundoff.cli.doctor import doctor
from roundoff.cli.formats import formats, verify
from roundoff.cli.options import closed_pipe, say
from roundoff.cli.programs import AS_PYTHON, diff, digits, run
from roundoff.cli.quantize import export, quantize
from roundoff.cli.results import against, collect, compare, plot, report
from roundoff.cli.runs import blame, train
from roundoff.cli.sweeps import presets, reproduce, schema, status, sweep

if TYPE_CHECKING:
    from collections.abc import Callable


class _InPanels(TyperGroup):
    """Lists the commands by panel, which typer does only with rich; importing rich takes too long for ``--help``."""

    def format_commands(self, _: Any, formatter: Any) -> None:
        for panel, commands in _PANELS.items():
            with formatter.section(panel):
                names = [command.__name__ for command in commands]
                formatter.write_dl([(name, self.commands[name].get_short_help_str()) for name in names])


class _WithExamples(TyperCommand):
    """Writes the examples below the help of a command without wrapping them, unlike other texts."""

    def format_epilog(self, _: Any, formatter: Any) -> None:
        formatter.write(f"\n{self.epilog}\n")


app = typer.Typer(
    name="roundoff",
    cls=_InPanels,
    help="Simulate number formats in PyTorch programs: how few bits can this training run with, and what breaks first?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(value: bool) -> None:
    if value:
        say(f"roundoff {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _whole_sentence(command: Callable[..., None]) -> str:
    """Returns the first sentence of a command's help, which lists would cut off."""
    return (getdoc(command) or "").partition("\n\n")[0].replace("\n", " ")


_PANELS = {
    "Simulate": (run, blame, digits, diff, formats, verify),
    "Sweep": (sweep, status, report, plot, against, compare, collect, cost, pareto, allocate, presets, reproduce),
    "Agents": (train, quantize, export),
    "Tools": (doctor, schema),
}  # fmt: skip
_EXAMPLES = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").splitlines()
for _command in chain.from_iterable(_PANELS.values()):
    app.command(
        cls=_WithExamples,
        short_help=_whole_sentence(_command),
        epilog="\n    ".join(["Examples:\n", *(line for line in _EXAMPLES if line.split()[1] == _command.__name__)]),
        context_settings=AS_PYTHON if _command in (run, digits) else None,
    )(_command)


def main() -> None:
    """Runs the command; a user's mistake ends it with one message and status 2."""
    # At its end, Python collects garbage several times among all imported objects. Once takes half a second less.
    atexit.register(gc.freeze)
    atexit.register(gc.collect)  # first
    try:
        try:
            app()
        finally:
            with closed_pipe(sys.stdout):
                sys.stdout.flush()
    except OSError as error:
        say(f"roundoff: {error.filename or 'input/output'}: {error.strerror or error}", error=True)
        sys.exit(2)
    except Exception as error:  # noqa: BLE001  reports any error
        from roundoff.errors import RoundoffError
        from roundoff.extras import missing

        if isinstance(error, ModuleNotFoundError):
            error = missing(error.name or "") or error
        if not isinstance(error, RoundoffError):  # a bug; its text may come from a file
            say(traceback.format_exc(), error=True)
            sys.exit(1)
        say(f"roundoff: {error}", error=True)
        sys.exit(2)
