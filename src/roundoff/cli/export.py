"""The command that takes a policy out of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundoff.cli.options import AllowImport, allowed_imports, say


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    *,
    output: Annotated[Path, typer.Option("--out", "--output", "-o", help="The file to write: *.onnx, or *.h for C.")],
    fmt: Annotated[
        str, typer.Option("--format", help="The format of the weights: fp32, int8, int8_ax0, int4, ...")
    ] = "int8",
    allow_import: AllowImport = None,
) -> None:
    """Write the policy of a finished run as a file that acts without roundoff: an ONNX graph, or a C header."""
    from roundoff.extras import from_extras

    with from_extras():
        from roundoff.agents import export_policy

    say(export_policy(run, fmt, output, allow_imports=allowed_imports(allow_import, None)))
