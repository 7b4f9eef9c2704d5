"""Runs kept in the repository as text, and put into a sweep's folder again."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bench import folders, kept_runs, next_fix, peers
from scipy import stats

from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.statistics.comparisons import difference, holm
from roundoff.analysis.statistics.equivalence import equivalence, in_words
from roundoff.analysis.tables.against_fp32 import against_reference
from roundoff.analysis.tables.pareto import pareto_table
from roundoff.analysis.tables.summary import summarize

DATA = Path(__file__).parents[1] / "docs" / "data" / "next-fix-overnight.jsonl"
RESEARCH = DATA.parents[1] / "research"
PAGE = RESEARCH / "next-fix.md"
FP32 = "fp32, six fixes"
FIXES = ("six fixes", "with all four")


def test_kept_runs_are_those_of_the_folder(tmp_path):
    made = folders.make(tmp_path / "made", 20)
    for run in (made / "runs").iterdir():
        (run / "timing.json").write_text("{}")
    (made / "runs" / "waiting").mkdir()
    assert kept_runs.keep(made, tmp_path / "kept.jsonl") == 20
    again = tmp_path / "again"
    again.mkdir()
    (again / "sweep.json").write_bytes((made / "sweep.json").read_bytes())
    assert kept_runs.lay(tmp_path / "kept.jsonl", again) == 20
    before, after = read_experiment(made), read_experiment(again)
    assert before.runs.equals(after.runs)
    assert before.curves.equals(after.curves)
    assert not after.warnings
    (next((again / "runs").iterdir()) / "result.json").unlink()
    assert kept_runs.lay(tmp_path / "kept.jsonl", again) == 1


def test_the_page_about_the_next_fix_is_what_its_kept_runs_say():
    runs = next_fix.runs_of()
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert (len(runs), set(runs["seed"]), set(runs["status"])) == (192, set(range(4, 20)), {"done"})
    for text in next_fix.tables(runs).values():
        assert " ".join(text.split()) in page, text
    found = []
    for task in next_fix.TASKS:  # primary (1), by scipy
        ours, plain = (list(next_fix.scores_of(runs, case, task).values()) for case in ("e4m3, with all four", FP32))
        differences = [np.subtract(ours, factor * np.array(plain)) for factor in (0.95, 1.05)]
        sides = [
            stats.ttest_1samp(x, 0, alternative=to).pvalue
            for x, to in zip(differences, ("greater", "less"), strict=True)
        ]
        found.append(max(sides))
    shown = [f"{p:.2g} | {adjusted:.2g}" for p, adjusted in zip(found, holm(found), strict=True)]
    assert all(f" % | {p} | 0 of 16" in page for p in shown), shown
    assert [adjusted < 0.05 for adjusted in holm(found)] == [False, True]
    for task in next_fix.TASKS:  # primary (2)
        ours, six = (
            list(next_fix.scores_of(runs, f"e5m3, {what}", task).values())
            for what in ("with stochastic compensation", "six fixes")
        )
        assert f"| {stats.ttest_rel(ours, six).pvalue:.2g} |" in page


def test_what_the_page_about_the_next_fix_says_in_words_is_so():
    runs = next_fix.runs_of()
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    below = [next_fix.failures(runs, f"e4m3, {what}", task).split()[0] for what in FIXES for task in next_fix.TASKS]
    assert sum(map(int, below[:2])) == 31
    assert below[2:] == ["0", "0"]
    files = (DATA.parents[2] / "README.md", RESEARCH / "results.md")
    fronts = [" ".join(file.read_text(encoding="utf-8").split()) for file in files]
    assert "no run fails on two tasks with 16 seeds each. Without them 31 of 32 fail." in fronts[0]
    assert "no run in e4m3 fails, and nearly all fail without them. It is equivalent" in fronts[1]
    assert "None of 32 runs fails on two tasks; with only the six fixes 31 of 32 fail." in page
    ours, plain = ([next_fix.scores_of(runs, case, "cartpole_swingup")] for case in ("e4m3, with all four", FP32))
    share, (least, most), *_ = equivalence(ours, plain)
    assert f"e4m3 returns {-100 * share:.0f} % less, and the interval" in page
    assert f"reaches from {-100 * least:.0f} % less to {100 * most:.1f} % more" in page
    others = runs[runs["seed"] != 12]
    sides = [[next_fix.scores_of(others, case, "cartpole_swingup")] for case in ("e4m3, with all four", FP32)]
    value, (low, high), p, _ = difference(*sides)
    assert f"e4m3 returns {-value:.0f} ({-high:.0f} to {-low:.0f}; p {p:.2g}) less than fp32" in page
    values = pd.read_csv(next_fix.VALUES)
    means = values.pivot_table(index="task", columns="case", values="value")
    shares = means["e4m3, with all four"] / means[FP32]
    said = [f"{100 * (1 - shares[task]):.0f}" for task in next_fix.TASKS]
    assert f"but in e4m3 they remain {said[0]} and {said[1]} % below fp32" in page
    assert (means["e4m3, six fixes"] / means[FP32]).max() < 0.14  # "far below the 14 to 24 of 100 steps"


def test_the_figure_of_the_next_fix_is_drawn_from_the_kept_runs(tmp_path):
    table = next_fix.marks_of(next_fix.runs_of())
    table.to_csv(tmp_path / "marks.csv", index=False, float_format="%.10g")
    assert (tmp_path / "marks.csv").read_text() == next_fix.FIGURE.with_suffix(".csv").read_text()


SIGNIFICAND = DATA.with_name("significand-quick.csv")


def significand_tables(folder):
    """The table of results.md about significand bits, from the scores of its runs; and their summary."""
    kept_runs.lay_scores(SIGNIFICAND, folder)
    experiment = read_experiment(folder)
    summary, against = summarize(experiment), against_reference(experiment).set_index("format")
    head = ["format, all six fixes", "return", "std", "below half way", "difference", "relative difference, 90 %"]
    head += ["p of equivalence", "difference over the curve", "answer"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * 9]
    for row in summary.to_dict("records"):
        mean = f"{row['mean']:.0f} ({row['ci_low']:.0f} to {row['ci_high']:.0f})"
        cells = [row["format"], mean, f"{row['std']:.0f}"]
        if row["format"] == "fp32":
            lines.append(f"| {' | '.join([*cells, *[''] * 6])} |")
            continue
        found = against.loc[row["format"]]
        cells += [f"{found['unlearned']} of {found['learnable']}"]
        cells += [f"{found['difference']:+.0f} ({found['difference_low']:+.0f} to {found['difference_high']:+.0f})"]
        cells += [f"{100 * found['share_low']:+.1f} to {100 * found['share_high']:+.1f} %"]
        cells += [f"{found['p_equivalent']:.2g}", f"{found['area_difference']:+.0f} (p {found['area_p_holm']:.2g})"]
        lines.append(f"| {' | '.join([*cells, found['answer']])} |")
    return "\n".join(lines), summary.set_index("format")


def test_the_table_of_significand_bits_is_that_of_sixteen_seeds(tmp_path):
    text, summary = significand_tables(tmp_path / "runs")
    assert set(summary["n"]) == {16}
    page = (RESEARCH / "results.md").read_text(encoding="utf-8")
    assert text in page, text
    wide = [f"{summary.loc[f'e5m{m}', 'mean']:.0f}" for m in (10, 8, 6, 5, 4)]
    front = " ".join((DATA.parents[2] / "README.md").read_text(encoding="utf-8").split())
    words = {"fp32": "at a mean return of {}.", "e5m3": "with three bits at {},", "e5m2": "with two at {} ("}
    for name, said in words.items():
        assert said.format(f"{summary.loc[name, 'mean']:.0f}") in front
    assert f"With ten to four bits it ends at {min(wide)} to {max(wide)}," in front


def test_fp32_without_fixes_is_compared_as_its_runs_say():
    found = []
    for name in ("fp32-without-fixes", "significand-quick"):
        table = pd.read_csv(DATA.with_name(f"{name}.csv"))
        table = table[table["format"] == "fp32"].set_index("seed")
        assert len(table) == 16
        found.append(table)
    by_return, by_area = (difference(*([dict(table[kind])] for table in found)) for kind in ("return", "area"))
    equal = equivalence(*([dict(table["return"])] for table in found))
    page = " ".join((RESEARCH / "results.md").read_text(encoding="utf-8").split())
    assert f"fp32 without any fix returns {found[0]['return'].mean():.0f} and is equivalent" in page
    spans = [f"{one.value:+.0f} ({one.interval.low:.0f} to {one.interval.high:+.0f}" for one in (by_return, by_area)]
    assert f"the difference is {spans[0]}; p of equivalence {equal.p:.2g})" in page
    assert f"over the curve {spans[1]}, p {by_area.p:.2g})" in page


PEERS = ("sac-peers-quick", "td3-peers-quick", "a2c-peers-quick", "initial-weights-quick")


@pytest.mark.parametrize("name", PEERS)
def test_the_tables_of_peers_are_those_of_the_kept_runs(name, capsys):
    peers.main([str(DATA.with_name(f"{name}.csv"))])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) >= 3
    page = (RESEARCH / "results-algorithms.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page, "\n".join(rows)


def test_scores_are_those_of_the_runs(tmp_path):
    made = folders.make(tmp_path / "made", 20)
    assert kept_runs.scores(made, tmp_path / "scores.csv") == 20
    kept_runs.lay_scores(tmp_path / "scores.csv", tmp_path / "again")
    before, after = (against_reference(read_experiment(path)) for path in (made, tmp_path / "again"))
    columns = ["task", "format", "difference", "p_equivalent", "area_difference", "answer"]
    assert before[columns].round(6).equals(after[columns].round(6))


def table_against_fp32(rows, means, seeds, name):
    """A table of results-sac.md: what a case is beside fp32, of the table of all comparisons, and both means."""
    head = [f"{seeds} seeds", "fp32", name, "difference, 95 %", "relative difference, 90 %"]
    head += ["p of equivalence within 5 %", "p (Holm)"]
    lines = [f"| {' | '.join([*head, 'below half way', 'answer'])} |", "|" + "---|" * 9]
    for row in rows.sort_values("task", key=lambda tasks: tasks == "all", kind="stable").to_dict("records"):
        if row["normalized"]:  # each by its untrained policy and fp32
            cells = ["all, normalized", "", "", ""]
        else:
            cells = [row["task"], *(f"{mean:.0f}" for mean in means[row["task"]])]
            cells += [f"{row['difference']:+.0f} ({row['difference_low']:+.0f} to {row['difference_high']:+.0f})"]
        cells += [f"{100 * row['share_low']:+.1f} to {100 * row['share_high']:+.1f} %"]
        cells += [f"{row[kind]:.2g}" for kind in ("p_equivalent", "p_equivalent_holm")]
        cells += ["" if row["normalized"] else f"{row['unlearned']} of {row['learnable']}", row["answer"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables_of_eight_bits(folder):
    """The tables of results-sac.md about fp16 and eight bits, from the scores of their runs, by case."""
    kept_runs.lay_scores(DATA.with_name("eight-bits-overnight.csv"), folder)
    experiment = read_experiment(folder)
    returns = experiment.runs.groupby(["task", "case"])["return"].agg(["mean", "count"])
    assert set(returns["count"]) == {10}
    means = returns["mean"].unstack()  # noqa: PD010  of series
    return {
        case: table_against_fp32(rows, means[["fp32", case]].T, "ten", case)
        for case, rows in against_reference(experiment).groupby("case")
    }


def table_of_the_papers_tasks(folder, format="e5m10", name="fp16", file="paper-256-e4m3"):
    """The table of results-sac.md about the paper's tasks that have ended in a format, and what it is made of."""
    for kept in ("paper-256", file):
        kept_runs.lay(DATA.with_name(f"{kept}.jsonl"), folder)
    runs = read_experiment(folder / "runs").runs
    counts = runs.groupby(["task", "format"]).size().unstack(fill_value=0)[["fp32", format]]  # noqa: PD010
    whole = counts.index[(counts == 5).all(axis=1)]
    for run in runs.loc[~(runs["task"].isin(whole) & runs["format"].isin(["fp32", format])), "id"]:  # no part in it
        shutil.rmtree(folder / "runs" / run)
    experiment = read_experiment(folder / "runs")
    rows = against_reference(experiment)
    means = experiment.runs.groupby(["task", "format"])["return"].mean().unstack()[["fp32", format]].T  # noqa: PD010
    return table_against_fp32(rows, means, "five", name), rows


