"""The commands that quantize policies after training, and export them from their runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from roundoff.cli.options import AllowImport, allowed_imports, print_warnings, say, stoppable


def quantize(
    directory: Annotated[Path, typer.Argument(help="Folder of a finished run, or of a sweep.")],
    *,
    into: Annotated[
        list[str], typer.Option("--in", help="A quantization: int8, quarl4, fp16, mxfp4, ...; may be repeated.")
    ],
    episodes: Annotated[
        int | None, typer.Option(min=1, help="The number of episodes of each evaluation [default: the run's].")
    ] = None,
    calibrate: Annotated[
        int, typer.Option(min=0, help="Fix the scales of activations by their ranges in this many other episodes.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write [default: DIRECTORY/quantized.csv].")
    ] = None,
    allow_import: AllowImport = None,
) -> None:
    """Quantize the policies of finished runs, and write the loss in return, in the same episodes, to quantized.csv."""
    import pandas as pd

    from roundoff.agents import Quantization
    from roundoff.agents import quantize as quantize_run
    from roundoff.analysis import markdown, quantized
    from roundoff.files import make_directory, write_bytes

    imports = allowed_imports(allow_import, None)
    quantizations = list(dict.fromkeys(map(Quantization.parse, into)))
    rows: list[dict[str, Any]] = []
    written = out or directory / "quantized.csv"
    if out:
        make_directory(out.parent)
    with stoppable("nothing was written; the same command starts from the beginning"):
        for name, (folder, condition) in _runs(directory).items():
            result = quantize_run(
                folder, quantizations, episodes=episodes, calibrate=calibrate,
                allow_imports=imports,
            )  # fmt: skip
            config = result.config
            columns: dict[str, Any] = {
                "run": name,
                "algorithm": config.algorithm,
                "task": config.task,
                "format": config.format,
                "condition": condition,
            }
            columns |= {"seed": config.seed, "calibrated": calibrate}
            for quantization, evaluation in result.quantized.items():
                numbers = quantized.of_run(result.original.returns, evaluation.returns, crashed=evaluation.crashed)
                rows.append({**columns, "in": quantization, **numbers})
    write_bytes(written, pd.DataFrame(rows).to_csv(index=False).encode())
    say(markdown.table(quantized.in_words(quantized.over_runs(rows))))
    say(written)


def _runs(directory: Path) -> Mapping[str, tuple[Path, str]]:
    """Finds the folders of the runs to quantize (one run, or the finished runs of a sweep), and their conditions."""
    from roundoff.analysis import AnalysisError, read_experiment, records

    if (directory / "config.json").exists() or not directory.is_dir() or not any(directory.glob("*/")):
        return {directory.resolve().name: (directory, "")}
    experiment = read_experiment(directory)
    print_warnings(experiment.said)
    done = records(experiment.runs[experiment.runs["status"] == "done"])
    if not done:
        raise AnalysisError(f"{directory}: none of its {len(experiment.runs)} runs is done, so there are no policies")
    if len(done) < len(experiment.runs):
        print_warnings([f"{directory}: {len(experiment.runs) - len(done)} runs are not done, and left out"])
    label = experiment.conditions.label if experiment.conditions.keys else lambda _: ""
    return {run["id"]: (experiment.folders[run["id"]], label(run)) for run in done}


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
