"""The commands about number formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundoff.cli.options import AllowImport, AsJson, import_allowed, say, say_json

KEPT = Path(__file__).with_name("formats.txt")
"""What ``format_table()`` gives; a test compares the two."""


def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Formats to show [default: a selection].")] = None,
    *,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw their spacing against magnitude, and their numbers on a line.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to draw into, with --plot.")] = Path("formats.png"),
    as_json: AsJson = False,
    allow_import: AllowImport = None,
) -> None:
    """Print what number formats can hold: a table, or everything about one."""
    if not (names or plot or as_json or allow_import):  # the usual table is kept, since PyTorch takes seconds to import
        say(KEPT.read_text(encoding="utf-8").rstrip("\n"))
        return
    import_allowed(allow_import)
    from roundoff.formats import describe, facts, format_table, parsed

    if plot and as_json:
        raise typer.BadParameter("--plot draws and --json prints; leave one of them out")
    if plot:
        from roundoff.formats import plot_formats

        if not names:
            raise typer.BadParameter("name the formats to draw, as in: roundoff formats --plot e5m10 bf16 posit16")
        say(plot_formats(names, out))
    elif as_json:
        say_json([facts(fmt) for fmt in parsed(names or None)])
    elif names and len(names) == 1:
        say(describe(names[0]))
    else:
        say(format_table(names or None))


def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Formats to verify [default: some of every kind].")] = None,
    *,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer numbers: seconds instead of minutes.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Compare rounding on this machine with exact arithmetic, in every mode, and print a certificate."""
    import_allowed(allow_import)
    from roundoff.formats import verify as verify_formats

    report = verify_formats(names or None, device, quick=quick)
    say(report)
    if not report.passed:
        raise typer.Exit(1)