def test_the_table_of_the_papers_tasks_is_that_of_the_kept_runs(tmp_path):
    table, rows = table_of_the_papers_tasks(tmp_path / "runs")
    page = " ".join((RESEARCH / "results-sac.md").read_text(encoding="utf-8").split())
    assert " ".join(table.split()) in page, table
    ended = rows[rows["task"] != "all"].to_dict("records")
    for row in ended:
        area = [f"{row[name]:.0f}" for name in ("area_difference", "area_difference_low", "area_difference_high")]
        where = f"by {area[0]} on {row['task'].replace('_', ' ')} ({area[1]} to {area[2]}, p {row['area_p_holm']:.2g}"
        assert where in page
        assert f"up to {100 * row['unlearned_high']:.0f} % can still fail. A run of" in page
    assert f"{['One', 'Two', 'Three', 'Four', 'Five'][len(ended) - 1]} tasks of six have ended" in page
    runs = read_experiment(tmp_path / "runs" / "runs").runs
    lowest = runs.sort_values("return").groupby("task").first().loc["reacher_easy"]
    assert f"one run of {lowest['format']}, seed {lowest['seed']}, ended at {lowest['return']:.0f}" in page
    cheetah = runs[(runs["task"] == "cheetah_run") & (runs["format"] == "fp32")]["return"]
    assert f"({cheetah.min():.0f} to {cheetah.max():.0f} on cheetah run;" in page
    (mean,) = rows[rows["task"] == "all"].to_dict("records")
    area, low, high = (100 * mean[f"area_difference{end}"] for end in ("", "_low", "_high"))
    assert (
        f"fp16's return over the curve is {area:.1f} % higher ({low:.1f} to {high:.1f} %, p {mean['area_p_holm']:.2g})"
        in page
    )


