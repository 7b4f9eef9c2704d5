"""``python -m bench.table``: docs/performance.md and performance-rounding.md, the tables of files in bench/results."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

from bench.timing import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Performance: how slow is it?

In most modes, a small training step takes 1.2 to 2.3 times as long in a simulation as in float32, and a large step
hardly longer. NVFP4, observers and samples of digits are slower. The *slowdown* is the CPU time of a step divided by
the CPU time of the same step in plain float32, both on one thread.
"""
AFTER_THE_TABLE = """
- An operation of a small tensor takes about 1 us longer in C++, and 10 to 30 us through Python, depending on the
  machine. [Some operations and modes](compiling.md#plain-operations) go through Python.
- Separate pages list [32 programs of PyTorch and other libraries](what-runs.md), and the times of
  [rounding, sums and GPUs](performance-rounding.md) and of [agents and sweeps](performance-agents.md).

`make bench` measures everything (`make bench-gpu` on a GPU), and `python -m bench.NAME` measures one section.
`python -m bench.table` writes these pages from the results. Unless a caption says otherwise, a number is the median of
several rounds. In each round the variants take turns in one process, on one thread. The machines had other work, so
compare ratios rather than seconds.
"""
# The rows of the first table: the file, the step there and its way, and words for both.
SMALL = "two layers of 64 units"
SLOWDOWNS = [
    ("eager", "transformer, width 512, batch 4", "in C++", "", "e5m10"),
    ("eager", "residual network, 64 channels, batch 32", "in C++", "", "e5m10"),
    ("native", "two layers of 1024 units, batch 128, Adam", "in C++", "", "e5m10"),
    ("native", "two layers of 64 units, batch 64, Adam", "in C++", "", "e5m10"),
    ("native", f"{SMALL}: stochastic", "in C++", SMALL, "e5m10, stochastic"),
    ("native", f"{SMALL}: mixed precision", "in C++", SMALL, "mixed precision"),
    ("native", f"{SMALL}: recipe fp8, rowwise", "in C++", SMALL, "recipe fp8, rowwise"),
    ("native", f"{SMALL}: recipe mx", "in C++", SMALL, "recipe mx"),
    ("native", f"{SMALL}: recipe nvfp4", "in C++", SMALL, "recipe nvfp4"),
    ("native", "SAC update, 128 units, batch 128", "in C++", "", "e5m10"),
    ("adapters", "sb3:PPO", "", "Stable-Baselines3's PPO", "e5m10"),
    ("programs", "GPT-2", "compiled", "GPT-2, 64 units", "bfloat16, compiled"),
    ("counting", "observed", "", "three layers of 64 units", "e5m10, observed"),
    ("digits", "digits, results", "", SMALL, "a sample of digits"),
]
# The other pages, and the names of their files.
ROUNDING, AGENTS = "performance-rounding.md", "performance-agents.md"
ON_OTHER_PAGES = {
    ROUNDING: ["formats", "families", "accumulation", "matrix_units", "products", "launches"],
    AGENTS: [
        *("update", "policy_gradient", "q_learning", "pixels", "adapters", "language"),
        *("compiled", "population", "acting", "sampling", "folders", "store", "sweeps"),
    ],
}
HEADS = {
    ROUNDING: """# Performance: rounding, sums and GPUs

This page has the times of rounding and of rounded sums, and of launching kernels. Nothing was measured on GPUs yet.
[Performance](performance.md) describes the method.
""",
    AGENTS: """# Performance: agents and sweeps

This page has the times of updates of agents, of their actions and environments, and of planning sweeps and reading
their folders. [Performance](performance.md) describes the method.
""",
}
# The captions of the tables, by the name of their file; a paragraph for each table.
CAPTIONS = {
    "acting": """
        Actions of policies with 17 observations and 6 actions, by the engines of `agents/acting` and the exported C
        header: CPU seconds of one batch on one core, with other work on the machine. The C loop adds floats one by one.
        More: [export](quantization.md#export-a-policy).

        CPU seconds of preparing a new version of the weights (`pack`: from weights to codes; `message`: to bytes;
        `read`: back from bytes; `graph`: as ONNX; `session`: ONNX Runtime's), and the number of sent bytes.

        The networks of Table 6 of Lam et al., with ONNX Runtime: `speedup` is fp32's time over int8's. The paper's
        speedups, on a Raspberry Pi, are 1.18, 14 and 18.85.
    """,
    "accumulation": """
        The product of a 256 x 1024 and a 1024 x 1024 matrix with rounded sums, compared with `torch.mm`.
        `over_plain`: time divided by `torch.mm`'s. [Sums, products and rounding
        modes](sums-and-modes.md#how-sums-are-accumulated) explains the names of accumulators.
    """,
    "matrix_units": """
        The mean relative error of sums of 256, 1024 and 4096 positive products of e4m3 values, by
        [matrix units](hardware.md#sums-of-matrix-units) and by an accumulator that rounds to nearest.

        The product of a 256 x 1024 and a 1024 x 256 matrix in e4m3, one thread. `over_mm`: time divided by
        `torch.mm`'s. `mmaemu` is another emulator of an H100's FP8 sums.
    """,
    "digits": """
        A training step of two layers with Adam, of 64 units on 50 rows and of 2048 units on 1024 rows: simulated with
        stochastic rounding, and as a sample of [digits](accuracy.md#digits-of-a-loss).
    """,
    "adapters": """
        CPU time of one update of algorithms of [other libraries](libraries.md), with Adam's eps at 1e-4. An update of
        A2C and PPO uses a whole rollout.
    """,
    "counting": """
        CPU time of a training step of three layers of 64 units with Adam, batch 64, e5m10: plain, with counting of
        [its cost](cost.md), and with an observer.
    """,
    "compiled": """
        One SAC update, eager and compiled. The reference is a textbook SAC with `torch.nn` and `torch.optim`. e5m10 is
        simulated, with all six fixes.

        Seconds until a new process has finished its first compiled update, without a cache and with the programs on
        disk.
    """,
    "eager": """
        Slowdowns of eager updates of agents (with the default fixes), of Stable-Baselines3's agents and of larger
        networks: e5m10 to nearest-even in C++ and through Python. The last two steps, of two layers (16 x 64 x 1 on 32
        rows), run in one simulation and in a new simulation each.

        CPU time of entering a simulation, and of new processes with warm caches.
    """,
    "families": """
        Rounding to formats that are not floats, to nearest and stochastically: time divided by `clone`'s, for 10 000
        and for 1 000 000 float32 values. `torch`: `torch.fake_quantize_per_tensor_affine`, for its only format.
    """,
    "folders": """
        Wall-clock seconds and peak memory in MB of commands that read a folder of 10 000 runs of 44 records each, in
        new processes. `plot` draws SVG.
    """,
    "formats": """
        Rounding to floats, by the number of values: time divided by `copy_`'s. `copy_` and "into" write to existing
        memory. The others allocate memory, which takes most of their time at 16 000 000 values. The last rows are casts
        of PyTorch and of other libraries.
    """,
    "language": """
        Reinforcement learning of tiny transformers in bfloat16: a rollout of 256 answers and a step of
        `examples/reasoning`, and six steps of TRL's GRPOTrainer. The columns after the plain time are slowdowns.
        `engine` also rounds weights in each operation.
    """,
    "launches": """
        The time in Python of launching the rounding of 1000 values on a GPU. Triton's kernels are compiled for compute
        capability 9.0, and an empty function replaces the driver. `over_add`: time divided by the time of a `torch.add`
        of 1000 values on the CPU.
    """,
    "native": """
        Slowdowns of training steps with [plain operations](compiling.md#plain-operations) in C++ and through Python:
        e5m10 to nearest-even unless the row says otherwise.
    """,
    "pixels": """
        One update of DrQ with all six fixes, plain float32 and simulated e5m10.
    """,
    "policy_gradient": """
        One update of PPO with the default fixes, as ratios of CPU times. Stable-Baselines3's PPO runs in plain float32.
    """,
    "population": """
        One update of eight agents by one program, and of the same agents by eight compiled programs in sequence. The
        simulated agents have eight float formats. The second row has two threads.
    """,
    "products": """
        Products of square float32 matrices by MKL (PyTorch's choice) and by oneDNN (the choice of simulations): forward
        products of a layer (x w), and its gradients by inputs (g w') and by weights (x' g). "bfloat16 result" is
        PyTorch's product of bfloat16 matrices.
    """,
    "q_learning": """
        CPU time of one update of DQN, from the draw of a batch to the end, divided by its time in fp32 with the default
        fixes. `vector`: four numbers, 2 x 256 units; `planes`: four of 10 x 10, 128 units. Stable-Baselines3's DQN runs
        in plain float32.
    """,
    "sampling": """
        Environment steps per second, by environments per core, without a policy and with a policy of two layers of 256
        units. Gymnasium's `AsyncVectorEnv` has a process for each environment, and its `SyncVectorEnv` one process.
        Ours runs in one process, or in one worker process per core, in two groups that take turns. Ratios are medians
        within rounds.

        Ratio of steps per second with 16 and with 2 environments per core, with the policy, and the same ratio in Table
        3 of "Accelerated Methods for Deep Reinforcement Learning" (64 and 512 simulators, 32 cores, 8 GPUs).
    """,
    "simulate": """
        One addition of 64 elements: microseconds in plain float32, in e5m10, in a policy with a format by role, and
        observed.

        Slowdowns of training steps in e5m10, by option of the policy. "By hand": a rounding inserted after each layer.
    """,
    "store": """
        `roundoff collect` and `roundoff status` of large folders; medians of five calls, in wall-clock and CPU
        time.

        Additional seconds of a sweep with one worker process, apart from its training, per run and once, compared with
        a run of `significand-quick`. One measurement.
    """,
    "update": """
        One SAC update: time divided by fp32's with the default fixes. The reference is a textbook SAC with `torch.nn`
        and `torch.optim`. Native: PyTorch's float16 or bfloat16.
    """,
    "sweeps": """
        The time of planning sweep files of 10 000 runs, and of the command line in new processes (the fastest of five
        calls).
    """,
}
# The measurements of `python -m bench.gpu`, by the name of its file in bench/results/gpu.
ON_A_GPU = {
    "rounding": "Time of rounding float32 values into existing memory, by their number, divided by `copy_`'s.",
    "steps": "Training steps of networks: simulated time divided by plain time.",
    "updates": "SAC updates at the sizes of the paper's Tables 10 and 11: time divided by fp32's.",
    "populations": "One update of several agents, each in a separate format: time divided by the update of one agent.",
}
# Units that would make columns wide.
UNITS = {"nanoseconds_per_element": "ns per element", "microseconds": "us", "seconds": "s"}
DIGITS = 3
ELSEWHERE = {"programs"}  # what-runs.md shows it
SLOWDOWN_HEADINGS = ("slowdown", "times_plain", "over_fp32", "simulated_over_plain")  # by files of several ages
WIDEST = 8  # columns; wider tables are transposed

