"""Figures of the paper from finished runs: which runs belong, what the paper prints beside them, what is copied."""

import json
import re
import resource
import sys
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from roundoff.agents import Quantization
from roundoff.agents.errors import FileError
from roundoff.analysis import AnalysisError
from roundoff.analysis.paper.figure_content import REPRODUCIBLE
from roundoff.analysis.paper.published import PERFORMANCE, paper_of, performance_page, published
from roundoff.analysis.paper.reproduction import reproduce
from roundoff.analysis.tables.markdown import plain
from roundoff.cli import main
from roundoff.files import temporary_beside
from roundoff.sweeps import reproduction
from roundoff.sweeps.errors import SweepError
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.folder.leases import Lease
from roundoff.sweeps.language.preset_files import presets
from roundoff.sweeps.reproduction import find_reproduction, finished_elsewhere, take_over

FP16_AND_INT8 = ("fp32", "fp16", "int8")


@pytest.fixture(scope="module", autouse=True)
def presets_are_planned_once():
    """Figures of one preset share its plan, which nothing changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction, "plan_file", cache(reproduction.plan_file))
        yield


def finish(plan, directory, runs=None, score=lambda config: 100.0):
    """Writes what runs of the plan would have left; crashed where the score is 0."""
    store = SweepDirectory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    store.claim(plan)
    for run in plan.runs if runs is None else runs:
        folder = store.run_path(run)
        folder.mkdir(parents=True)
        config = {"config": run.config.as_json(), "version": "0.1.0"}
        value = score(run.config)
        crash = None if value else {"step": 10, "reason": "the policy took a non-finite action"}
        outcome = {"status": "done" if value else "crashed", "return": value, "return_std": 1.0, "step": 10}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 10, "return_mean": value}) + "\n")
        (folder / "result.json").write_text(json.dumps({**outcome, "crash": crash}))


def cells(page):
    """The cells of all lines of tables but the headings."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    return [line for line in lines if not line[0].startswith("-")][1:]


def test_every_figure_of_every_preset_can_be_drawn_and_every_printed_number_has_its_figure():
    named = {figure for preset in presets().values() for figure in preset.reproduces}
    assert named == {f"fig{i}" for i in range(1, 13)} | {"table7", "quarl-fig5"} | {
        f"accelerated-{name}"
        for name in ("fig2", "fig2-a3c", "fig2-ppo", "fig2-appo", "fig3", "fig5", "fig8", "table2")
    } | {"quarl-table4", "quarl-fig7", "actorq-table2", "actorq-fig3", "actorq-fig4", "actorq-fig4ab"}
    assert named <= set(REPRODUCIBLE)
    for name in [*REPRODUCIBLE, *PERFORMANCE]:
        for number in published(name):
            assert number.place
            assert float(number.value) >= 0 or number.quantity == "return"
    for name in REPRODUCIBLE:
        for size in ("quick", "paper"):
            plan, figures = find_reproduction(name, size)
            assert figures == [name]
            assert plan.name.endswith("-quick") == (size == "quick")
    assert find_reproduction("baselines", "quick")[1] == ["fig1", "fig8"]
    assert find_reproduction("fig4", "overnight")[0].name == "significand-overnight"
    with pytest.raises(SweepError) as raised:
        find_reproduction("fig1", "overnight")
    assert str(raised.value) == (
        "'fig1': there is no preset 'baselines-overnight'; allowed are the sizes quick, paper, or, for the size"
        " overnight, the subjects bits-by-role, cheapest-roles, eight-bit-search, eight-bits, next-fix,"
        " next-fix-limits, quality, rollouts-ppo, significand"
    )


