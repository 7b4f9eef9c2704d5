"""Carries out ``roundoff report``: writes one self-contained HTML file about a folder of runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from roundoff.runs.metric import Metric

from ...agents.config import is_about_values, remarks_on
from ..figures.catalogue import settings_table
from ..figures.comparison import comparison_table
from ..figures.curves import curves_table
from ..figures.degradation import are_floats, degradation_table
from ..figures.magnitudes import magnitudes_table
from ..figures.pareto import pareto_figure_table
from ..figures.profiles import profiles_table
from ..plot import inline_svg
from ..runs.experiment import Experiment, read_experiment
from ..runs.files import make_folder, replace_file
from ..statistics.equivalence import MARGIN
from ..tables.against_fp32 import against_reference
from ..tables.answer import answer
from ..tables.needed_table import needed_table
from ..tables.run_table import first_failures
from ..tables.summary import REFERENCE, ended, summarize
from ..tables.wording import plural, tick
from . import tables
from .markup import Safe, definitions, element, join
from .page import page
from .provenance import environment, numerics, recipe, settings, sources

_FEW = 10  # runs; with fewer, the bootstrap's intervals are clearly too narrow
_LAST = 0.1  # share of training
_COLUMNS = ["id", "step", "q", "episode_return"]
_CAPTIONS = {
    "degradation": (
        "{m.title} against significand bits\n"
        "Mean {m.name} over seeds against significand bits, with 95\u2009% stratified bootstrap intervals (bands)."
        " Each dot is a run, next to its mean."
    ),
    "comparison": (
        "{m.title} by condition\n"
        "Mean {m.name} over seeds, 95\u2009% bootstrap interval (bar), and every run; crosses are crashed runs"
        " ({m.scored})."
    ),
    "settings": (
        "{m.title} against {row.setting}\n"
        "Mean {m.name} over seeds against {row.setting}, with 95\u2009% bootstrap intervals. Each dot is a run."
    ),
    "pareto": (
        "{m.title} against {row.label}\n"
        "Mean {m.name} over seeds with its 95\u2009% interval against {row.label}. The line is the Pareto front: no"
        " point costs less and scores more than those on it. Filled points were shown to be equivalent to fp32 within"
        " the margin, which is the band."
    ),
    "curves": (
        "Learning curves\n"
        "Mean {m.name} over seeds {when}, with 95\u2009% bootstrap intervals. A crashed run {counts} from its crash on,"
        " where it has a cross; runs that have not ended are drawn as far as they are."
    ),
    "profiles": ("Score distributions\nShare of runs that {better} \u03c4 (performance profile): higher is better."),
    "gradients": (
        "Magnitudes of results\n"
        "The distribution of nonzero results over magnitudes, in the last interval between evaluations."
    ),
}
"""A line of title and one of caption by the name of the figure, up to a hyphen."""


def report(
    directory: str | Path, margin: float = MARGIN, *, out: str | Path | None = None
) -> tuple[Path, tuple[str, ...]]:
    """Writes ``report.html`` into the folder: the title, the answer, figures, tables, and how to repeat it.

    The page loads nothing from anywhere, and is readable without its script, on a phone and on paper. The same runs
    give the same bytes. It names missing and damaged files.

    Args:
        directory: the folder of a sweep, or of runs.
        margin: the largest difference from fp32 that is too small to matter, as a fraction of the fp32 mean return.
        out: another file to write; its folder is made if missing.

    Returns:
        The file, and warnings about omissions.

    Raises:
        AnalysisError: the folder does not contain runs, or it cannot be written to.
    """
    path = Path(directory)
    experiment = read_experiment(path)
    warnings = sources(experiment)
    needed, against = needed_table(experiment, margin), against_reference(experiment, margin)
    summary = summarize(experiment)
    figures = _scores(experiment, summary) if summary["n"].any() else []
    scores = [*figures[1:], tables.summary_table(summary, experiment)] if summary["n"].any() else []
    sections = {
        "What breaks first": _crashes(experiment),
        "Returns" if experiment.metric.of_agents else "Scores": scores,
        "Bits needed": _needed(experiment, needed, margin),
        "Learning curves": _figure("curves", curves_table(experiment), experiment.metric),
        "Against fp32": _against(against, experiment),
        "Score distributions": _figure("profiles", profiles_table(experiment), experiment.metric),
        "Numerics": _numerics(experiment, warnings),
        "Settings": _settings(experiment),
        "Environment": [definitions(environment(experiment))],
        "Again": _again(experiment),
        "How to read this": [_reading(margin, experiment.metric)],
    }
    shown = {name: content for name, content in sections.items() if content}
    warnings = [*experiment.said, *warnings]  # includes warnings about records, which are read by now
    lines = answer(against, experiment).splitlines() or [_missing_comparison(experiment)]
    sentences = element("div", *(element("p", line) for line in lines), class_="answer")  # the first thing that is read
    opening = [sentences, *figures[:1], tables.verdict_table(summary, against, experiment)]
    content: list[Safe | None] = [_head(experiment), element("div", *opening, class_="first")]
    content += [
        _notes(experiment, warnings),
        _remarks("Limits of the formats", _remarks_on_configs(experiment)),
    ]
    links = (join([element("a", name, href=f"#{_anchor(name)}"), Safe("\n")]) for name in shown)
    content.append(element("nav", *links, aria_label="Sections"))
    content += [
        element("section", element("h2", name), *parts, id=_anchor(name), aria_label=name)
        for name, parts in shown.items()
    ]
    content.append(element("footer", "Made by ", element("code", "roundoff report"), " from the files of the runs."))
    target = path / "report.html" if out is None else Path(out)
    if out is not None:
        make_folder(target.parent)
    written = replace_file(target, page(f"{experiment.name}: report", content).encode())
    return written, tuple(warnings)


def _figure(name: str, table: pd.DataFrame | None, metric: Metric) -> list[Safe]:
    """Draws a figure from its table in :mod:`..figures`, with a caption; nothing without a row."""
    if table is None or table.empty:
        return []
    words = {
        "when": "at each evaluation" if metric.of_agents else "as logged",
        "counts": "has no score" if metric.crash is None else f"counts as {metric.crash:g}",
        "better": "return more than" if metric.of_agents else f"have {metric.name} {metric.better}",
    }
    lines = _CAPTIONS[name.partition("-")[0]].split("\n")
    title, caption = (line.format(m=metric, row=table.iloc[0], **words) for line in lines)
    svg = inline_svg(name, table, f"{title}. Arrow keys read out the values.", metric)
    return [element("figure", Safe(svg), element("figcaption", caption))]


def _head(experiment: Experiment) -> Safe:
    # The first sentence of the description is the title.
    title, *rest = re.split(r"(?<=[.?!])\s+", experiment.description.strip() or experiment.name, maxsplit=1)
    about = element("details", element("summary", "About this sweep"), element("p", *rest)) if rest else None
    counts = element("p", f"{experiment.name}: {_counts(experiment)}", class_="note")
    return element("header", element("h1", title.removesuffix(".")), counts, about)


def _counts(experiment: Experiment) -> str:
    runs = experiment.runs
    counts = ", ".join(f"{count} {status}" for status, count in runs["status"].value_counts().items())
    tasks, formats = sorted(set(runs["task"])), list(dict.fromkeys(runs["format"]))
    seeds = f", {plural(runs['seed'].nunique(), 'seed')}" if "seed" in runs else ""
    return f"{plural(len(runs), 'run')} ({counts}); {', '.join(tasks)}; {plural(len(formats), 'format')}{seeds}."


def _remarks(title: str, remarks: Sequence[str]) -> Safe | None:
    """Lists remarks, folded, with their number; None without any."""
    items = [element("li", remark) for remark in remarks]
    return element("details", element("summary", f"{title} ({len(items)})"), element("ul", *items)) if items else None


def _remarks_on_configs(experiment: Experiment) -> list[str]:
    """Lists the remarks on the runs' configs, once each, with the learned values next to the predicted ones."""
    runs_of: dict[str, list[str]] = {}
    for run, config in experiment.configs.items():
        for remark in remarks_on(config):
            runs_of.setdefault(remark, []).append(run)
    if not any(map(is_about_values, runs_of)):
        return list(runs_of)
    learned = learned_horizons(experiment)
    return [remark + _learned(learned[runs]) * is_about_values(remark) for remark, runs in runs_of.items()]