def test_the_table_of_the_papers_tasks_in_e4m3_is_that_of_the_kept_runs(tmp_path):
    table, _ = table_of_the_papers_tasks(tmp_path / "runs", "e4m3", "e4m3")
    page = " ".join((RESEARCH / "results-sac.md").read_text(encoding="utf-8").split())
    assert " ".join(table.split()) in page, table
    _, *kept = map(json.loads, DATA.with_name("paper-256-e4m3.jsonl").read_text(encoding="utf-8").splitlines())
    curves = pd.DataFrame({row["run"]: {one["step"]: one["return_mean"] for one in row["evaluations"]} for row in kept})
    mean, ends = curves.mean(axis=1), [f"{end:.0f}" for end in curves.iloc[-1]]
    best = f"their mean return is highest, {mean.max():.0f}, after {mean.idxmax():,} steps".replace(",0", " 0")
    assert f"{best}, and falls to {mean.iloc[-1]:.0f}. The runs of seeds 0 to 4 end at {', '.join(ends)};" in page
    exact, _ = table_of_the_papers_tasks(tmp_path / "exact", "e4m3", "e4m3, exact errors", "exact-errors-256")
    assert " ".join(exact.split()) in page, exact
    for name in ("results.md", "next-fix.md"):
        text = " ".join((RESEARCH / name).read_text(encoding="utf-8").split())
        assert f"rise to {mean.max():.0f}" in text
        assert f"fall to {mean.iloc[-1]:.0f}" in text
    _, *kept = map(json.loads, DATA.with_name("long-128.jsonl").read_text(encoding="utf-8").splitlines())
    lasts = {}
    for row in kept:
        config = row["config"]["config"]
        case = "fp32" if config["format"] == "fp32" else "exact" if "exact_errors" in config["fixes"] else "targets"
        last = [one["return_mean"] for one in row["evaluations"] if one["kind"] == "eval"][-5:]
        lasts.setdefault(case, {})[config["seed"]] = sum(last) / 5
    assert {tuple(sorted(own)) for own in lasts.values()} == {(4, 5, 6, 7, 8)}
    for case, words in (("fp32", "fp32"), ("exact", "e4m3, exact errors"), ("targets", "e4m3, stochastic targets")):
        own = lasts[case]
        each = ", ".join(f"{own[seed]:.0f}" for seed in sorted(own))
        cells = f"| {words} | {sum(own.values()) / 5:.0f} ({each}) |"
        if case != "fp32":
            by, same = difference([own], [lasts["fp32"]]), equivalence([own], [lasts["fp32"]])
            cells += f" {by.value:.0f} ({by.interval.low:.0f} to {by.interval.high:.0f}) |"
            cells += f" {100 * same.interval.low:.1f} to {100 * same.interval.high:.1f} % | {same.p:.2g} |"
        assert cells in page, cells
    by = difference([lasts["exact"]], [lasts["targets"]])
    assert f"returns {by.value:.0f} ({by.interval.low:.0f} to {by.interval.high:.0f}, p {by.p:.1g}) more" in page


