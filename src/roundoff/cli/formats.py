"""The commands about number formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundoff.cli.options import AllowImport, AsJson, import_allowed, say, say_json

KEPT = Path(__file__).with_name("formats.txt")
"""The output of ``format_table()``; a test compares the two."""


def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Formats to show [default: a selection].")] = None,
    *,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw their spacing against magnitude, and their numbers on a line.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to draw into, with --plot.")] = Path("formats.png"),
    vectors: Annotated[
        Path | None, typer.Option(help="Write golden vectors, encoded inputs and outputs, for $readmemh.")
    ] = None,
    source: Annotated[str, typer.Option("--input", help="Format of the inputs, with --vectors.")] = "fp32",
    rounding: Annotated[str, typer.Option(help="Rounding mode, with --vectors.")] = "nearest-even",
    random_bits: Annotated[int, typer.Option(help="Random bits of an input, with --rounding stochastic.")] = 32,
    as_json: AsJson = False,
    allow_import: AllowImport = None,
) -> None:
    """Print the range and precision of number formats: a table, or every property of one."""
    if not vectors and (source, rounding, random_bits) != ("fp32", "nearest-even", 32):
        raise typer.BadParameter("--input, --rounding and --random-bits are for --vectors only")
    # The default table is stored, since PyTorch takes seconds to import
    if not any((names, plot, vectors, as_json, allow_import)):
        say(KEPT.read_text(encoding="utf-8").rstrip("\n"))
        return
    import_allowed(allow_import)
    from roundoff.formats import describe, facts, format_table, parsed

    if bool(plot) + bool(vectors) + as_json > 1:
        raise typer.BadParameter("--plot draws, --vectors writes a file, and --json prints; take one of them")
    if vectors:
        from roundoff.files import write_text
        from roundoff.formats import golden_vectors

        if not names or len(names) != 1:
            raise typer.BadParameter("name one format, as in: roundoff formats e4m3 --vectors e4m3.hex")
        write_text(vectors, golden_vectors(names[0], source, rounding, random_bits))
        say(vectors)
    elif plot:
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