def test_numbers_stand_beside_those_that_the_paper_prints(tmp_path):
    plan, _ = find_reproduction("fig1", "paper")
    level = {"naive": 0.0, "amp": 30.0}
    some = [run for run in plan.runs if run.config.task in ("finger_spin", "walker_walk") and run.config.seed < 2]
    finish(plan, tmp_path / "out", some, score=lambda config: level.get(config.baseline, 100.0 + 2 * config.seed))
    written, warnings = reproduce(tmp_path / "out", "fig1", ["svg"])
    assert [path.name for path in written] == ["fig1.csv", "fig1.svg", "fig1.md"]
    assert [warning.rpartition(": ")[2][:22] for warning in warnings] == ["156 runs have no score"]
    rows = cells(written[-1].read_text())
    assert [(row[0], row[3], row[5], row[6][:9]) for row in rows if "naive" in row[2] or row[1] == "fp32"] == [
        ("mean over tasks", "0 ± 0", "4", "0 (Figure"), ("mean over tasks", "101 ± 1", "0", ""),
        ("finger_spin", "0 ± 0", "2", ""), ("finger_spin", "101 ± 1", "0", ""),
        ("walker_walk", "0 ± 0", "2", ""), ("walker_walk", "101 ± 1", "0", ""),
    ]  # fmt: skip
    assert not any("amp" in row[2] or "eps" in row[2] for row in rows)  # they are Figure 8's
    page = reproduce(tmp_path / "out", "fig8", [])[0][-1].read_text()
    assert "baseline amp" in page
    assert "The paper prints no numbers for this figure." in page


def test_numbers_are_compared_only_with_the_same_hyperparameters(tmp_path):
    for size, beside in (("paper", 2), ("quick", 0)):
        plan, _ = find_reproduction("table7", size)
        finish(plan, tmp_path / size)
        page = reproduce(tmp_path / size, "table7", [])[0][-1].read_text()
        found = [row for row in cells(page) if "params 3" in row[-1] and "0.979" in row]
        assert len(found) == beside
        assert all(row[-2] == "18" for row in found)  # six tasks, three seeds
        assert ("settings that were not run here" in page) == (size == "quick")
        assert "872 ± 12" in page


def test_the_second_paper_is_named_and_only_numbers_of_one_quantity_stand_beside_ours(tmp_path):
    plan, figures = find_reproduction("accelerated-fig3", "quick")
    assert (plan.name, figures) == ("batches-quick", ["accelerated-fig3"])
    finish(plan, tmp_path / "out", score=lambda config: float(config.batch_size))
    written, _ = reproduce(tmp_path / "out", "accelerated-fig3", ["svg"])
    page = written[-1].read_text()
    assert "Stooke & Abbeel" in page
    assert "Björck" not in page
    assert "The paper prints no return for this figure." in page
    assert ["learning rate", "algorithm=dqn atoms=1 batch_size=512", "0.00075", "Appendix A.3"] in cells(page)
    table = pd.read_csv(written[0])
    assert list(table["batch_size"].unique()) == [32, 512, 2048]
    assert set(table.loc[table["batch_size"] == 512, "return"]) == {512.0}
    assert table["panel"].nunique() == 6  # two formats of DQN, C51, and C51 without fixes; lr and eps follow from those


