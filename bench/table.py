"""``python -m bench.table``: docs/performance.md and its parts, the tables of everything in bench/results."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

from bench.timing import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Performance

This page has measurements of how long `roundoff` takes: for rounding, accumulation, products, compiled steps and
simulations. Four pages have more: [training agents](performance-agents.md), [sweeps](performance-sweeps.md), [plain
operations](performance-plain.md), and [GPUs](performance-gpu.md). In short:

- Rounding a million floats to a float format takes 1.0 to 1.7 times as long as copying them.
- A plain operation on a small tensor takes about 1 us longer inside a simulation, any other operation about 10 us.
- A SAC update with 128 units takes 1.4 times as long as in plain float32; compiled, it takes about as long as that.

`make bench` measures everything (`make bench-gpu` on a GPU), and `python -m bench.NAME` measures one section.
`python -m bench.table` writes these pages from the results. Unless a caption says otherwise, a number is the median of
several rounds in which the variants take turns in one process, on one thread. Compare ratios rather than seconds: the
machines had other work to do.
"""
# Pages beside the first one: a title, and the names of their files.
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
    "performance-sweeps.md": (
        "Performance: sweeps, their folders, and counting costs",
        ["counting", "folders", "store", "sweeps"],
    ),
    "performance-plain.md": ("Performance: plain operations in C++", ["native", "eager"]),
    "performance-gpu.md": ("Performance: on a GPU", ["launches"]),
}
# What a page beside the first one is about.
ABOUT = {
    "performance-agents.md": "This page has the times of updates of agents, of acting, and of sampling environments.\n"
    "[Performance](performance.md) says how they are measured.",
    "performance-sweeps.md": "This page has the times of planning sweeps, reading their folders, and counting costs.\n"
    "[Performance](performance.md) says how they are measured.",
    "performance-plain.md": "This page has the times of training steps whose operations are rounded "
    "[in C++](plain-operations.md).\n[Performance](performance.md) says how they are measured.",
    "performance-gpu.md": "This page has measurements for GPUs. None has been made on a GPU yet.\n"
    "[Performance](performance.md) says how they are measured.",
}
# What each table shows, by the name of its file; a paragraph for each table.
CAPTIONS = {
    "acting": """
        Actions of policies with 17 observations and 6 actions, by the engines of `agents/acting` and the exported C
        header: CPU seconds of one batch on one core, others at work beside it. The C loop adds floats one by one. More:
        [deployment](deployment.md).

        CPU seconds that a new version of the weights takes before it can act (`pack`: from weights to codes; `message`:
        to bytes; `read`: back from them; `graph`: as ONNX; `session`: ONNX Runtime's), and the bytes that are sent.

        The networks of Table 6 of Lam et al., with ONNX Runtime: `speedup` is fp32's time over int8's. The paper's, on
        a Raspberry Pi: 1.18, 14 and 18.85.
    """,
    "accumulation": """
        The product of a 256 x 1024 and a 1024 x 1024 matrix with rounded sums, beside `torch.mm`. `over_plain`:
        times the seconds of `torch.mm`. [Sums, products and rounding modes](sums-and-modes.md#how-sums-are-accumulated)
        explains how accumulators are written.
    """,
    "matrix_units": """
        The mean relative error of sums of 256, 1024 and 4096 positive products of e4m3 values, by
        [matrix units](matrix-units.md) and by an accumulator that rounds to nearest.

        The product of a 256 x 1024 and a 1024 x 256 matrix in e4m3, one thread. `over_mm`: times the seconds of
        `torch.mm`. `mmaemu` is another emulator of an H100's FP8 sums.
    """,
    "adapters": """
        CPU time of one update of algorithms of [other libraries](libraries.md), alone and simulated, with Adam's eps at
        1e-4. An update of A2C and PPO is that of a whole rollout. `over_fp32`: times the seconds of fp32.
    """,
    "counting": """
        CPU time of a training step of three layers of 64 units with Adam, batch 64, e5m10: plain, with counting of
        [its cost](cost.md), and with an observer.

        The same step with nothing counted: `here`, and `there` in a copy of the project in which simulations tell no
        watcher of operands, modules, steps and stored tensors (`python -m bench.counting COPY`). Two processes take
        turns; `ratio` is the median of 400, with its quartiles; plain float32 is the control. CPU seconds, others at
        work beside it.
    """,
    "compiled": """
        One SAC update, eager and compiled. Reference: a textbook SAC with `torch.nn` and `torch.optim`; e5m10 is
        simulated, with all six fixes.

        Seconds until the first compiled update of a new process has ended, without a cache and with the programs on
        disk.
    """,
    "eager": """
        CPU time of eager updates of agents, of other libraries' agents and of larger networks: e5m10 to nearest-even in
        C++ and through Python, beside fp32 (agents have the fixes of the defaults), on one thread, others at work
        beside it. `times_plain`: times the microseconds of fp32. Tensors made of arrays take operations
        (`lift_fresh`) that pass through Python, six to fourteen in each update of Stable-Baselines3. The last rows are
        times of entering the same simulation again, or a new one; of a step of two layers, 16 x 64 x 1 on 32 rows, by
        itself and as a function that is decorated, each call of which makes a new simulation; and of new processes with
        warm caches.
    """,
    "families": """
        Rounding to formats that are not floats, to nearest and stochastically, beside `clone`. The columns "torch" are
        of `torch.fake_quantize_per_tensor_affine`, for the one format that it has.
    """,
    "folders": """
        Wall-clock seconds and largest memory in MB of commands that read a folder of 10 000 runs of 44 records each, in
        new processes. `plot` draws SVG.
    """,
    "formats": """
        Rounding to floats. `copy_` and "into" write to existing memory; the others allocate memory, which takes most of
        their time at 16 000 000 elements. The last rows are casts of PyTorch and of other libraries (these were not
        measured at 16 000 000). `times_copy`: times the seconds of `copy_`.
    """,
    "language": """
        Reinforcement learning of tiny transformers in bfloat16: a rollout of 256 answers and a step of
        `examples/reasoning`, and six steps of TRL's GRPOTrainer, by CPU time on one thread, others at work beside it.
        `engine` rounds weights, too, in each operation.
    """,
    "launches": """
        The time in Python of launching the rounding of 1000 numbers on a GPU: Triton's kernels are compiled for compute
        capability 9.0, and a stand-in for the driver does nothing. `over_add`: times a `torch.add` of 1000 numbers on
        the CPU.
    """,
    "native": """
        CPU time of training steps with [plain operations](plain-operations.md) in C++ and through Python: e5m10 to
        nearest-even unless the row says otherwise, on one thread, others at work beside it. `times_plain`: times the
        microseconds of plain float32. The processor's counter, in a build made for that, shows where the additional
        time of a step of 256 units goes: 30 % to rounding (0.12 ns a number, which lies in the second-level cache),
        29 % to checks and counts in C++ for 105 operations, and 5 % to square roots to the nearest. The other 36 % pass
        before C++ is called: in PyTorch's boxing of arguments, and in Python around an optimizer's `zero_grad` and
        `step`. At 64 units these are 6, 26, 2 and 66 %. One loop for an operation and its rounding could save 3 to 5 %
        of the step at 256 units, so it was not built.
    """,
    "pixels": """
        One update of DrQ with all six fixes, plain float32 and simulated e5m10.
    """,
    "policy_gradient": """
        CPU time of one update of PPO on CartPole's observations, on one thread of a machine that others used. e5m10 is
        simulated; both formats have the seven fixes of the defaults unless the row says otherwise. The rows of
        Stable-Baselines3 are one epoch of `PPO.train` over a rollout of one minibatch.
    """,
    "population": """
        One update of eight agents by one program, and of the same agents by eight compiled programs, one after the
        other. The simulated agents have eight float formats. The second row has two threads.
    """,
    "products": """
        Products of square float32 matrices by MKL (PyTorch's choice) and by oneDNN (the choice of simulations): of a
        layer forward (x w), of its gradients by inputs (g w') and by weights (x' g). "bfloat16 result" is PyTorch's
        product of bfloat16 matrices.

        One SAC update, simulated with PyTorch's products (plain) and with oneDNN's (fast), batch as large as the
        network. Reference: the textbook SAC in float32.
    """,
    "sampling": """
        Environment steps a second, by environments a core, without a policy and with one of two layers of 256 units.
        Gymnasium's `AsyncVectorEnv` has a process for each environment, and its `SyncVectorEnv` one process. Ours runs
        in one process, or in as many worker processes as cores, in two groups that take turns. Ratios are medians
        within rounds.

        Steps a second with 16 environments a core over those with 2, with the policy; beside it, the same ratio of
        Table 3 of "Accelerated Methods for Deep Reinforcement Learning" (64 and 512 simulators, 32 cores, 8 GPUs).
    """,
    "simulate": """
        One small addition outside and inside simulations; "format by role": with a rule for a role.

        One training step with each option of `simulate`: a small convolutional network with SGD, 32 images of 32 x
        32, and a SAC update with 128 units. "By hand": quantizers as layers of the network. `times_plain`: times
        the seconds of plain float32.
    """,
    "store": """
        `roundoff collect` and `roundoff status` of large folders; medians of five calls, by the clock and by the
        processor.

        Seconds that a sweep with one worker process takes beyond its training, per run and once, beside those of a run
        of `significand-quick`. One measurement.
    """,
    "sweeps": """
        The time of planning sweep files of 10 000 runs, and of the command line in new processes (the fastest of five
        calls).
    """,
    "q_learning": """
        One DQN update, from the draw of a batch to its end; CPU time. Shape (4,): two layers of 256 units, beside
        Stable-Baselines3's DQN of the same size; (4, 10, 10): a convolution and 128 units. fp32 has all fixes.
        `over_fp32`: times the seconds of fp32.

        The time of fp32 for a transition in a batch of 512, as a multiple of that in a batch of 32.
    """,
    "update": """
        One eager SAC update: a textbook SAC, ours in float32 (fp32 has all six fixes), in simulated half precision
        and in PyTorch's own. Native half precision is not measured at 1024 units on a CPU. `over_fp32`: times the
        seconds of fp32.
    """,
}
# What `python -m bench.gpu` measures, by the name of its file in bench/results/gpu.
ON_A_GPU = {
    "rounding": "Rounding of as many float32 numbers into memory that is there, over `copy_`.",
    "steps": "Training steps of networks, simulated over plain.",
    "updates": "SAC updates at the sizes of the paper's Tables 10 and 11, over fp32.",
    "populations": "One update of as many agents, each in a format of its own, over the update of one.",
}
# Units that would make columns wide.
UNITS = {"nanoseconds_per_element": "ns per element", "microseconds": "us", "seconds": "s"}
DIGITS = 3
ELSEWHERE = {"programs"}  # what-runs.md shows it
WIDEST = 8  # columns; wider tables lie on their side

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
        unit = UNITS.get(key, key)
        columns |= {key if name is None else f"{name} [{unit}]": inner for name, inner in parts}
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
    parts["performance-gpu.md"] += map(on_a_gpu, ON_A_GPU)
    return {name: "\n".join(lines) for name, lines in {"performance.md": [HEAD, *made.values()], **parts}.items()}


def on_a_gpu(name: str) -> str:
    """A file of a GPU's, or that there is none."""
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
