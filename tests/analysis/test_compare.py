"""Several sweeps in one figure: lines and their names, the tables, what is left out and said."""

import json

import pandas as pd
import pytest
from program_runs import LOSS
from program_runs import write_run as write_program_run
from program_runs import write_sweep as write_program_sweep

from roundoff.analysis import AnalysisError, compare
from roundoff.analysis.figures.relative import draw_relative

SHARES = {"fp32": 1.0, "e5m10": 1.0, "e5m2": 0.5}


def write_sweep(folder, name, *, tasks=("gym:CartPole-v1",), shares=SHARES, best=400.0, seeds=2, **settings):
    """A sweep whose mean in each format is a share of fp32's; ``settings`` is a value of a key for each condition."""
    runs = []
    (key, values) = next(iter(settings.items()), ("lr", [1e-3]))
    for task in tasks:
        for number, value in enumerate(values):
            for fmt, share in shares.items():
                for seed in range(seeds):
                    config = {"task": task, "format": fmt, "seed": seed, "steps": 1000, key: value}
                    runs.append({"id": f"{len(runs):02}-{fmt}-{number}", "config": config})
                    run = folder / "runs" / runs[-1]["id"]
                    run.mkdir(parents=True)
                    score = best * share * (0.9 + 0.2 * seed)
                    result = {"status": "done", "return": score, "return_std": 0, "step": 1000, "crash": None}
                    (run / "result.json").write_text(json.dumps(result))
    marker = {"layout": 1, "name": name, "description": "", "varying": ["format", "seed"], "runs": runs}
    (folder / "sweep.json").write_text(json.dumps(marker))
    return folder


def lines(folder):
    return pd.read_csv(folder / "relative.csv")


def test_a_line_for_each_sweep_with_what_varies_in_it(tmp_path):
    one = write_sweep(tmp_path / "1", "dqn-quick")
    two = write_sweep(tmp_path / "2", "ppo-quick", tasks=("gym:CartPole-v1", "walker_walk"), best=800.0)
    three = write_sweep(tmp_path / "3", "a2c", lr=[0.1, 0.2], shares={"fp32": 1, "e5m10": 0.9, "e4m3": 0.25})
    written, warnings = compare([one, two, three], tmp_path / "new" / "figures")
    assert warnings == ()
    assert [path.name for path in written] == ["relative.csv", "relative.png", "relative.svg", "relative.md"]
    assert all(path.stat().st_size > 300 for path in written)
    table = lines(tmp_path / "new" / "figures")
    assert list(dict.fromkeys(table["series"])) == [
        "dqn", "ppo, gym:CartPole-v1", "ppo, walker_walk", "a2c, e4mX, lr 0.1", "a2c, e4mX, lr 0.2",
        "a2c, e5mX, lr 0.1", "a2c, e5mX, lr 0.2",
    ]  # fmt: skip
    dqn = table[table["sweep"] == "dqn"]
    assert dqn[["significand_bits", "share", "reference", "runs"]].to_numpy().tolist() == [
        [2, 0.5, 400, 2], [10, 1, 400, 2],
    ]  # fmt: skip
    assert dqn["share_low"].tolist() == pytest.approx([0.5 * 0.9 / 1.1, 0.9 / 1.1])
    assert dqn["share_high"].tolist() == pytest.approx([0.5 * 1.1 / 0.9, 1.1 / 0.9])
    (axis,) = draw_relative("3 sweeps", table).axes
    named = [text.get_text() for text in axis.figure.legends[0].get_texts()]
    assert named == list(dict.fromkeys(table["series"]))
    drawn = [line for line in axis.lines if line.get_marker() not in ("None", None)]
    assert [list(line.get_ydata()) for line in drawn[:3]] == [[0.5, 1]] * 3
    across = [line.get_xdata()[0] for line in drawn[:3]]
    assert len(set(across)) == 3  # beside each other
    assert all(abs(x - 2) < 0.3 for x in across)


def test_the_table_for_people(tmp_path):
    one = write_sweep(tmp_path / "1", "dqn-quick")
    two = write_sweep(tmp_path / "2", "ppo|quick", shares={"fp32": 1, "e5m6": 0.75}, seeds=1)
    compare([one, two], tmp_path, types=["svg"])
    said, empty, *table = (tmp_path / "relative.md").read_text().splitlines()
    assert said.startswith("Mean return as a share of fp32's (95 % bootstrap interval) by significand bits m")
    assert said.endswith("Runs of each format: 1 to 2.")
    assert empty == ""
    assert [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in (table[0], table[2], table[3])] == [
        ["sweep", "task", "condition", "fp32", "m = 10", "m = 6", "m = 2"],
        ["dqn", "gym:CartPole-v1", "e5mX", "400", "1.00 (0.82 to 1.22)", "", "0.50 (0.41 to 0.61)"],
        [r"ppo\|quick", "gym:CartPole-v1", "e5mX", "360", "", "0.75"],
    ]