def test_the_table_of_matrix_units_is_that_of_the_kept_runs():
    losses = pd.read_csv(DATA.with_name("units-of-characters.csv")).pivot_table("return", "case", "seed", sort=False)
    cases = {case: own.to_dict() for case, own in losses.iterrows()}
    page = (RESEARCH.parent / "hardware.md").read_text(encoding="utf-8")
    for case, own in cases.items():
        cells = f"| {case} | {sum(own.values()) / 5:.3f} |"
        if case != "FP8 with float32 sums":
            by = difference([own], [cases["FP8 with float32 sums"]])
            cells += f" {by.value:+.4f} ({by.interval.low:+.4f} to {by.interval.high:+.4f}) |"
        assert cells in page, cells


def test_the_tables_of_fp16_and_eight_bits_are_those_of_the_kept_runs(tmp_path):
    page = (RESEARCH / "results-sac.md").read_text(encoding="utf-8")
    tables = tables_of_eight_bits(tmp_path / "runs")
    assert set(tables) == {"fp16", "eight bits"}
    for table in tables.values():
        assert table in page, table


def table_of_cases(name, folder):
    """A table of returns by case, the best first, from the scores of a sweep on one task."""
    kept_runs.lay_scores(DATA.with_name(f"{name}.csv"), folder)
    returns = pd.read_csv(DATA.with_name(f"{name}.csv")).sort_values("seed").set_index("case")
    lines = ["| case | mean return, 95 % | of each seed (x: it crashed) |", "|---|---|---|"]
    summary = summarize(read_experiment(folder)).sort_values("mean", ascending=False, kind="stable")
    for row in summary.to_dict("records"):
        own = returns.loc[row["case"]]
        assert len(own) == row["n"] == 5
        each = [f"{one:.0f}" if how == "done" else "x" for how, one in zip(own["status"], own["return"], strict=True)]
        mean = f"{row['mean']:.0f} ({row['ci_low']:.0f} to {row['ci_high']:.0f})"
        lines.append(f"| {row['case']} | {mean} | {', '.join(each)} |")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["baselines-quick", "leave-one-out-quick"])
def test_the_tables_of_baselines_and_of_fixes_left_out_are_those_of_the_kept_runs(name, tmp_path):
    table = table_of_cases(name, tmp_path / "runs")
    assert table in (RESEARCH / "results-algorithms.md").read_text(encoding="utf-8"), table


def test_which_fixes_are_needed_is_what_the_kept_runs_say():
    runs = pd.read_csv(DATA.with_name("leave-one-out-quick.csv"))
    crashed = set(runs[runs["status"] == "crashed"]["case"])
    assert crashed == {"no fixes", "without compound loss scaling"}
    by_case = {case: dict(zip(own["seed"], own["return"], strict=True)) for case, own in runs.groupby("case")}
    reference = by_case.pop("all fixes")
    found = {case: difference([own], [reference]).p for case, own in by_case.items() if case not in crashed}
    first, second, *others = sorted(found, key=found.__getitem__)
    assert (first, second) == ("without hAdam", "without softplus-fix")
    page = " ".join((RESEARCH / "results-algorithms.md").read_text(encoding="utf-8").split())
    assert f"hAdam (p {5 * found[first]:.2g}) and softplus-fix (p {4 * found[second]:.2g})" in page  # by Holm, of five
    assert min(3 * found[case] for case in others) > 0.05


def tables_of_costs():
    """The tables of results-sac.md about what few bits save, from what was counted and what the paper prints."""
    costs = pd.read_csv(DATA.with_name("costs-of-sac.csv"))
    small = costs[costs["hidden_units"] == 128].set_index("case")
    first = ["| an update, 128 units, batch 128 | fp32 | fp16 | eight bits |", "|---|---|---|---|"]
    names = {"bops": "bit operations", "bytes_moved": "bytes moved", "bytes_kept": "bytes kept, without replay"}
    for column, name in names.items():
        values, whole = small[column], small.loc["fp32", column]
        shares = [f"{values[case]:,} ({100 * values[case] / whole:.0f} %)" for case in ("fp16", "eight bits")]
        first.append(f"| {' | '.join([name, f'{whole:,}', *shares])} |")
    second = ["| units, batch | fp32, MB | fp16, MB | of fp32 | paper: fp32, MB | fp16, MB | of fp32 |"]
    second += ["|" + "---|" * 7]
    printed = pd.read_csv(DATA.parents[2] / "analysis" / "paper" / "published.csv")
    printed = printed[printed["name"] == "table11"].set_index("where")["value"]
    for (units, batch), rows in costs[costs["hidden_units"] > 128].groupby(["hidden_units", "batch_size"]):
        ours = rows.set_index("case")["bytes_peak"] / 2**20
        ours = [ours["fp32 without fixes"], ours["fp16"]]
        where = [f"format={name} units={units} batch={batch}" for name in ("fp32", "fp16")]
        theirs = [printed[one] for one in where]
        cells = [f"{units}, {batch}"]
        for low, high in ((ours[1], ours[0]), (theirs[1], theirs[0])):
            cells += [f"{high:.0f}", f"{low:.0f}", f"{100 * low / high:.0f} %"]
        second.append(f"| {' | '.join(cells)} |")
    return "\n".join(first), "\n".join(second)


def test_the_tables_of_costs_are_those_that_were_counted():
    page = (RESEARCH / "results-sac.md").read_text(encoding="utf-8")
    for table in tables_of_costs():
        assert table in page, table


