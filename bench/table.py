"""``python -m bench.table``: docs/performance.md and its parts, the tables of everything in bench/results."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

from bench.timing import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Performance

Three results of the measurements:

- Rounding a million floats to a float format takes 1.0 to 1.7 times as long as copying them.
- Inside a simulation, a plain operation on a small tensor takes about 1 us longer, and any other operation 10 to 30 us,
  depending on the machine.
- A SAC update with 128 units has a slowdown of 1.4 relative to plain float32. Compiled, it is about as fast.

This page has the times of rounding, accumulation, products, compiled steps and simulations. Two further pages are
about [training agents](performance-agents.md) and about [plain operations, sweeps and GPUs](performance-plain.md).

`make bench` measures everything (`make bench-gpu` on a GPU), and `python -m bench.NAME` measures one section.
`python -m bench.table` writes these pages from the results. Unless a caption says otherwise, a value is the median of
several rounds. In each round the variants take turns in one process, on one thread. The machines had other work, so
compare ratios rather than seconds.
"""
# The other pages: a title, and the names of their files.
PARTS = {
    "performance-agents.md": (
        "Performance: training agents",
        [
            "acting",
            "adapters",
            "language",
            "pixels",
            "policy_gradient",
            "population",
            "q_learning",
            "sampling",
            "update",
        ],
    ),
    "performance-plain.md": (
        "Performance: plain operations, sweeps and GPUs",
        ["native", "eager", "counting", "digits", "folders", "store", "sweeps", "launches"],
    ),
}
# The introductions of the other pages.
ABOUT = {
    "performance-agents.md": "This page has the times of updates of agents, of acting, and of sampling environments.\n"
    "[Performance](performance.md) describes the method.",
    "performance-plain.md": "This page has the times of training steps with operations that are rounded\n"
    "[in C++](compiling.md#plain-operations), of planning sweeps and reading their folders, and of counting costs.\n"
    "The last part is about GPUs, where nothing was measured yet. [Performance](performance.md) describes the method.",
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
        stochastic rounding, and as a sample of [digits](accuracy.md#digits-of-a-loss). `slowdown`: time divided
        by the plain step's.
    """,
    "adapters": """
        CPU time of one update of algorithms of [other libraries](libraries.md), unsimulated and simulated, with Adam's
        eps at 1e-4. An update of A2C and PPO uses a whole rollout. `over_fp32`: time divided by fp32's.
    """,
    "counting": """
        CPU time of a training step of three layers of 64 units with Adam, batch 64, e5m10: plain, with counting of
        [its cost](cost.md), and with an observer.

        The same step without counting: `here` in this project, and `there` in a copy of the project without watcher
        hooks for operands, modules, steps and stored tensors (`python -m bench.counting COPY`). Two processes take
        turns; `ratio` is the median of 400, with its quartiles; plain float32 is the control. CPU seconds, with other
        work on the machine.
    """,
    "compiled": """
        One SAC update, eager and compiled. The reference is a textbook SAC with `torch.nn` and `torch.optim`. e5m10 is
        simulated, with all six fixes.

        Seconds until a new process has finished its first compiled update, without a cache and with the programs on
        disk.
    """,
    "eager": """
        CPU time of eager updates of agents, of other libraries' agents and of larger networks: e5m10 to nearest-even in
        C++ and through Python, compared with fp32 (agents have the default fixes), on one thread, with other work on
        the machine. `slowdown`: the slowdown relative to fp32. The last rows are other times: of entering the same
        simulation again, and a new one; of a step of two layers, 16 x 64 x 1 on 32 rows, without a decorator and as a
        decorated function; and of new processes with warm caches.
    """,
    "families": """
        Rounding to formats that are not floats, to nearest and stochastically, compared with `clone`. The columns
        "torch" show `torch.fake_quantize_per_tensor_affine`, for its only format.
    """,
    "folders": """
        Wall-clock seconds and peak memory in MB of commands that read a folder of 10 000 runs of 44 records each, in
        new processes. `plot` draws SVG.
    """,
    "formats": """
        Rounding to floats. `copy_` and "into" write to existing memory. The others allocate memory, which takes most of
        their time at 16 000 000 elements. The last rows are casts of PyTorch and of other libraries. `times_copy`: time
        divided by `copy_`'s.
    """,
    "language": """
        Reinforcement learning of tiny transformers in bfloat16: a rollout of 256 answers and a step of
        `examples/reasoning`, and six steps of TRL's GRPOTrainer, by CPU time on one thread, with other
        work on the machine. `engine` also rounds weights in each operation.
    """,
    "launches": """
        The time in Python of launching the rounding of 1000 values on a GPU. Triton's kernels are compiled for compute
        capability 9.0, and an empty function replaces the driver. `over_add`: time divided by the time of a `torch.add`
        of 1000 values on the CPU.
    """,
    "native": """
        CPU time of training steps with [plain operations](compiling.md#plain-operations) in C++ and through Python:
        e5m10 to nearest-even unless the row says otherwise, on one thread, with other work on the machine. `slowdown`:
        the slowdown relative to plain float32.
    """,
    "pixels": """
        One update of DrQ with all six fixes, plain float32 and simulated e5m10.
    """,
    "policy_gradient": """
        CPU time of one update of PPO on CartPole's observations, on one thread of a shared machine. e5m10 is
        simulated; both formats have the seven default fixes unless the row says otherwise. The rows of
        Stable-Baselines3 are one epoch of `PPO.train` over a rollout of one minibatch.
    """,
    "population": """
        One update of eight agents by one program, and of the same agents by eight compiled programs in sequence. The
        simulated agents have eight float formats. The second row has two threads.
    """,
    "products": """
        Products of square float32 matrices by MKL (PyTorch's choice) and by oneDNN (the choice of simulations): forward
        products of a layer (x w), and its gradients by inputs (g w') and by weights (x' g). "bfloat16 result" is
        PyTorch's product of bfloat16 matrices.

        One SAC update, simulated with PyTorch's products (plain) and with oneDNN's (fast), with batches of the
        network's size. Reference: the textbook SAC in float32.
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
        One small addition outside and inside simulations; "format by role": with a rule for a role.

        One training step with each option of `simulate`: a small convolutional network with SGD, 32 images of 32 x
        32, and a SAC update with 128 units. "By hand": quantizers as layers of the network. `slowdown`: the
        slowdown relative to plain float32.
    """,
    "store": """
        `roundoff collect` and `roundoff status` of large folders; medians of five calls, in wall-clock and CPU
        time.

        Additional seconds of a sweep with one worker process, apart from its training, per run and once, compared with
        a run of `significand-quick`. One measurement.
    """,
    "sweeps": """
        The time of planning sweep files of 10 000 runs, and of the command line in new processes (the fastest of five
        calls).
    """,
    "q_learning": """
        CPU time of one DQN update, including the draw of a batch. Shape (4,): two layers of 256 units, compared with
        Stable-Baselines3's DQN of the same size; (4, 10, 10): a convolution and 128 units. fp32 has all fixes.
        `over_fp32`: time divided by fp32's.

        The time of fp32 per transition in a batch of 512, divided by the time per transition in a batch of 32.
    """,
    "update": """
        One eager SAC update: a textbook SAC, ours in float32 (fp32 has all six fixes), in simulated half precision
        and in PyTorch's own. Native half precision is not measured at 1024 units on a CPU. `over_fp32`: time
        divided by fp32's.
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
        heading = "slowdown" if key == "times_plain" else key  # the latter in files of earlier versions
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


# Files with eager simulated steps from before plain operations ran in C++.
THROUGH_PYTHON = ("compiled", "policy_gradient", "products", "q_learning", "simulate", "update")


def section(path: Path) -> str:
    """One file: its tables with their captions."""
    result = json.loads(path.read_text())
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"## {path.stem.replace('_', '-').capitalize()}",
        "",
        wrapped(
            f"`python -m bench.{path.stem}`, from `bench/results/{path.name}`, measured on {machine['processor']},"
            f" {machine['cpu_capability']}, {machine['gpu'] or 'no GPU'}; {versions}."
            + " Plain operations did not run in C++ yet: eager simulated steps are faster now."
            * (path.stem in THROUGH_PYTHON)
        ),
    ]
    for table, caption in zip(tables(result["rows"]), CAPTIONS[path.stem].split("\n\n"), strict=True):
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
    made = {path.stem: section(path) for path in sorted(RESULTS.glob("*.json")) if path.stem not in ELSEWHERE}
    parts = {
        name: [f"# {title}\n", f"{ABOUT[name]}\n", *map(made.pop, stems)] for name, (title, stems) in PARTS.items()
    }
    parts["performance-plain.md"] += map(on_a_gpu, ON_A_GPU)
    return {name: "\n".join(lines) for name, lines in {"performance.md": [HEAD, *made.values()], **parts}.items()}


def on_a_gpu(name: str) -> str:
    """A file of figures of a GPU, or a sentence that it is missing."""
    path = RESULTS / "gpu" / f"{name}.json"
    lines = [f"## On a GPU: {name}", "", wrapped(ON_A_GPU[name])]
    if not path.exists():
        return "\n".join([*lines, "", "Not measured yet: `make bench-gpu` measures it on a machine with a GPU."]) + "\n"
    result = json.loads(path.read_text())
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
    return "\n".join([
        *lines, "", wrapped(f"Measured on {machine['gpu']}; {versions}."), "",
        line(grid[0]), "|" + "---|" * len(grid[0]), *map(line, grid[1:]),
    ]) + "\n"  # fmt: skip


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print("written to", DOCS / name)


if __name__ == "__main__":
    main()