Row = dict[str, object]


def cell(value: object) -> str:
    """A value in few digits."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}" if abs(value) < 1e5 else f"{value:.0f}"
    return str(value)


def flat(row: dict[str, object]) -> Row:
    """A row without mappings in it: each of their entries is a column."""
    columns: Row = {}
    for key, value in row.items():
        parts = value.items() if isinstance(value, dict) else [(None, value)]
        heading = "slowdown" if key in SLOWDOWN_HEADINGS else key
        unit = UNITS.get(heading, heading)
        columns |= {heading if name is None else f"{name} [{unit}]": inner for name, inner in parts}
    return columns


def tables(rows: list[Row]) -> list[list[Row]]:
    """Rows that can share a table: one has all columns of the other."""
    found: list[list[Row]] = []
    for row in map(flat, rows):
        if found and any(a.keys() <= b.keys() for a, b in ((row, found[-1][0]), (found[-1][0], row))):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def by_way(rows: list[Row]) -> list[Row]:
    """A row for each step, with the time of its first way and the slowdowns of the others; rows of times last."""
    steps: dict[object, list[Row]] = {}
    for row in rows:
        steps.setdefault(row["what"], []).append(row)
    slow: list[Row] = []
    times: list[Row] = []
    for what, (first, *others) in steps.items():
        unit = next(name for name in ("microseconds", "milliseconds") if name in first)
        heading = next((name for name in SLOWDOWN_HEADINGS if name in first), None)
        if heading:
            base = {"step": what, f"plain, {UNITS.get(unit, 'ms')}": first[unit]}
            slow.append(base | {row["way"]: row[heading] for row in others if row["way"] != first["way"]})
        else:
            blank = dict.fromkeys(["plain, us", "through Python, us", "in C++, us"], "")
            times.append({"step": what} | blank | {f"{row['way']}, us": row[unit] for row in (first, *others)})
    return slow + times


def by_format(rows: list[Row]) -> list[Row]:
    """Ratios of one format in a row."""
    formats: dict[object, Row] = {}
    for row in rows:
        thousands = f"{row['elements']:,}".replace(",", " ")
        found = formats.setdefault(row["format"], {"format": row["format"]})
        found |= {f"{name}, {thousands}": row[f"{name} / clone"] for name in ("roundoff", "stochastic")}
    for row in rows:
        formats[row["format"]]["torch, 1 000 000"] = row.get("torch / clone", "")
    return list(formats.values())


def of_q_learning(rows: list[Row]) -> list[Row]:
    """The times of updates over fp32's, by the kind of observation."""
    kinds = {1: "vector", 3: "planes"}  # by the number of dimensions
    return [
        {"observation": kinds[len(row["shape"])], "atoms": row["atoms"], "batch": row["batch"], **row["over_fp32"]}
        for row in rows
        if "over_fp32" in row
    ]