def _learned(horizons: pd.Series) -> str:
    """Describes the horizons that some runs have learned; empty if none is known."""
    known = horizons.dropna()
    if known.empty:
        return ""
    least, middle, most = (f"{value:.3g}" for value in (known.min(), known.median(), known.max()))
    steps = f"{middle} steps" if least == most else f"{least} to {most} steps, the median {middle}"
    return f". Learned: {steps} (mean target over mean reward, last tenth of {plural(len(known), 'run')})"


def _missing_comparison(experiment: Experiment) -> str:
    """Describes why there is nothing to compare."""
    if ended(experiment.runs).empty:
        return "No run has ended yet."
    if REFERENCE not in set(ended(experiment.runs)["format"]):
        return f"No {REFERENCE} run has ended, so there is nothing to compare with."
    return f"No run in another format than {REFERENCE} has ended."


def _notes(experiment: Experiment, warnings: list[str]) -> Safe | None:
    """Lists the limits of these runs, and the warnings."""
    runs = experiment.runs
    notes = []
    scored = ended(runs)
    if len(scored) < len(runs):
        notes.append(f"{len(runs) - len(scored)} of {len(runs)} runs have no result yet, or failed.")
    if len(scored):
        if (scored["status"] == "crashed").all():
            crash = experiment.metric.crash
            scores = "there are no scores" if crash is None else f"all scores are {crash:g}"
            notes.append(f"Every run that ended has crashed: {scores}.")
        keys = ["task", "format", *experiment.conditions.keys]
        fewest = int(scored.groupby(keys, dropna=False).size().min())
        if fewest == 1:
            notes.append(
                "Some formats have one run on a task: one seed has no interval, and shows nothing about chance."
            )
        elif fewest < _FEW:
            notes.append(
                f"Some formats have only {fewest} runs on a task. Bootstrap intervals of fewer than {_FEW} are too"
                " narrow: see \u201cHow to read this\u201d."
            )
    if len(warnings) > 20:
        warnings = [*warnings[:20], f"... and {len(warnings) - 20} more warnings."]
    return _remarks("Remarks on these runs", (*notes, *warnings))