def front_of(folder, scores, costs, key):
    """The front of kept runs by bytes moved, as ``roundoff pareto`` has it, from their scores and what was counted."""
    kept_runs.lay_scores(DATA.with_name(scores), folder)
    runs = pd.read_csv(DATA.with_name(scores))
    entries = []
    counts = pd.read_csv(DATA.with_name(costs))
    if "hidden_units" in counts:
        counts = counts[counts["hidden_units"] == 128]
    for row in counts.to_dict("records"):
        own = [f"run{number}" for number in runs.index[runs[key] == row[key]]]
        counted = {"macs": 0, "uncounted": [], "models": {}, "bytes_read": row["bytes_moved"], "bytes_written": 0}
        entries.append({**row, **counted, "runs": own})
    (folder / "costs.json").write_text(json.dumps({"costs": entries}))
    table = pareto_table(read_experiment(folder), "bytes")
    return table[table["task"] == "cartpole_swingup"]  # of which costs were counted


def as_front(table, key):
    """Rows of a table as the pages have them, the dearest first."""
    lines = [f"| {key} | bytes moved | of fp32 | return | Pareto front | answer |", "|" + "---|" * 6]
    whole = table["cost"].max()
    for row in table.sort_values("cost", ascending=False).to_dict("records"):
        cost = [f"{row['cost']:,.0f}", f"{100 * row['cost'] / whole:.0f} %", f"{row['mean']:.0f}"]
        lines.append(f"| {row[key]} | {' | '.join([*cost, 'yes' if row['front'] else '', row['answer']])} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("scores", "costs", "key", "page"),
    [
        ("significand-quick.csv", "costs-of-significand.csv", "format", "results.md"),
        ("eight-bits-overnight.csv", "costs-of-sac.csv", "case", "results-sac.md"),
    ],
)
def test_fronts_of_kept_runs_are_those_of_the_pages(tmp_path, scores, costs, key, page):
    table = as_front(front_of(tmp_path / "runs", scores, costs, key), key)
    assert table in (RESEARCH / page).read_text(encoding="utf-8"), table


def table_of_recipes():
    """The table of docs/policies.md about recipes for products, from the losses of their runs and what was counted."""
    runs = pd.read_csv(DATA.with_name("recipes-of-characters.csv"))
    losses = {case: dict(zip(own["seed"], own["return"], strict=True)) for case, own in runs.groupby("case")}
    assert {tuple(sorted(own)) for own in losses.values()} == {(0, 1, 2, 3, 4)}
    costs = pd.read_csv(DATA.with_name("costs-of-recipes.csv")).set_index("case")["bops"]
    means = {case: sum(own.values()) / len(own) for case, own in losses.items()}
    lines = ["| recipe | bit operations | share | loss | difference, 95 % | Pareto front | answer |", "|" + "---|" * 7]
    for case, cost in costs.sort_values(ascending=False, kind="stable").items():
        as_good = [one for one in costs.index if costs[one] <= cost and means[one] <= means[case]]
        front = all((costs[one], means[one]) == (cost, means[case]) for one in as_good)
        cells = [case, f"{cost:,}", f"{100 * cost / costs['fp32']:.0f} %", f"{means[case]:.3f}"]
        told, answer = "", "reference"
        if case != "fp32":
            by = difference([losses[case]], [losses["fp32"]])
            told = f"{by.value:+.3f} ({by.interval.low:+.3f} to {by.interval.high:+.3f})"
            answer = in_words(by.p, equivalence([losses[case]], [losses["fp32"]]).p, 0.05)
        lines.append(f"| {' | '.join([*cells, told, 'yes' if front else '', answer])} |")
    return "\n".join(lines)


def test_the_front_of_recipes_is_that_of_the_kept_runs():
    assert table_of_recipes() in (DATA.parents[1] / "policies.md").read_text(encoding="utf-8"), table_of_recipes()


def text_of_cheapest(file, parts, formats, margin, fresh, fp32_of="cheapest-roles-overnight.csv"):
    """The table of results-sac.md about a search for the cheapest arithmetic, and the test on fresh seeds."""
    runs = pd.read_csv(DATA.with_name(file))
    fp32, again = (
        dict(zip(plain["seed"], plain["return"], strict=True))
        for one in (pd.read_csv(DATA.with_name(fp32_of)), runs)
        for plain in (one[one["case"].isna()],)
    )
    assert again.items() <= fp32.items()  # those that were run again returned the same
    lines = [f"| part | other parts | {' | '.join(formats)} | chosen |", "|" + "---|" * (3 + len(formats))]
    found = []
    for part in parts:
        cells, passed = [], []
        for name in formats:
            case = ", ".join([*found, f"{part} {name}"])
            own = runs[(runs["case"] == case) & (runs["seed"] < 2)].sort_values("seed")["return"]
            assert len(own) == 2
            cells.append(f"{own.mean():.0f} ({', '.join(f'{one:.0f}' for one in own)})")
            limit = (fp32[0] + fp32[1]) / 2 * (1 - margin / 2)
            passed += [f"{part} {name}"] if own.mean() >= limit else []
        told = passed[0].removeprefix(f"{part} ") if passed else "none: fp32"
        lines.append(
            f"| {part.replace('_', ' ')} | {', '.join(found).replace('_', ' ')} | {' | '.join(cells)} | {told} |"
        )
        found += passed[:1]
    last = runs[(runs["case"] == ", ".join(found)) & (runs["seed"] > 1)]
    own = dict(zip(last["seed"], last["return"], strict=True))
    theirs = {seed: score for seed, score in fp32.items() if seed > 1}
    assert set(own) == set(theirs) == set(range(2, 2 + fresh))
    by, equal = difference([own], [theirs]), equivalence([own], [theirs], margin)
    means = [sum(scores.values()) / fresh for scores in (own, theirs)]
    word = (
        f"mean {means[0]:.0f}, fp32 {means[1]:.0f}, a difference of {by.value:+.0f}"
        f" ({by.interval.low:+.0f} to {by.interval.high:+.0f}): {in_words(by.p, equal.p, margin)}"
        f" (p of equivalence {equal.p:.2g})"
    )
    return "\n".join(lines), word


