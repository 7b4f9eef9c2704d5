"""Make the pictures of docs/ from kept runs: figures, the first screen of a report, and a sweep that runs.

    python -m docs.pictures figures   # the figures of docs/figures/ with kept runs in docs/data/
    python -m docs.pictures report    # docs/figures/report.png, by Chromium
    python -m docs.pictures status    # docs/figures/status.svg: trains two runs for some minutes

The folders of the sweeps are temporary. ``status`` keeps all but a few runs of a sweep, and trains these. The picture
has the word "machine" in place of the machine's name.
"""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
from bench import horizon, kept_runs, recursions
from PIL import Image
from rich.console import Console
from tests.browser import Browser

from roundoff.analysis import plot, report
from roundoff.sweeps import find_sweep, plan_file, read_status
from roundoff.sweeps.display.status_table import _table
from roundoff.sweeps.folder.directory import SweepDirectory

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures"
WIDTHS = ["grid={format: [fp32, e5m10, e5m8, e5m6, e5m5, e5m4, e5m3, e5m2], seed: 0..15}"]
FIVE = ["seed=[0, 1, 2, 3, 4]"]
TWO_TASKS = (
    "zip={task: [cartpole_swingup, cartpole_balance], action_repeat: [8, 8], steps: [72000, 56000],"
    " eval_every: [12000, 8000], checkpoint_every: [24000, 24000]}"
)
# From scores: the sweep, its overrides, and the figure of ``roundoff plot``, by the figure in docs/.
OF_SCORES = {
    "degradation": ("significand-quick", WIDTHS, "degradation"),
    "pareto-significand": ("significand-quick", WIDTHS, "pareto-bytes"),
    "baselines-quick": ("baselines-quick", FIVE, "comparison"),
    "leave-one-out-quick": ("leave-one-out-quick", FIVE, "comparison"),
    "eight-bits": ("eight-bits-overnight", [TWO_TASKS], "comparison"),
}
# From whole runs: the files of kept runs, by the figure in docs/, which is called like its sweep; of another sweep's
# file only one task.
OF_RUNS = {
    "paper-256": ["paper-256"],
    "paper-256-e4m3": ["paper-256", "paper-256-e4m3", "exact-errors-256"],
    "long-128": ["long-128"],
}
NO_PRESETS = {"long-128": "bench/long-128.yaml"}
WIDTH, HEIGHT = 1200, 740  # of the report's window, in pixels
COLUMNS, LINES = 138, 14  # of the terminal
MISSING = 4  # runs


def of_scores(name: str, overrides: list[str], folder: Path) -> Path:
    """A sweep's folder with the kept scores of docs/data/NAME.csv, and the counted costs of ``significand-quick``."""
    plan = plan_file(find_sweep(name), overrides)
    sweep = SweepDirectory(folder / name)
    sweep.claim(plan)
    (folder / name / "runs").mkdir()
    runs = {(run.config.task, run.case, run.config.format, run.config.seed): run for run in plan.runs}
    kept_runs.lay_scores(DOCS / "data" / f"{name}.csv", folder / "scores")
    for kept in (folder / "scores").iterdir():
        config = json.loads((kept / "config.json").read_text(encoding="utf-8"))["config"]
        place = config["task"], config.get("case", ""), config["format"], config["seed"]
        kept.rename(sweep.run_path(runs[place]))
    if name == "significand-quick":
        counts = pd.read_csv(DOCS / "data" / "costs-of-significand.csv").to_dict("records")
        plain = {"macs": 0, "uncounted": [], "models": {}, "bytes_written": 0}
        entries = []
        for row in counts:
            of_format = [run.id for run in plan.runs if run.config.format == row["format"]]
            entries.append({**row, **plain, "bytes_read": row["bytes_moved"], "runs": of_format})
        (folder / name / "costs.json").write_text(json.dumps({"costs": entries}), encoding="utf-8")
    return folder / name


def figures(folder: Path) -> Path:
    """The figures with kept runs."""
    for name, (sweep, overrides, figure) in OF_SCORES.items():
        written, _ = plot(of_scores(sweep, overrides, folder / name), types=["png"], figures=[figure])
        written[-1].replace(FIGURES / f"{name}.png")
    for name, files in OF_RUNS.items():
        SweepDirectory(folder / name).claim(plan_file(find_sweep(NO_PRESETS.get(name, name)), ["device=cpu"]))
        for file in files:
            lines = (DOCS / "data" / f"{file}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines[1:] if name == file or '"run": "cartpole_swingup-' in line]
            (folder / "kept.jsonl").write_text("".join([lines[0], *kept]), encoding="utf-8")
            kept_runs.lay(folder / "kept.jsonl", folder / name)
        written, _ = plot(folder / name, types=["png"], figures=["curves"])
        written[-1].replace(FIGURES / f"{name}.png")
    for name in ("horizon", "horizon-sac"):
        horizon.draw(pd.read_csv(FIGURES / f"{name}.csv", dtype=str).to_dict("records"), FIGURES / f"{name}.png")
    recursions.draw(pd.read_csv(FIGURES / "recursions.csv").to_dict("records"))
    return FIGURES


def first_screen(folder: Path) -> Path:
    """The first screen of the report of the kept scores of ``significand-quick``."""
    page, _ = report(of_scores("significand-quick", WIDTHS, folder))
    written = FIGURES / "report.png"
    with Browser(folder / "profile") as browser:
        browser.size(WIDTH, HEIGHT)
        browser.open(page.as_uri())
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        taken = base64.b64decode(browser.send("Page.captureScreenshot", clip=clip)["data"])
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(256, kmeans=2).save(written, optimize=True)
    return written


def running_sweep(folder: Path) -> Path:
    """The table of ``roundoff status --watch`` when the first evaluation of two runs is done."""
    name, sweep = "next-fix-overnight", folder / "sweep"
    plan = plan_file(find_sweep(name))
    SweepDirectory(sweep).claim(plan)
    kept = (DOCS / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "kept.jsonl").write_text("".join(kept[:-MISSING]), encoding="utf-8")
    kept_runs.lay(folder / "kept.jsonl", sweep)
    command = [sys.executable, "-m", "roundoff", "sweep", name, "--out", str(sweep)]
    process = subprocess.Popen([*command, "--workers", "2", "--population", "1", "--no-compile"])  # noqa: S603
    try:
        while sum("return" in (run.progress or {}) for run in read_status(sweep).runs if run.state == "running") < 2:
            assert process.poll() is None
            time.sleep(5)
        console = Console(record=True, width=COLUMNS, height=LINES, file=io.StringIO())
        status = read_status(sweep)
        runs = [run._replace(reason=run.reason.replace(socket.gethostname(), "machine")) for run in status.runs]
        console.print(_table(replace(status, runs=runs), LINES))
    finally:
        process.terminate()
        process.wait()
    drawn = console.export_svg(title=f"roundoff status results/{name} --watch", unique_id="status")
    written = FIGURES / "status.svg"
    written.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")
    return written


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print({"figures": figures, "report": first_screen, "status": running_sweep}[sys.argv[1]](Path(temporary)))