def test_quantized_while_training_and_after_it_stand_beside_each_other(tmp_path):
    plan, figures = find_reproduction("quarl-fig5", "quick")
    assert (plan.name, figures) == ("qat-quick", ["quarl-fig5"])
    levels = {"fp32": 400.0, "int8_row": 390.0, "int6_row": 380.0, "int5_row": 370.0, "int4_row": 300.0,
              "int3_row": 200.0, "int2_row": 100.0}  # fmt: skip

    def score(config):
        return (0 if config.qat is None else 10) + levels[config.qat.format if config.qat else "fp32"] + config.seed

    crashed = [
        run for run in plan.runs if run.config.qat is None and (run.config.algorithm, run.config.seed) == ("a2c", 2)
    ]
    finish(plan, tmp_path / "out", [run for run in plan.runs if run not in crashed], score=score)
    (run,) = crashed
    folder = tmp_path / "out" / "runs" / run.id
    folder.mkdir(parents=True)
    result = {"status": "crashed", "return": 0.0, "return_std": 0.0, "step": 9, "crash": {"step": 9, "reason": ""}}
    (folder / "result.json").write_text(json.dumps(result))
    for run in plan.runs:
        folder = tmp_path / "out" / "runs" / run.id
        if run.config.evaluate_in and run not in crashed:
            step = json.loads((folder / "result.json").read_text())["step"]
            with (folder / "metrics.jsonl").open("a") as file:
                for name in run.config.evaluate_in:
                    score = levels[name] + run.config.seed
                    record = {"in": name, "return_mean": score, "return_std": 0.0, "returns": [score]}
                    file.write(json.dumps({"kind": "eval_in", "step": step, **record}) + "\n")
    written, _ = reproduce(tmp_path / "out", "quarl-fig5", ["svg"])
    page = written[-1].read_text()
    assert "Lam et al." in page
    assert "5/6-bit" in page
    found = {(row[0], row[1]): row[2:] for row in cells(page.replace("\\", ""))}
    formats = list(levels)
    assert [name for task, name in found if task == "gym:CartPole-v1, ppo"] == formats
    assert not any(task == "mean over tasks" for task, _ in found)  # their returns have no one unit
    assert found["gym:CartPole-v1, ppo", "fp32"] == ["", "401 [400, 402]", "", "3"]
    assert found["gym:CartPole-v1, ppo", "int4_row"] == ["301 [300, 302]", "", "311 [310, 312]", "3"]
    assert found["gym:CartPole-v1, a2c", "int4_row"] == ["200 [0, 301]", "", "311 [310, 312]", "3"]
    marks = pd.read_csv(written[0])
    assert set(marks["series"]) == {
        "intX, quantized after training", "intX, quantized while training", "fp32, quantized never",
    }  # fmt: skip
    assert set(marks["bits"]) == {32, 8, 6, 5, 4, 3, 2}


def test_norms_are_means_of_the_last_quarter_by_condition(tmp_path):
    plan, _ = find_reproduction("accelerated-fig8", "quick")
    finish(plan, tmp_path / "out")
    for run in plan.runs:
        norm = run.config.batch_size * (10 if run.config.optimizer == "rmsprop" else 1)
        lines = [(100, norm), (900, norm + 1), (1000, norm + 3), (1001, None)]
        records = [{"kind": "train", "step": step, "critic_weights_norm": value} for step, value in lines]
        with (tmp_path / "out" / "runs" / run.id / "metrics.jsonl").open("a") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))
    page = reproduce(tmp_path / "out", "accelerated-fig8", ["svg"])[0][-1].read_text()
    found = {row[1]: row[2:] for row in cells(page) if row[0] == "gym:CartPole-v1"}
    assert len(found) == 12
    assert found["fp32, batch_size 64, optimizer adam"] == ["3", "66"]
    assert found["e5m10, batch_size 256, optimizer rmsprop"] == ["3", "2.56e+03"]
    assert "The paper prints no norm for this figure." in page


def test_hours_are_those_of_the_runs_and_stand_beside_those_of_gpus_alone(tmp_path):
    for size in ("quick", "paper"):
        plan, _ = find_reproduction("accelerated-table2", size)
        folder = tmp_path / size
        finish(plan, folder)
        for run in plan.runs:
            seconds = {"fp32": 36.0, "e5m10": 72.0}[run.config.format] / run.config.learners
            (folder / "runs" / run.id / "timing.json").write_text(json.dumps({"seconds": seconds}))
        page = reproduce(folder, "accelerated-table2", ["svg"])[0][-1].read_text()
        rows = [row for row in cells(page) if "learners 2" in row[2] and "a2c" in row[2] and row[1] == "fp32"]
        # 10 steps in 18 s; the single learner of an asynchronous run is the synchronous one.
        assert {tuple(row[3:6]) for row in rows} == {("2.5e+04", "2.00", "1")}
        assert [row[6] for row in rows] == (["2.2 (Table 2)"] if size == "paper" else ["", ""])


def test_runs_that_show_something_else_are_refused(tmp_path):
    plan, _ = find_reproduction("fig11", "quick")
    finish(plan, tmp_path / "out", runs=plan.runs[:1])
    with pytest.raises(AnalysisError, match="do not show fig11"):
        reproduce(tmp_path / "out", "fig11")