ARRANGEMENTS = {
    "families": by_format,
    "formats": lambda rows: [{"values": row["elements"], **row["times_copy"]} for row in rows],
    "policy_gradient": lambda rows: [{"step": row["what"], **row["ratios"]} for row in rows],
    "q_learning": of_q_learning,
    "simulate": lambda rows: [
        {"step": row["what"], **row.get("microseconds", row.get("slowdown", {}))} for row in rows
    ],
    "update": lambda rows: [{"units": row["units"], "batch": row["batch"], **row["over_fp32"]} for row in rows],
    # Their other rows are for developers.
    "products": lambda rows: [row for row in rows if "product" in row],
    "counting": lambda rows: [row for row in rows if "what" in row],
}


def chosen(stem: str, rows: list[Row]) -> list[Row]:
    """The rows of a file that the page shows, in its arrangement."""
    if {"what", "way"} <= rows[0].keys():
        return by_way(rows)
    return ARRANGEMENTS[stem](rows) if stem in ARRANGEMENTS else rows


def read(stem: str) -> dict:
    """The result of a measurement."""
    return json.loads((RESULTS / f"{stem}.json").read_text())


def how_slow() -> str:
    """The table of slowdowns from several files."""
    lines = [line(["step", "simulation", "slowdown", "machine"]), "|---|---|---|---|"]
    for stem, step, way, words, simulation in SLOWDOWNS:
        result = read(stem)
        names = ("what", "step", "program", "algorithm")
        row = next(row for row in result["rows"] if step in map(row.get, names) and row.get("way", way) == way)
        row = row.get(way, row)
        slowdown = next(row[name] for name in SLOWDOWN_HEADINGS if name in row)
        processor, capability = (result["machine"][name] for name in ("processor", "cpu_capability"))
        machine = f"{'Intel Xeon' if 'Xeon' in processor else processor}, {capability}"
        lines.append(line([words or step, simulation, f"{slowdown:.1f}", machine]))
    return "\n".join(lines)