KEPT = ("first_moments", "second_moments", "weights", "targets")
ROLES = ("backward", "forward", "optimizer", "averages")


@pytest.mark.parametrize(
    "search",
    [
        ("cheapest-roles-overnight.csv", ROLES, ("e5m2", "e5m4", "e5m10"), 0.1, 10),
        ("cheapest-storage.csv", KEPT, ("e5m2", "e5m10"), 0.1, 10),
        ("cheapest-balance.csv", ROLES, ("e5m2", "e5m4", "e5m10"), 0.05, 10, "cheapest-balance.csv"),
    ],
)
def test_the_cheapest_arithmetic_of_sac_is_what_its_runs_say(search):
    page = (RESEARCH / "results-sac.md").read_text(encoding="utf-8")
    table, answer = text_of_cheapest(*search)
    assert table in page, table
    assert answer in " ".join(page.split()), answer


def test_the_cheapest_arithmetic_of_the_digits_is_what_its_runs_say():
    runs = pd.read_csv(DATA.with_name("digits-cheapest.csv"))
    fresh = runs[runs["seed"] > 2]  # the first three have chosen
    found, fp32 = (dict(zip(own["seed"], own["return"], strict=True)) for _, own in fresh.groupby(fresh["case"].isna()))
    assert len(found) == len(fp32) == 7
    assert difference([fp32], [found]).p < 0.05
    assert equivalence([fp32], [found]).p < 0.05
    page = " ".join((DATA.parents[1] / "cost.md").read_text(encoding="utf-8").split())
    said = f"(accuracy {fresh[fresh['case'].notna()]['return'].mean():.3f}, fp32 {pd.Series(fp32).mean():.3f}"
    assert f"found in {len(runs)} runs" in page
    assert "`e5m1` for both convolutions" in page
    assert said in page


OPTIMIZERS = {
    "none": "Adam", "hadam": "hAdam, loss scaling", "kahan": "and compensated steps", "stochastic": "and unbiased",
}  # fmt: skip