@pytest.mark.parametrize(
    ("own", "names", "called"),
    [
        (["a-quick", "b"], (), ["a", "b"]),
        (["a-quick", "b"], ("SAC", "b, PPO"), ["SAC", "b, PPO"]),
        (["a-quick", "a"], (), ["a-quick", "a"]),
        (["a", "a"], (), ["a (1)", "a (2)"]),
        (["a-overnight", "b-quick"], (), ["a", "b"]),
        (["-quick", ""], (), ["-quick", "1"]),
        (["a-quick", "a-quick", "007"], (), ["a-quick (1)", "a-quick (2)", "007"]),
    ],
)
def test_names_of_sweeps(tmp_path, own, names, called):
    folders = [write_sweep(tmp_path / str(number), name) for number, name in enumerate(own)]
    compare(folders, tmp_path / "out", names=names, types=[])
    table = pd.read_csv(tmp_path / "out" / "relative.csv", dtype=str)
    assert list(dict.fromkeys(table["series"])) == list(dict.fromkeys(table["sweep"])) == called


def test_the_same_runs_give_the_same_bytes(tmp_path):
    folders = [write_sweep(tmp_path / name, name) for name in ("dqn", "ppo")]
    for out in ("one", "two"):
        compare(folders, tmp_path / out, types=["png", "svg", "pdf"])
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {f"relative.{kind}" for kind in ("csv", "png", "svg", "pdf", "md")}
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)
    written, _ = compare(folders[:1], tmp_path / "three", width="single", types=["pdf"])
    assert [path.name for path in written] == ["relative.csv", "relative-single.pdf", "relative.md"]


def test_what_cannot_be_compared_is_left_out_and_said(tmp_path):
    good = write_sweep(tmp_path / "good", "good", tasks=("gym:CartPole-v1", "gym:Pendulum-v1"))
    for result in (good / "runs").glob("*/result.json"):
        if int(result.parent.name.partition("-")[0]) >= 6:  # of the second task
            result.write_text(result.read_text().replace('"return": ', '"return": -'))
    no_fp32 = write_sweep(tmp_path / "no-fp32", "a", shares={"e5m10": 1})
    no_floats = write_sweep(tmp_path / "no-floats", "b", shares={"fp32": 1, "int8": 1, "posit16": 1})
    waiting = write_sweep(tmp_path / "waiting", "c")
    for result in (waiting / "runs").glob("*/result.json"):
        result.unlink()
    many = write_sweep(tmp_path / "many", "d", lr=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    for result in (many / "runs").glob("*-fp32-*/result.json"):
        if not result.parent.name.endswith("-7"):
            result.write_text(result.read_text().replace('"return": ', '"return": -'))
    loss = tmp_path / "loss"
    runs = [write_program_run(loss, fmt, seed, 1.0, metric=LOSS) for fmt in ("fp32", "e5m10") for seed in (0, 1)]
    write_program_sweep(loss, runs, metric=LOSS)
    without = "the mean of fp32 is -400, not above 0, and has no shares; left out"
    everything = [good, no_fp32, no_floats, waiting, many, loss, tmp_path / "missing"]
    _, warnings = compare(everything, tmp_path / "out", types=["svg"])
    assert set(lines(tmp_path / "out")["sweep"]) == {"good", "d"}
    assert "<!-- 2 sweeps: return" in (tmp_path / "out" / "relative.svg").read_text()
    assert [warning.partition(str(tmp_path))[2].lstrip("/") for warning in warnings] == [
        f"good: gym:Pendulum-v1: {without}",
        "no-fp32: no run in fp32 has ended to compare others with; left out",
        "no-floats: gym:CartPole-v1: no run in another floating-point format than fp32 has ended; left out",
        "waiting: none of its 6 runs has ended yet; continue with the command that started it; left out",
        *(f"many: gym:CartPole-v1, lr 0.{i}: {without}" for i in range(1, 6)),
        "many: 2 more like these; left out",
        "loss: is scored by loss, where less is better, so there are no shares; left out",
        "missing: does not exist; give the folder of a sweep, as `roundoff sweep` printed it; left out",
    ]
    with pytest.raises(AnalysisError, match=r"(?s)there is nothing to compare\n.*no-fp32: .*missing: does not exist"):
        compare([no_fp32, no_floats, tmp_path / "missing"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_open_runs_are_not_in_the_figure(tmp_path):
    folder = write_sweep(tmp_path / "1", "dqn")
    (folder / "runs" / "05-e5m2-0" / "result.json").unlink()
    _, (warning,) = compare([folder], tmp_path, types=[])
    assert warning.endswith("1 run has no score in the figure (1 waiting)")
    assert lines(tmp_path)["runs"].tolist() == [1, 2]


def test_a_condition_whose_fp32_runs_are_open_is_left_out(tmp_path):
    folder = write_sweep(tmp_path / "1", "dqn", lr=[0.1, 0.2])
    for result in (folder / "runs").glob("*-fp32-1/result.json"):
        result.unlink()
    _, warnings = compare([folder], tmp_path, types=[])
    assert warnings[1] == f"{folder}: gym:CartPole-v1, lr 0.2: no fp32 run has ended, so there are no shares; left out"
    assert set(lines(tmp_path)["condition"]) == {"e5mX, lr 0.1"}
    assert set(lines(tmp_path)["series"]) == {"dqn"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": "poster"}, "width 'poster': unknown width"),
        ({"types": ["gif"]}, "type 'gif': unknown type"),
        ({"names": ["a", "b"]}, "2 names for 1 folders: give each folder one"),
    ],
)
def test_mistakes(tmp_path, options, message):
    folder = write_sweep(tmp_path / "1", "dqn")
    with pytest.raises(AnalysisError, match=message):
        compare([folder], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