def section(path: Path) -> str:
    """One file: its tables with their captions."""
    result = json.loads(path.read_text())
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items() if number)
    lines = [
        f"## {path.stem.replace('_', '-').capitalize()}",
        "",
        wrapped(
            f"`python -m bench.{path.stem}`, from `bench/results/{path.name}`, measured on {machine['processor']},"
            f" {machine['cpu_capability']}, {machine['gpu'] or 'no GPU'}; {versions}."
        ),
    ]
    shown = tables(chosen(path.stem, result["rows"]))
    for table, caption in zip(shown, CAPTIONS[path.stem].split("\n\n"), strict=True):
        columns = list(max(table, key=len))
        grid = [columns, *([cell(row.get(column, "")) for column in columns] for row in table)]
        if len(columns) > max(WIDEST, len(table)):
            grid = [list(column) for column in zip(*grid, strict=True)]
        lines += ["", wrapped(caption), "", line(grid[0]), "|" + "---|" * len(grid[0]), *map(line, grid[1:])]
    return "\n".join(lines) + "\n"


def wrapped(text: str) -> str:
    """A paragraph in lines."""
    return fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def line(cells: list[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def pages() -> dict[str, str]:
    """The pages, by name."""
    stems = [path.stem for path in sorted(RESULTS.glob("*.json")) if path.stem not in ELSEWHERE]
    made = {stem: section(RESULTS / f"{stem}.json") for stem in stems}
    pages = {name: [HEADS[name], *map(made.pop, stems)] for name, stems in ON_OTHER_PAGES.items()}
    pages[ROUNDING].append(on_a_gpu())
    pages["performance.md"] = [HEAD, how_slow(), AFTER_THE_TABLE, *made.values()]
    return {name: "\n".join(lines) for name, lines in pages.items()}


def on_a_gpu() -> str:
    """The tables of a GPU, and a list of the missing ones."""
    lines = ["## On a GPU", ""]
    missing = [f"- {words}" for name, words in ON_A_GPU.items() if not (RESULTS / "gpu" / f"{name}.json").exists()]
    if missing:
        lines += ["`make bench-gpu` measures these on a machine with a GPU. Not measured yet:", "", *missing]
    for name in ON_A_GPU:
        path = RESULTS / "gpu" / f"{name}.json"
        if path.exists():
            lines += ["", *of_a_gpu(name, json.loads(path.read_text()))]
    return "\n".join(lines) + "\n"


def of_a_gpu(name: str, result: dict) -> list[str]:
    """A table of a GPU."""
    machine, rows = result["machine"], result["rows"]
    versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items())
    columns = list(dict.fromkeys(column for row in rows for column in row["ratios"]))
    grid = [["", f"{rows[0]['base']}, us", *columns]]
    for row in rows:
        base = row["seconds"][row["base"]]
        ratios = [cell(row["ratios"][column]) if column in row["ratios"] else "" for column in columns]
        grid.append([row["what"], "" if base is None else cell(base * 1e6), *ratios])
    if len(columns) > WIDEST:
        grid = [list(column) for column in zip(*grid, strict=True)]
    measured = wrapped(f"{ON_A_GPU[name]} Measured on {machine['gpu']}; {versions}.")
    head = [f"### {name.capitalize()}", "", measured, "", line(grid[0]), "|" + "---|" * len(grid[0])]
    return [*head, *map(line, grid[1:])]


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print("written to", DOCS / name)


if __name__ == "__main__":
    main()
