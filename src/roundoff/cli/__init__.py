"""The command ``roundoff``; its parts by subject stand beside this file.

Heavy imports stand inside the commands: PyTorch takes seconds to import, and ``--help`` must not.
"""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated

import typer

from roundoff import __version__
from roundoff.cli.costs import allocate, cost, pareto
from roundoff.cli.doctor import doctor
from roundoff.cli.export import export
from roundoff.cli.formats import formats, verify
from roundoff.cli.options import closed_pipe, say
from roundoff.cli.programs import AS_PYTHON, run
from roundoff.cli.quantize import quantize
from roundoff.cli.results import against, collect, compare, plot, report
from roundoff.cli.runs import blame, train
from roundoff.cli.sweeps import presets, reproduce, schema, status, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="roundoff",
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
    """The first sentence of a command's help, which lists would cut off."""
    return (getdoc(command) or "").partition("\n\n")[0].replace("\n", " ")


app.command(context_settings=AS_PYTHON, short_help=_whole_sentence(run))(run)
# In the order in which --help lists them: simulate a program, sweep, read results, agents, tools.
for _command in (
    blame, formats, verify, sweep, status, report, plot, against, compare, collect, cost, pareto, allocate, presets,
    reproduce, train, quantize, export, doctor, schema,
):  # fmt: skip
    app.command(short_help=_whole_sentence(_command))(_command)


def main() -> None:
    """Runs the command; mistakes of the user's end it with one message and status 2."""
    # Python would collect garbage several times at its end, among all that was imported. Once takes half a second less.
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
    except Exception as error:  # noqa: BLE001  told, whatever it is
        from roundoff.errors import RoundoffError
        from roundoff.extras import missing

        if isinstance(error, ModuleNotFoundError):
            error = missing(error.name or "") or error
        if not isinstance(error, RoundoffError):  # a mistake of ours; its text may be a file's
            say(traceback.format_exc(), error=True)
            sys.exit(1)
        say(f"roundoff: {error}", error=True)
        sys.exit(2)