def test_runs_of_a_folder_beside_are_taken_over_once(tmp_path):
    done, _ = find_reproduction("fig12", "quick")
    finish(done, tmp_path / done.name, runs=done.runs[:-1])
    plan, _ = find_reproduction("fig2", "quick")
    shared = {run.id for run in done.runs[:-1]} & {run.id for run in plan.runs}
    assert len(shared) > 2
    other, earlier, taken = sorted(shared)[:3]
    config = tmp_path / done.name / "runs" / earlier / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"version": "0.0.1"}))
    begun = tmp_path / plan.name / "runs" / other
    SweepDirectory(tmp_path / plan.name).claim(plan)
    begun.mkdir(parents=True)
    (begun / "config.json").write_text("{}")
    expected = shared - {other, earlier}
    assert set(finished_elsewhere(plan, tmp_path / plan.name)) == expected
    store = SweepDirectory(tmp_path / plan.name)
    lease = Lease.take(store.leases, taken, 1, lambda: None)
    assert take_over(plan, tmp_path / plan.name) == len(expected) - 1
    lease.release(ended=True)
    assert take_over(plan, tmp_path / plan.name) == 1
    assert {run.id for run in plan.runs if store.state(run) == "done"} == expected
    assert take_over(plan, tmp_path / plan.name) == 0
    assert not list((tmp_path / plan.name).glob(".roundoff*"))


def test_a_copy_that_fails_leaves_nothing_and_what_a_killed_one_left_is_removed(tmp_path):
    plan, _ = find_reproduction("fig12", "quick")
    finish(plan, tmp_path / "beside", runs=plan.runs[:1])
    folder = tmp_path / "out"
    agent = tmp_path / "beside" / "runs" / plan.runs[0].id / "agent.pt"
    agent.write_bytes(bytes(1 << 20))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))  # as a full disk, with another reason
    try:
        with pytest.raises(FileError, match=f"{plan.runs[0].id}: cannot be written .*File too large.*free space"):
            take_over(plan, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((folder / "runs").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "runs", "sweep.json"]
    (temporary_beside(folder / "runs") / "half").mkdir(parents=True)
    assert take_over(plan, folder) == 1
    assert (folder / "runs" / plan.runs[0].id / "agent.pt").stat().st_size == 1 << 20
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "runs", "sweep.json"]


def test_a_wrong_name_gets_the_nearest_and_all_that_are_allowed():
    with pytest.raises(
        SweepError,
        match=r"did you mean 'fig4'\? allowed are fig1, .*fig12, table2, table7, accelerated-fig2, .*ablation",
    ):
        find_reproduction("figg4", "quick", ["table2"])


