"""``python -m bench.what_runs``: docs/what-runs.md, the page of what runs, from what bench/programs.py recorded."""

from __future__ import annotations

import json
from pathlib import Path

from bench.programs import MODES
from bench.table import line, wrapped
from bench.timing import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "what-runs.md"
HEAD = """# Tested programs and their slowdown

This page shows which programs run in a simulation, and how much slower they are. The table has 32 programs of PyTorch
and other libraries, each run unchanged in seven modes. `python -m bench.programs` runs and measures them, and
`python -m bench.what_runs` writes this page from the results. `tests/test_what_runs.py` repeats every cell of the table
if its package is installed (`make test-slow`). The programs do not need downloads.
"""
COLUMNS = {
    "e5m10": '`simulate("e5m10")`: every result of every operation',
    "bfloat16": '`simulate("e8m7")`: the same in bfloat16',
    "mixed": '`simulate(Policy.mixed_precision("e8m7"))`: only operands and results of products',
    "fp8": '`simulate(Policy.fp8("tensorwise"))`: operands of products with weights, scaled',
    "stochastic": '`simulate("e8m7", rounding="stochastic")`: bfloat16 with stochastic rounding',
    "observe": '`simulate("e8m7", observe=True)`: bfloat16 with an observer',
    "compiled": '`roundoff.compile(step, simulate("e8m7"))`: bfloat16 in a compiled step',
}
WORDS = """
A number in the table is the slowdown: the CPU time of a step in the simulation, divided by the CPU time of a step in
plain float32 PyTorch. Both run on one thread and take turns. For compiled steps, calls after the first are timed. The
programs are small, so most of the additional time is [a constant for each operation](limits.md#simulation). Larger
programs have a smaller slowdown. The columns fp8 and stochastic were measured before these modes ran in C++; newer
measurements show [slowdowns of 2](performance.md). A cell has one of four contents:

- **Only a number**: the program runs. After its steps all losses and parameters are finite, as in float32.
- **NaN**: some losses or parameters are not finite, or the program raises an error because of that
  ([where NaN comes from](#where-nan-comes-from)).
- **refused**: roundoff raises an error ([refused programs](#refused-programs)).
- **Empty**: untested.
"""
PROGRAMS = """
`bench/others.py` has the programs. Models and layers have 64 units, two layers and random weights; they take three
steps of SGD with momentum. Optimizers take ten steps on a network of two layers, with their defaults. Agents of
Stable-Baselines3 `learn` for 200 or 256 steps of CartPole or Pendulum. `examples/digits` is [our
CNN](programs.md#examples) on scikit-learn's digits, for an epoch.

PyTorch runs an LSTM as one kernel, whereas a simulation decomposes it to round inside. A step of L-BFGS ends when it
has converged, which is early in float32. Its slowdowns therefore compare different amounts of work.
"""
ORIGINS = """
The list has the first non-finite result of each program with NaN. An observer found it when the program ran again.
"""
CAUSES = {
    "pow": """
        Llama and Mixtral normalize by `x * rsqrt(mean(x * x) + eps)`, and the derivative of `rsqrt` needs its third
        power. This exceeds 65504 if the root mean square of `x` is below 0.025, as at the beginning. Transformers
        computes norms in float32, but a float32 program cannot express that as an island.
        `Rule(module="*norm*", format="fp32")` leaves norms unrounded. In a program in half precision,
        `islands="exact"` does the same ([islands](sums-and-modes.md#islands-of-float32)).
    """,
    "addcdiv_": """
        Adam and its relatives divide by the root of a mean of squared gradients, plus `eps`. In e5m10 an `eps` of 1e-8
        is zero, and so are the squares of small gradients. [hAdam](fixes/hadam.md) avoids the squares.
    """,
    "rsqrt_": """
        Adafactor bounds its mean square from below by the squared `eps` of float32, 1.4e-14, which is zero in e5m10.
    """,
    "reciprocal": """
        RAdam divides in the same way as Adam, from its sixth step on. L-BFGS divides by the product of a step and the
        change of the gradient, if that is above 1e-10; below 1.5e-5 the quotient exceeds 65504.
    """,
}
CURE = """
With `Rule(role="optimizer", format="fp32")` optimizers stay in float32, in a program that is otherwise in e5m10. Then
all optimizers of the table run except SparseAdam, which has sparse gradients.
"""


def rows() -> tuple[dict, list[dict]]:
    """The machine, and the record of each program."""
    result = json.loads((RESULTS / "programs.json").read_text(encoding="utf-8"))
    return result["machine"], result["rows"]


def cell(found: dict | None) -> str:
    """What came out, and how much slower it is."""
    if found is None:
        return ""
    word = "" if found["word"] == "runs" else found["word"]
    slowdown = found.get("slowdown", found.get("times_plain"))  # the latter in files of earlier versions
    slower = "" if slowdown is None else f"{slowdown:.1f}"
    return f"{word} {slower}".strip()


def table(found: list[dict]) -> list[str]:
    """Programs times modes."""
    lines = [line(["program", "library", *MODES]), "|" + "---|" * (len(MODES) + 2)]
    return lines + [line([row["program"], row["package"], *(cell(row.get(mode)) for mode in MODES)]) for row in found]


def reasons(found: list[dict], *words: str) -> list[str]:
    """A line for each reason that programs did not run, with the programs and modes."""
    concerned: dict[str, dict[str, list[str]]] = {}
    for row in found:
        for mode in MODES:
            if mode in row and row[mode]["word"] in words:
                concerned.setdefault(row[mode]["why"], {}).setdefault(row["program"], []).append(mode)
    return [
        wrapped(f"- `{why}`: " + ", ".join(f"{program} ({', '.join(modes)})" for program, modes in programs.items()))
        for why, programs in concerned.items()
    ]


def page() -> str:
    """The whole page."""
    machine, found = rows()
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    measured = (
        f"Measured on {machine['processor']}, {machine['cpu_capability']}, {machine['gpu'] or 'no GPU'}; {versions}."
    )
    lines = [HEAD, line(["column", "mode"]), "|---|---|", *(line([name, COLUMNS[name]]) for name in MODES), WORDS]
    lines += [*table(found), "", wrapped(measured), PROGRAMS]
    lines += ["## Where NaN comes from", ORIGINS, *reasons(found, "NaN"), ""]
    lines += [wrapped(f"**{name}**. {text}") + "\n" for name, text in CAUSES.items()] + [CURE.lstrip()]
    lines += ["## Refused programs", "", *reasons(found, "refused", "eager", "fails")]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print("written to", PAGE)


if __name__ == "__main__":
    main()