def _scores(experiment: Experiment, summary: pd.DataFrame) -> list[Safe]:
    """Makes the figures of scores; the first one comes at the top of the report."""
    parts: list[Safe] = []
    # One width draws no curve; conditions are compared in a figure of their own.
    floats = are_floats(experiment.formats)
    scored = summary[summary["n"] > 0]
    marks = degradation_table(experiment, scored)
    several_widths = len(set(marks.loc[marks["format"] != REFERENCE, "significand_bits"])) > 1
    if len(marks) and floats and (several_widths or not experiment.conditions.keys):
        parts += _figure("degradation", marks, experiment.metric)
    parts += _figure("settings", settings_table(experiment, scored, []), experiment.metric)
    if experiment.conditions.keys or not floats:
        parts += _figure("comparison", comparison_table(experiment, scored), experiment.metric)
    for kind in ("bytes", "bops"):
        parts += _figure(f"pareto-{kind}", pareto_figure_table(experiment, kind), experiment.metric)
    return parts


def _needed(experiment: Experiment, needed: pd.DataFrame, margin: float) -> list[Safe]:
    if needed.empty:
        return []
    metric = experiment.metric
    bound = "above fp32\u2019s minus" if metric.sign > 0 else "below fp32\u2019s plus"
    text = (
        f"A width is good if its mean {metric.name} is {bound} {_share(margin)} of it. Each width is tested at"
        " 5\u2009%, from wide to narrow, up to the first that is not shown to be good. The bits needed are the"
        " narrowest good width. The confidence is 1 minus the largest p of these tests."
    )
    return [element("p", text), tables.needed_details(needed, experiment)]


def _against(against: pd.DataFrame, experiment: Experiment) -> list[Safe]:
    if against.empty:
        return []
    count = len(against[against["task"] != "all"])
    text = (
        f"Among {count} comparisons, some look like differences, or like equivalence, by chance. p (Holm) corrects for"
        " this: the chance of any false difference among the rows below 0.05 is at most 5\u2009%. A difference is"
        " shown by p (Holm). Equivalence is shown by the p of its row: the 90\u2009% interval is then within the"
        " margin. To claim equivalence of several rows at once, use p (Holm)."
    )
    of = (tables.against_table, tables.equivalence_table, tables.learning_table, tables.area_table, tables.power_table)
    return [element("p", text), *(made for make in of if (made := make(against, experiment)))]


def _crashes(experiment: Experiment) -> list[Safe]:
    failures = first_failures(experiment)
    first = [tables.failures_table(failures, experiment)] if failures["observed"].any() else []
    return [*first, tables.crash_table(experiment) or element("p", "No run crashed, and none failed.")]


def _numerics(experiment: Experiment, warnings: list[str]) -> list[Safe]:
    counts = numerics(experiment, warnings)
    parts = [tables.numerics_table(counts)] if len(counts) else []
    if len(experiment.exponents):
        parts += _figure("gradients", magnitudes_table(experiment), experiment.metric)
    return parts