def test_the_command(tmp_path, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["roundoff", "reproduce", *arguments, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    plan, _ = find_reproduction("exponent-bits", "quick")
    finish(plan, tmp_path / plan.name)
    status, said = call("exponent-bits", "--type", "svg")
    assert status == 0
    assert "nothing to do, 14 finished before" in said.out
    assert said.out.splitlines()[-1].endswith("exponent-bits-quick/exponent-bits.md")
    status, said = call("fig4", "--dry-run", "--no-estimate")
    assert (status, said.err) == (0, "")
    assert "32 runs, 1408000 environment steps" in said.out
    assert [path.name for path in tmp_path.iterdir()] == [plan.name]
    assert call("fig13")[0] == 2
    assert call("fig4", "--type", "gif")[0] == 2
    status, said = call("table10")
    assert status == 0
    assert ["units 4096, batch 4096", "202.38", "45.64", "4.43"] in cells(said.out)


def test_text_stays_text():
    assert plain("a|b\n<i> [x](y) `c` *d*") == r"a\|b \<i> \[x](y) \`c\` \*d\*"


def test_pages_of_performance_name_measurements_that_exist():
    for name in PERFORMANCE:
        modules = re.findall(r"python -m bench\.(\w+)", performance_page(name))
        assert len(modules) == (name != "accelerated-table1")  # nothing measures that
        assert all((Path(__file__).parents[2] / "bench" / f"{module}.py").exists() for module in modules)


def test_pages_of_performance_hold_the_printed_numbers_and_their_ratios():
    page = performance_page("accelerated-table3")
    assert "Stooke & Abbeel" in page
    assert "Table 3" in page
    assert ["simulators 512, a_core 16", "35.8", "38.4", "1.21", "1.20"] in cells(page)
    scores = cells(performance_page("accelerated-table1"))
    assert ["algorithm PPO, environments 128", "9.8", "0.97"] in scores
    assert len(scores) == 11


def quantized_runs(plan, directory, score, runs=None):
    """Runs whose policies were evaluated quantized, at step 5 and at the end."""
    finish(plan, directory, runs)
    for run in plan.runs if runs is None else runs:
        folder = SweepDirectory(directory).run_path(run)
        names = [str(Quantization.parse(one)) for one in run.config.evaluate_in]
        lines = [
            json.dumps({"kind": "eval_in", "step": step, "in": name, "return_mean": value})
            for name in names
            for step, value in ((5, -1e6), (10, score(run.config, name)))
        ]
        with (folder / "metrics.jsonl").open("a") as file:
            file.write("\n".join([*lines, ""]))


def test_policies_quantized_after_training_stand_beside_the_papers(tmp_path):
    plan, figures = find_reproduction("quantized", "quick")
    assert figures == ["quarl-table4", "quarl-fig7"]
    lost = {"quarl8": 1.0, "quarl2": 50.0, "quarl16": 0.0, "int8_ax0": 2.0, "quarl16_affine": 3.0}
    quantized_runs(plan, tmp_path, lambda config, name: 100 - lost.get(name, 0) - 2 * config.seed)
    table4, fig7 = (reproduce(tmp_path, name, ["svg"]) for name in figures)
    assert table4[1] == fig7[1] == ()
    rows = [row for row in cells((tmp_path / "quarl-table4.md").read_text()) if row[:2] == ["dqn", "gym:CartPole-v1"]]
    assert [row[2] for row in rows] == ["fp32", "fp16 weights", "8-bit weights", "int8, and activations"]
    assert [row[4] for row in rows] == ["", "-2", "-3", "-4"]  # seeds 0 to 2 lose 0, 2 and 4 more
    assert rows[2][3] == "97.0 ± 2.0"
    assert rows[2][5] == "-7.97 to +1.97"  # 3 -+ 4.303 * 2 / sqrt(3)
    assert [row[-1] for row in rows] == [*(f"500 (Table 4, DQN, CartPole, {name})" for name in FP16_AND_INT8), ""]
    of_bits = [row[2] for row in cells((tmp_path / "quarl-fig7.md").read_text()) if row[0] == "d4pg"]
    wide, narrow = ["quarl16_affine", "quarl12", "quarl10"], [f"quarl{n}" for n in (7, 6, 5, 4, 3, 2)]
    assert of_bits == ["fp32", *wide, "8-bit weights", *narrow]
    points = pd.read_csv(tmp_path / "quarl-fig7.csv")
    two = points[(points["format"] == "quarl2") & (points["kind"] == "mean") & (points["task"] == "gym:Pendulum-v1")]
    assert two[["bits", "return"]].to_numpy().tolist() == [[2, 48]]


def test_dqn_and_c51_on_the_same_game_are_kept_apart(tmp_path):
    plan, _ = find_reproduction("quantized", "paper")
    runs = [run for run in plan.runs if run.config.task == "minatar:breakout" and run.config.seed < 2]
    assert sorted(run.config.algorithm for run in runs) == ["a2c"] * 2 + ["dqn"] * 4 + ["ppo"] * 2
    c51 = [run for run in runs if run.config.algorithm == "dqn" and run.config.atoms > 1]
    assert {run.config.support for run in c51} == {(-10, 10)}
    quantized_runs(plan, tmp_path, lambda config, name: 90 - getattr(config, "atoms", 1) - config.seed, runs)
    reproduce(tmp_path, "quarl-table4", [])
    rows = [row for row in cells((tmp_path / "quarl-table4.md").read_text()) if "8-bit weights" in row]
    found = {(algorithm, atoms): difference for algorithm, _, atoms, _, _, difference, *_ in rows}
    assert found == {("a2c", ""): "-11.5", ("dqn", "1"): "-11.5", ("dqn", "51"): "-61.5", ("ppo", ""): "-11.5"}


def test_runs_that_quantized_nothing_are_told(tmp_path):
    plan, _ = find_reproduction("quantized", "quick")
    finish(plan, tmp_path)
    with pytest.raises(AnalysisError, match="evaluate_in"):
        reproduce(tmp_path, "quarl-table4", ["svg"])


def test_every_number_of_the_papers_table_4_is_there():
    numbers = published("quarl-table4")
    assert len(numbers) == 3 * (12 + 8 + 12 + 4)
    of = {(number.settings["algorithm"], number.place): number.value for number in numbers}
    assert len(of) == len(numbers)
    assert of["dqn", "Table 4, DQN, Breakout, int8"] == "78"
    assert of["ppo", "Table 4, PPO, HalfCheetah, fp16"] == "3062"
    assert of["d4pg", "Table 4, DDPG, MountainCar, int8"] == "92"


def test_the_third_paper_has_its_numbers():
    numbers = published("actorq-table6")
    assert len(numbers) == 15
    speedup = {one.settings["policy"]: float(one.value) for one in numbers if one.quantity == "speedup"}
    times = {(one.settings["policy"], one.settings["format"]): float(one.value) for one in numbers if one.unit == "ms"}
    for policy, printed in speedup.items():
        assert times[policy, "fp32"] / times[policy, "int8"] == pytest.approx(printed, rel=0.01)
    assert paper_of("actorq-table6").startswith("Lam et al.")


def with_actor_times(plan, directory, curves):
    """Finished runs of ``actorq-quick`` on one task: the returns at 1000, 2000, 3000 steps, and seconds of 1000 steps.

    Args:
        curves: by format and period of the actors.
    """
    runs = [run for run in plan.runs if run.config.task == "gym:CartPole-v1"]
    finish(plan, directory, runs)
    store = SweepDirectory(directory)
    for run in runs:
        actors = run.config.actors
        returns, seconds = curves[actors.format, actors.pull_every]
        lines = [{"kind": "eval", "step": 1000 * (i + 1), "return_mean": value} for i, value in enumerate(returns)]
        lines.append({"kind": "pull", "step": 10, "actor": 0, "version": 3, "staleness": 1, "kl": None})
        path = store.run_path(run)
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        spent = {"step": seconds, "environment": 1.0, "pull": 0.5, "deserialize": 0.25, "load": 0.25}
        actor = {"steps": 2000, "spent": {name: 2 * value for name, value in spent.items()}}
        clock = [[1000 * (i + 1), (i + 1) * seconds] for i in range(3)]
        (path / "timing.json").write_text(json.dumps({"actors": [actor, actor], "actor_clock": clock}))


def test_actors_are_timed_until_the_learner_has_95_percent_of_what_fp32_reaches(tmp_path):
    plan, _ = find_reproduction("actorq-table2", "quick")
    curves = {
        ("fp32", 1000): ([100.0, 480.0, 500.0], 4.0),  # 475 is reached at 2000
        ("int8", 1000): ([475.0, 200.0, 500.0], 2.0),
        ("e5m10", 1000): ([474.0, 474.0, 474.0], 4.0),
        ("e8m7", 1000): ([0.0, 0.0, 475.0], 1.0),
        ("e4m3", 1000): ([0.0, 0.0, 0.0], 1.0),
        ("fp32", 30): ([0.0, 0.0, 475.0], 8.0),
        ("int8", 30): ([0.0, 475.0, 475.0], 6.0),
    }
    with_actor_times(plan, tmp_path / "out", curves)
    page = reproduce(tmp_path / "out", "actorq-table2", ["svg"])[0][-1].read_text()
    rows = {(row[1], row[3]): row for row in cells(page) if row[0] == "gym:CartPole-v1"}
    columns = {"level": 4, "steps": 5, "seconds": 6, "speedup": 7, "paper": 10}
    found = {key: [row[i] for i in columns.values()] for key, row in rows.items()}
    assert found["fp32", "1000"] == ["475", "2000", "8", "1.00", "963.67 (Table 2, Cartpole (Gym))"]
    assert found["int8", "1000"] == ["475", "1000", "2", "4.00", "260.10 (Table 2, Cartpole (Gym))"]
    assert found["e5m10", "1000"] == ["475", "", "", "", "535.09 (Table 2, Cartpole (Gym))"]
    assert found["e8m7", "1000"] == ["475", "3000", "3", "", ""]  # by another engine than fp32's
    assert found["int8", "30"] == ["475", "2000", "12", "2.00", ""]
    assert "3.70" in page  # the speedup that is printed
    page = reproduce(tmp_path / "out", "actorq-fig4", ["svg"])[0][-1].read_text()
    (row,) = (row for row in cells(page) if row[1:4] == ["int8", "onnxruntime", "1000"])
    assert row[4:] == ["2", "1", "0.5", "0.25", "0.25", "33 %", "1"]
    bars = pd.read_csv(tmp_path / "out/actorq-fig4.csv")
    assert len(bars) == 7
    assert set(bars["n"]) == {1}


def test_what_is_sent_is_told_apart_from_what_is_computed(tmp_path):
    plan, _ = find_reproduction("actorq-fig4ab", "quick")
    finish(plan, tmp_path / "out")
    store = SweepDirectory(tmp_path / "out")
    for run in plan.runs:
        keys = run.config.actors
        sent = {"fp32": 4.0, "e5m10": 2.0, "int8": 1.0}[keys.communicate or keys.format]
        spent = {"step": 8.0, "environment": 1.0, "pull": sent, "deserialize": 0.5, "load": 0.5}
        timing = {"actors": [{"steps": 1000, "spent": spent}], "actor_clock": [[1000, 5.0]]}
        (store.run_path(run) / "timing.json").write_text(json.dumps(timing))
    page = reproduce(tmp_path / "out", "actorq-fig4ab", ["svg"])[0][-1].read_text()
    rows = {(row[1], row[3]): row[6] for row in cells(page) if row[0] == "cartpole_balance"}
    for every in ("1000", "30"):
        own = {name: pull for (name, often), pull in rows.items() if often == every}
        assert own == {"fp32": "4", "fp32, sent in e5m10": "2", "fp32, sent in int8": "1", "int8": "1"}


def test_how_often_actors_pull_has_a_curve_each(tmp_path):
    plan, _ = find_reproduction("actorq-fig3", "quick")
    finish(plan, tmp_path / "out")
    for run in plan.runs:
        points = [{"kind": "eval", "step": step, "return_mean": 100.0} for step in (11000, 22000)]
        path = SweepDirectory(tmp_path / "out").run_path(run) / "metrics.jsonl"
        path.write_text("".join(json.dumps(point) + "\n" for point in points))
    reproduce(tmp_path / "out", "actorq-fig3", ["svg"])
    curves = pd.read_csv(tmp_path / "out/actorq-fig3.csv")
    assert sorted(set(curves["actors.pull_every"])) == [1, 30, 300, 1000]
    assert set(curves["n"]) == {5}


def test_runs_whose_actors_left_no_times_are_left_out(tmp_path):
    plan, _ = find_reproduction("actorq-fig4", "quick")
    finish(plan, tmp_path / "out")
    with pytest.raises(AnalysisError, match="its ended runs do not show actorq-fig4"):
        reproduce(tmp_path / "out", "actorq-fig4", [])


def test_the_page_about_reproducing_names_every_figure():
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text(encoding="utf-8")
    assert [name for name in REPRODUCIBLE if f"`{name}`" not in page] == []