def table_of_eight_bits(name, digits, better):
    """A table of next-fix.md about a program wholly in a format: ten seeds, mean (least to most; crashes).

    Rows are formats, and columns what steps them; "=" says equivalent to fp32 within 5 %, Holm's p of all.
    """
    runs = pd.read_csv(DATA.with_name(f"{name}-eight-bits.csv"))
    scores = {key: dict(zip(group["seed"], better * group["return"], strict=True)) for key, group in runs.groupby(
        ["format", "fixes"])}  # fmt: skip
    crashed = runs[runs["status"] == "crashed"].groupby(["format", "fixes"]).size()
    for key in crashed.index:
        scores[key] = dict.fromkeys(scores[key], float("nan"))
    keys = [(fmt, fixes) for fmt in ("e5m10", "e4m3", "e5m2") for fixes in OPTIMIZERS]
    found = dict(zip(keys, holm([equivalence([scores[k]], [scores["fp32", k[1]]]).p for k in keys]), strict=True))
    lines = [f"| everything in | {' | '.join(OPTIMIZERS.values())} |", "|" + "---|" * 5]
    for fmt in ("fp32", "e5m10", "e4m3", "e5m2"):
        cells = []
        for fixes in OPTIMIZERS:
            own = runs[(runs["format"] == fmt) & (runs["fixes"] == fixes)]
            assert sorted(own["seed"]) == list(range(10))
            lost, done = crashed.get((fmt, fixes), 0), own[own["status"] == "done"]["return"]
            text = (
                "-" if done.empty else f"{done.mean():.{digits}f} ({done.min():.{digits}f} to {done.max():.{digits}f})"
            )
            cells.append(
                text + (f"; {lost} crashed" if lost else "") + (" =" if found.get((fmt, fixes), 1) < 0.05 else "")
            )
        lines.append(f"| {fmt} | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.parametrize(("name", "digits", "better"), [("digits", 3, 1), ("characters", 2, -1)])
def test_programs_wholly_in_eight_bits_are_those_of_the_kept_runs(name, digits, better):
    table = table_of_eight_bits(name, digits, better)
    assert table in PAGE.read_text(encoding="utf-8"), table


def test_who_learns_from_whom_is_what_the_kept_runs_say(tmp_path):
    page = (RESEARCH / "results-algorithms.md").read_text(encoding="utf-8")
    table = table_of_cases("secondary-learner-quick", tmp_path / "runs")
    assert table in page, table
    runs = pd.read_csv(DATA.with_name("secondary-learner-quick.csv"))
    by_case = {case: dict(zip(own["seed"], own["return"], strict=True)) for case, own in runs.groupby("case")}
    pairs = {
        "e5m3 against fp32": ("e5m3", "fp32"),
        "fp32 from e5m3 against fp32 from fp32": ("fp32 from e5m3", "fp32 from fp32"),
        "e5m3 from fp32 against fp32 from fp32": ("e5m3 from fp32", "fp32 from fp32"),
        "1024 from 128 against 1024": ("1024 from 128", "1024"),
    }
    found = [difference([by_case[one]], [by_case[other]]) for one, other in pairs.values()]
    told = holm([test.p for test in found])
    for name, test, p in zip(pairs, found, told, strict=True):
        low, high = test.interval
        line = f"| {name} | {test.value:+.0f} ({low:+.0f} to {high:+.0f}) | {p:.2g} |"
        assert line in page, line


LEFT_OUT = [("e4m3, all", "e4m3, six")] + [
    ("e4m3, all", f"e4m3, all but {part}") for part in ("compensation", "targets", "moments")
]


def test_what_each_factor_is_worth_is_what_the_kept_runs_say(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    table = table_of_cases("next-fix-limits-overnight", tmp_path / "runs")
    assert table in page, table
    runs = pd.read_csv(DATA.with_name("next-fix-limits-overnight.csv"))
    by_case = {case: dict(zip(own["seed"], own["return"], strict=True)) for case, own in runs.groupby("case")}
    assert by_case["e4m3, all"] == by_case["e4m3, all but range"]
    found = [difference([by_case[one]], [by_case[other]]) for one, other in LEFT_OUT]
    for (one, other), test, p in zip(LEFT_OUT, found, holm([test.p for test in found]), strict=True):
        low, high = test.interval
        line = f"| {one} against {other} | {test.value:+.0f} ({low:+.0f} to {high:+.0f}) | {p:.2g} |"
        assert line in page, line


def tables_of_mismatch():
    """What the page about rollouts says of divergences by width, and by part."""
    found = pd.read_csv(DATA.with_name("mismatch-of-reasoning.csv"))
    means = found.fillna({"m": 0}).groupby(["part", "m"])[["kl", "outside", "predicted"]].mean()
    whole = means.loc["everything"]
    widths = [
        f"| {m:.0f} | {row.kl:.1e} | {row.predicted:.1e} | {100 * row.outside:.1f} % |\n" for m, row in whole.iterrows()
    ]
    by_part = means["kl"].reset_index().pivot_table(index="part", columns="m", values="kl")
    shares = (by_part / whole["kl"])[[3, 5, 7]].drop(index="everything").dropna()
    parts = [
        f"| {part} | {' | '.join(f'{100 * share:.0f} %' for share in row)} |\n"
        for part, row in shares.sort_values(7, ascending=False).iterrows()
    ]
    formats = [
        f"| {name} | {means.loc[(name, 0), 'kl']:.1e} | {100 * means.loc[(name, 0), 'outside']:.1f} % |\n"
        for name in ("fp16", "bf16", "fp8 rowwise", "mxfp8", "e4m3", "e5m2")
    ]
    return ["".join(rows) for rows in (widths, parts, formats)]


def test_divergences_of_rollouts_are_those_that_were_measured():
    page = (DATA.parents[1] / "rollouts.md").read_text(encoding="utf-8")
    for rows in tables_of_mismatch():
        assert rows in page
    found = pd.read_csv(DATA.with_name("mismatch-of-reasoning.csv"))
    assert found["seed"].nunique() == 16
    whole = found[found["part"] == "everything"].groupby("m")[["kl", "predicted"]].mean()
    ratios = whole["kl"] / whole["predicted"]
    assert ratios.loc[5:].between(0.94, 1.06).all()  # "within 6 %"
    assert ratios.loc[3:4].between(1.1, 1.3).all()
    assert 2.5 < ratios.loc[2] < 3.5
    bf16, fp16 = (found[found["part"] == name]["kl"].mean() for name in ("bf16", "fp16"))
    assert 58 < bf16 / fp16 < 64


def test_networks_of_transformers_err_as_in_native_half_precision():
    page = (DATA.parents[1] / "fidelity.md").read_text(encoding="utf-8")
    found = pd.read_csv(DATA.with_name("networks-in-half.csv"))
    assert set(found.groupby(["model", "dtype"])["seed"].nunique()) == {5}
    assert f"{found['model'].nunique()} kinds of networks" in page
    for what, row in {
        "output": "output",
        "matrices": "gradients of matrices",
        "vectors": "gradients of vectors",
    }.items():
        ratios = found[f"simulated {what}"] / found[f"native {what}"]
        kinds = ratios.groupby([found["dtype"], found["model"]]).median().groupby("dtype")
        cells = [
            f"{kinds.median()[name]:.2f} ({kinds.min()[name]:.2f} to {kinds.max()[name]:.2f})"
            for name in ("bf16", "fp16")
        ]
        assert f"| {row} | {' | '.join(cells)} |\n" in page, cells


ENGINES = {
    "batches of 8": "batches of 8 answers",
    "token by token": "token by token, without a cache",
    "the format": "no format: the trainer in fp32",
    "cache in FP8": "a cache in FP8 (E4M3, a scale for each row)",
}


def test_engines_of_one_format_are_as_far_apart_as_was_measured():
    page = (DATA.parents[1] / "fidelity.md").read_text(encoding="utf-8")
    found = pd.read_csv(DATA.with_name("engines-of-one-format.csv"))
    assert found["seed"].nunique() == 16
    means = found.pivot_table(index="engine", columns="format", values="kl")[["bf16", "fp16", "fp32"]]
    order = means.sort_values(["bf16", "fp16"], kind="stable").iterrows()
    for name, row in order:
        cells = " | ".join("" if math.isnan(kl) else f"{kl:.1e}" for kl in row).replace("|  |", "| |")
        assert f"| {ENGINES.get(name, name)} | {cells} |\n".replace("|  |", "| |") in page, (name, cells)
    farther = means.div(means.loc["the format"])[["bf16", "fp16"]]
    for name in ("attention step by step", "sums rounded to the format every 32"):
        assert farther.loc[name].between(0.7, 1).all()  # "about as far"
    for name in ("every primitive rounded", "sums in the format"):
        assert farther.loc[name].between(2, 8).all()
    assert 10 < farther.loc["cache in FP8", "bf16"] < 11


def table_of_reasoning(file):
    """What the page about rollouts says of learning from rollouts in other arithmetic: rewards, and differences."""
    runs = pd.read_csv(DATA.with_name(file))
    assert set(runs["status"]) == {"done"}
    rewards = {case: dict(zip(own["seed"], own["return"], strict=True)) for case, own in runs.groupby("case")}
    assert {frozenset(own) for own in rewards.values()} == {frozenset(range(16))}
    e5m2 = "e5m2 rollouts"
    others = sorted((case for case in rewards if case != "fp32"), key=lambda case: -sum(rewards[case].values()))
    pairs = [(case, "fp32") for case in others] + [(case, e5m2) for case in others if case.startswith(f"{e5m2},")]
    pairs += [("fp16 for both", "bf16 for both")] if "bf16 for both" in rewards else []
    found = [difference([rewards[one]], [rewards[other]]) for one, other in pairs]
    means = {case: sum(own.values()) / len(own) for case, own in rewards.items()}
    lines = [f"| fp32 | {means['fp32']:.3f} | | |\n"]
    for (one, other), test, p in zip(pairs, found, holm([test.p for test in found]), strict=True):
        low, high = test.interval
        what = one if other == "fp32" else f"{one}, against {other}"
        lines.append(f"| {what} | {means[one]:.3f} | {test.value:+.3f} ({low:+.3f} to {high:+.3f}) | {p:.2g} |\n")
    return "".join(lines)


PPO_ROLLOUTS = {
    "fp32": "fp32 (the learner itself)", "e4m1": "E4M1", "int3": "INT3", "int2": "INT2",
    "int2 token-truncate": "INT2, token-truncate", "int2 token-mask": "INT2, token-mask",
    "int2 sequence-mask": "INT2, sequence-mask",
}  # fmt: skip


def table_of_ppo():
    """The page about policy gradients on PPO: returns of the learner, and how far its rollouts were from it."""
    runs = pd.read_csv(DATA.with_name("rollouts-ppo.csv"))
    assert set(runs["status"]) == {"done"}
    returns = {name: dict(zip(own["seed"], own["return"], strict=True)) for name, own in runs.groupby("rollouts")}
    assert {frozenset(own) for own in returns.values()} == {frozenset(range(12))}
    means = runs.groupby("rollouts").mean(numeric_only=True)
    pairs = [(name, "fp32") for name in PPO_ROLLOUTS if returns[name] != returns["fp32"]]
    pairs += [(name, "int2") for name in PPO_ROLLOUTS if name.startswith("int2 ")]
    found = [difference([returns[one]], [returns[other]]) for one, other in pairs]
    against = dict(zip(pairs, zip(found, holm([test.p for test in found]), strict=True), strict=True))

    def cells(name, other):
        if (name, other) not in against:
            return "| |" if other in (name, "int2") else "0 | |"
        test, p = against[name, other]
        low, high = test.interval
        return f"{test.value:+.0f} ({low:+.0f} to {high:+.0f}) | {p:.2g} |"

    return "".join(
        f"| {shown} | {means.loc[name, 'k3_kl']:.2g} | {100 * means.loc[name, 'outside']:.0f} % |"
        f" {100 * means.loc[name, 'ess']:.0f} % | {means.loc[name, 'return']:.0f} | {cells(name, 'fp32')}"
        f" {cells(name, 'int2')}\n"
        for name, shown in PPO_ROLLOUTS.items()
    ).replace("| |  ", "| | ")


def test_ppo_from_rollouts_in_few_bits_is_what_was_measured():
    table = table_of_ppo()
    assert table in (DATA.parents[1] / "agents.md").read_text(encoding="utf-8"), table


@pytest.mark.parametrize("file", ["reasoning.csv", "reasoning-fp8.csv"])
def test_learning_from_unlike_rollouts_is_what_the_kept_runs_say(file):
    table = table_of_reasoning(file)
    assert table in (DATA.parents[1] / "rollouts.md").read_text(encoding="utf-8"), table


LONG_SEEDS = 16


def table_of_long_learning():
    """What the page about rollouts says of ten times as many steps: unrounded, the share of right answers."""
    runs = pd.read_csv(DATA.with_name("reasoning-long.csv"))
    runs = runs.set_index(["case", "seed", "step"]).sort_index()
    cases = list(dict.fromkeys(pd.read_csv(DATA.with_name("reasoning-long.csv"))["case"]))
    at = {
        step: {case: dict(runs.xs(step, level="step").loc[case, "unrounded"]) for case in cases} for step in (200, 2000)
    }
    assert {frozenset(own) for shares in at.values() for own in shares.values()} == {frozenset(range(LONG_SEEDS))}
    pairs = [(step, case) for case in cases[1:] for step in at]
    found = [difference([at[step][case]], [at[step]["fp32"]]) for step, case in pairs]
    against = dict(zip(pairs, zip(found, holm([test.p for test in found]), strict=True), strict=True))
    lines = []
    for case in cases:
        cells = []
        for step, shares in at.items():
            cells.append(f"{sum(shares[case].values()) / LONG_SEEDS:.3f}")
            test, p = against.get((step, case), (None, 0.0))
            low, high = test.interval if test else (0.0, 0.0)
            cells.append(f"{round(test.value, 3) + 0.0:+.3f} ({low:+.3f} to {high:+.3f}), p {p:.2g}" if test else "")
        best = runs.loc[case, "unrounded"].groupby("seed").max()
        fall = (best - runs.loc[case, "unrounded"].xs(2000, level="step")).max()
        lines.append(f"| {case} | {' | '.join(cells)} | {fall:.3f} |\n".replace("|  |", "| |"))
    return "".join(lines)


def test_long_learning_from_unlike_rollouts_is_what_was_measured():
    runs = pd.read_csv(DATA.with_name("reasoning-long.csv"))
    means = runs[runs["step"] == 200].groupby("case")[["reward", "unrounded"]].mean().loc["e5m2 rollouts"]
    assert (round(means["reward"], 3), round(means["unrounded"], 3)) == (0.580, 0.612)
    later = runs[runs["step"] >= 1000].groupby("case")[["reward", "unrounded"]].mean()
    differences = (later["reward"] - later["unrounded"]).round(3)
    assert (differences["e5m2 rollouts"], differences["e5m2 rollouts, sequence-mask"]) == (0.003, -0.020)
    table = table_of_long_learning()
    assert table in (DATA.parents[1] / "rollouts.md").read_text(encoding="utf-8"), table