def _settings(experiment: Experiment) -> list[Safe]:
    shared, varied = settings(experiment)
    values_as_text = {key: ", ".join(map(_shown, values)) for key, values in varied.items()}
    return [
        element("p", "What varies:"),
        definitions(values_as_text),
        element("details", element("summary", f"{len(shared)} settings that all runs share"),
                definitions({key: _shown(value) for key, value in shared.items()})),
    ]  # fmt: skip


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return "\u2013" if value is None else str(value)


def _again(experiment: Experiment) -> list[Safe]:
    text, commands = recipe(experiment)
    name = commands[0].split(" --out")[0].split()[-1]
    return [
        element("pre", element("code", "\n".join(commands))),
        element("details", element("summary", f"{name}: the complete file"), element("pre", element("code", text))),
    ]


def _reading(margin: float, metric: Metric) -> Safe:
    paper = "Agarwal et al., \u201cDeep Reinforcement Learning at the Edge of the Statistical Precipice\u201d, 2021"
    more = "returns more than" if metric.of_agents else "is better than"
    return definitions(
        {
            metric.name: "Mean over the episodes of a run\u2019s last evaluation. A run that took a non-finite action"
            " has crashed and scores 0."
            if metric.of_agents
            else "The value that the program returned under this name;"
            f" {'more' if metric.sign > 0 else 'less'} is better."
            f" A crashed run has {metric.scored.replace('scored', 'the score')}.",
            "mean \u00b1 std": "Over runs (n \u2212 1). For the mean over tasks: the mean of the tasks\u2019 means, and"
            " the mean of their standard deviations, as Bj\u00f6rck et al. (ICML 2021, Section 4) aggregate.",
            "95\u2009% interval": f"Percentile bootstrap of the mean, with runs resampled within each task ({paper})."
            " For normal data, it covers the true mean in 74\u2009% of experiments with 3 runs, 84\u2009% with 5,"
            " 91\u2009% with 10.",
            "IQM": "Interquartile mean: the mean of the middle half of all runs.",
            "P(better)": f"Probability that a run of the format {more} one of fp32 on the same task, ties"
            " counting half; 0.5 is no difference.",
            "difference": f"Mean {metric.name} minus that of fp32, with Student\u2019s t test and interval. Where seeds"
            " are shared, runs are paired by seed; else the test is Welch\u2019s.",
            f"equivalent within {_share(margin)}": "Two one-sided t tests at 5\u2009% show that the difference is"
            f" smaller than {_share(margin)} of fp32\u2019s mean {metric.name}, in either direction: its 90\u2009%"
            " interval lies inside.",
            "shown to differ": "The difference is not due to chance, whether large or small. \u201cYet"
            " equivalent\u201d: it is also smaller than the margin.",
            "inconclusive": "Neither is shown by these runs. More seeds may show it.",
            "bits needed": f"Non-inferiority: this width and all wider ones tested are shown to be at most"
            f" {_share(margin)} worse than fp32; better is good.",
        }
    )


def _share(margin: float) -> str:
    return f"{tick(100 * margin)}\u2009%"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def learned_horizons(experiment: Experiment) -> pd.Series:
    """Computes the horizon of each agent's values, in agent steps, by run; NaN if it cannot be computed.

    If a task without end gives a reward r at every step, a correct critic returns r / (1 - discount): a horizon of
    1 / (1 - discount) steps. The measured horizon is the mean of the logged targets, ``q``, over the mean reward
    of an agent step, both in the last tenth of training. Values that still rise, and episodes that end early, make it
    smaller. It is not known for runs without logged ``q`` or episodes in that tenth, or if the means differ in sign.
    """
    training = experiment.training
    horizons = pd.Series(np.nan, index=pd.Index(experiment.runs["id"], name="id"))
    if not set(_COLUMNS) <= set(training) or "action_repeat" not in experiment.runs:
        return horizons
    repeats = pd.to_numeric(experiment.runs.set_index("id")["action_repeat"], errors="coerce")
    logged = training[_COLUMNS].dropna(subset="episode_return")
    for name, rows in logged.groupby("id", sort=False):
        run = str(name)
        last = rows[rows["step"] > (1 - _LAST) * rows["step"].max()]
        before = rows["step"][rows["step"] < last["step"].min()]
        if last["q"].notna().any() and len(before):
            steps = float(last["step"].max()) - float(before.max())
            with np.errstate(all="ignore"):  # numbers near the largest one
                reward = float(last["episode_return"].sum()) * float(repeats[run]) / steps
                value = float(last["q"].mean())
            horizon = value / reward if reward else np.nan
            horizons[run] = horizon if np.isfinite(horizon) and horizon > 0 else np.nan
    return horizons
