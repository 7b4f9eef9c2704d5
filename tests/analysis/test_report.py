"""The page: what it says of whole, damaged and hostile folders, and how a browser shows it."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
import yaml
from browser import PROGRAM, Browser
from typer.testing import CliRunner

from roundoff.analysis import AnalysisError, against, report
from roundoff.analysis.reports.markup import element
from roundoff.analysis.reports.provenance import recipe
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.tables.wording import number, percent, tick
from roundoff.cli import app
from roundoff.sweeps import plan_file

pytestmark = pytest.mark.usefixtures("same_figures_are_drawn_once")

LEVEL = {"fp32": 800, "e5m10": 790, "e5m5": 780, "e5m2": 50}


def write_run(root, fmt, seed, *, status="done", reason="the policy took a non-finite action", **settings):
    config = {"task": "cartpole_swingup", "format": fmt, "seed": seed, "fixes": [], "lr": 1e-3} | settings
    identity = f"{config['task']}-{fmt}-s{seed}-{len(list((root / 'runs').glob('*')))}".replace("/", "-")
    folder = root / "runs" / identity
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": config, "version": "0.1.0"}))
    score = 0.0 if status == "crashed" else LEVEL.get(fmt, 500) + 4.0 * seed
    points = [{"kind": "eval", "step": 1000 * i, "return_mean": score * i / 3} for i in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    crash = {"step": 1500, "reason": reason} if status == "crashed" else None
    if status in ("done", "crashed"):
        result = {"status": status, "return": score, "return_std": 2.0, "step": 3000, "crash": crash}
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "timing.json").write_text('{"seconds": 36.0, "steps_per_second": 80.0, "processor": "Abacus 9"}')
    return {"id": identity, "config": config}


def write_sweep(root, runs, name="demo", description="How few bits?"):
    marker = {"layout": 1, "name": name, "description": description, "varying": [], "runs": runs}
    (root / "sweep.json").write_text(json.dumps(marker))
    return root


@pytest.fixture
def sweep(tmp_path):
    runs = [write_run(tmp_path, fmt, seed) for fmt in ("fp32", "e5m10", "e5m5") for seed in range(3)]
    runs += [write_run(tmp_path, "e5m2", seed, status="crashed" if seed else "done") for seed in range(3)]
    return write_sweep(tmp_path, runs)


class Text(HTMLParser):
    """What a reader sees, and every tag there is."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.parts, self.hidden = [], [], False
        self.feed(page)
        self.text = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.hidden = tag in ("script", "style", "title")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)

    def handle_endtag(self, tag):
        self.hidden = False


def page_of(folder, **options):
    path, _ = report(folder, **options)
    return Text(path.read_text(encoding="utf-8"))


def test_the_page_answers_the_question_and_says_where_it_is_from(sweep):
    path, warnings = report(sweep)
    before = path.read_bytes()
    assert not warnings
    page = Text(before.decode())
    assert "5 > 99 % 5 2 to 10 3 by seed" in page.text  # bits needed, confidence, by means, tested, runs
    answer = "e5m10 and e5m5: return falls by 1.2 % and 2.5 %, yet equivalent within 5 %. e5m2: crashed (2 of 3)."
    order = ["How few bits?", answer, "Mean return over seeds against", "Each format compared with fp32."]
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    assert "e5m2 1 crashed 1 500 the policy took a non-finite action" in page.text
    assert "roundoff sweep demo.yaml" in page.text
    assert "Abacus 9" in page.text
    assert "0.120 hours for 12 runs" in page.text
    headings = [attributes.get("scope") for tag, attributes in page.tags if tag == "th"]
    assert {"col", "row"} == set(headings)
    report(sweep)
    assert path.read_bytes() == before
    assert re.search(r"exponent bits bits needed .* 5 \u2013 [0-9]+ % \u2013 2 to 10 3", page_of(sweep, margin=0).text)


def test_the_answers_are_a_table_on_the_terminal_too(sweep):
    said = CliRunner().invoke(app, ["against", str(sweep)])
    assert said.exit_code == 0
    answer, *parts = said.stdout.split("\n\n")
    first, learning, told = [part.splitlines() for part in parts[::2]]
    assert answer.startswith("e5m10 and e5m5: return falls by 1.2 % and 2.5 %, yet equivalent within 5 %. e5m2: crash")
    assert json.loads(CliRunner().invoke(app, ["status", str(sweep), "--json"]).stdout)["answer"] == answer
    assert "difference over the curve" in learning[0]
    assert [len(lines) - 2 for lines in (learning, told)] == [3, 2]  # what crashed has no power
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in first]
    answers = {row[1]: row[-1] for row in rows[2:]}
    both = "shown to differ, yet equivalent within 5 %"
    assert answers == {"e5m10": both, "e5m5": both, "e5m2": "crashed (2 of 3)"}
    assert {row[1]: row[2] for row in rows[2:]} == {"e5m10": "", "e5m5": "", "e5m2": "2 of 3"}
    narrow = CliRunner().invoke(app, ["against", str(sweep), "--margin", "0.01", "--json"])
    (e5m10, *_) = json.loads(narrow.stdout)
    assert (e5m10["share"], e5m10["answer"]) == (pytest.approx(-10 / 804), "shown to differ")


def test_a_table_of_answers_wants_fp32_and_something_else(tmp_path):
    write_sweep(tmp_path, [write_run(tmp_path, "e5m5", seed) for seed in range(2)])
    with pytest.raises(AnalysisError, match="no run in fp32, or none to compare with it, has ended"):
        against(tmp_path)


def test_any_setting_may_be_what_others_are_compared_with(tmp_path, monkeypatch):
    two = ["hadam", "normal_fix"]
    runs = []
    for own, score in ((two, 700), ([], 500)):
        monkeypatch.setitem(LEVEL, "e5m5", score)
        runs += [
            write_run(tmp_path, "e5m5", seed, task=task, fixes=own)
            for seed in range(3)
            for task in ("cartpole_swingup", "finger_spin")
        ]
    write_sweep(tmp_path, runs)
    table, text, _ = against(tmp_path, reference={"fixes": "none"})
    assert set(table["task"]) == {"all", "cartpole_swingup", "finger_spin"}
    assert table["difference"].tolist() == [200.0] * 3
    assert set(table["pairs"]) == {3, 6}
    (own,) = set(table["fixes"])
    assert own == "hadam+normal_fix"
    assert "only hAdam + normal-fix" in text
    assert against(tmp_path, reference={"fixes": own})[0]["difference"].tolist() == [-200.0] * 3
    with pytest.raises(AnalysisError, match=r"no run has fixes some; there are .*none"):
        against(tmp_path, reference={"fixes": "some"})
    with pytest.raises(AnalysisError, match="lr does not vary; a reference is of format, fixes"):
        against(tmp_path, reference={"lr": "0.001"})
    said = CliRunner().invoke(app, ["against", str(tmp_path), "--reference", "fixes"])
    assert said.exit_code == 2
    assert "--reference is KEY=VALUE" in said.output


MADE = {"python": "3.12.1", "torch": "2.5.0", "numpy": "2.1.0", "processor": "Abacus 9", "commit": "c0ffee"}


def environment_of(sweep):
    """The section "Environment" of the page, as a reader sees it."""
    return re.search(r"Environment (roundoff .*?) Again", page_of(sweep).text)[1]


def test_the_page_says_what_runs_were_made_with(sweep):
    for i, path in enumerate(sorted(sweep.glob("runs/*/timing.json"))):
        timing = MADE | {"ended": f"2026-03-0{i % 3 + 1}T10:30:00+00:00", "seconds": 60.0, "steps_per_second": 50.0}
        timing["torch"] = "2.6.0" if i < 4 else "2.5.0"
        path.write_text(json.dumps(timing | {"spent": {"updates": 15.0, "replay": 5.0, "logging": 0.0}}))
    assert environment_of(sweep) == (
        "roundoff 0.1.0 python 3.12.1 torch 2.5.0 (8 runs), 2.6.0 (4 runs) numpy 2.1.0 processor Abacus 9 commit c0ffee"
        " ended 2026-03-01 10:30 to 2026-03-03 10:30 UTC time 0.200 hours for 12 runs, one after the other"
        " spent on updates 75 %, replay 25 % speed 50.0 to 50.0 environment steps per second and run"
    )


def test_what_earlier_versions_did_not_record_is_said(sweep):
    timings = sorted(sweep.glob("runs/*/timing.json"))
    for path in timings:
        path.write_text('{"seconds": 36.0, "steps_per_second": 80.0}')
    told = environment_of(sweep)
    assert all(f"{name} not recorded" in told for name in (*MADE, "ended"))
    assert "time 0.120 hours" in told
    timings[0].write_text(json.dumps(MADE | {"ended": "2026-03-01T10:30:00+00:00", "spent": ["odd"]}))
    told = environment_of(sweep)
    assert "torch 2.5.0 (1 run), not recorded (11 runs) numpy" in told
    assert "ended 2026-03-01 10:30 UTC, not recorded for 11 runs time" in told


def test_the_page_needs_nothing_else(sweep):
    page = page_of(sweep)
    loads = [attributes for _, attributes in page.tags if "src" in attributes or attributes.get("rel") == "stylesheet"]
    assert not loads
    text = (sweep / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|@import|fetch\(|https?://", text)


def test_nothing_from_a_file_is_markup(tmp_path):
    """Names, tasks, settings and reasons that try."""
    evil = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>\u202e"
    runs = [write_run(tmp_path, "fp32", seed, task=f"gym:{evil}") for seed in (0, 1)]
    runs += [write_run(tmp_path, "e5m5", 0, task=f"gym:{evil}", status="crashed", reason=evil)]
    runs += [write_run(tmp_path, evil, 1, task=f"gym:{evil}", **{"x" + evil: evil})]
    (tmp_path / "runs" / "<b onclick=alert(3)>").mkdir()
    (tmp_path / "runs" / "<b onclick=alert(3)>" / "config.json").touch()
    write_sweep(tmp_path, runs, name=evil, description=evil)
    page = page_of(tmp_path)
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "b")].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert "<img src=x onerror=alert(1)>\"'</script>" in page.text
    assert "is not in sweep.json; left out" in page.text
    assert "\u202e" not in page.text


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda p: write_run(p, "fp32", 0, status="open"), "No run has ended yet."),
        (lambda p: [write_run(p, "e5m5", seed) for seed in (0, 1)], "No fp32 run has ended"),
        (lambda p: [write_run(p, fmt, 0) for fmt in ("fp32", "e5m5")], "one seed says nothing"),
        (lambda p: [write_run(p, "fp32", seed) for seed in (0, 1)], "No run in another format"),
        (lambda p: [write_run(p, "fp32", s, status="crashed") for s in (0, 1)], "Every run that ended has crashed"),
        (lambda p: [write_run(p, f, s, status="crashed") for f in ("fp32", "e5m5") for s in (0, 1)], "itself crashed"),
        (lambda p: [write_run(p, f, s) for f in ("fp32", "int8", "e99") for s in (0, 1)], "int8"),
        (lambda p: [write_run(p, "e5m5", s, lr=lr) for s in (0, 1) for lr in (1e-3, 1e-4)], "lr 0.001"),
        (lambda p: [write_run(p, f, 0, task=t) for f in ("fp32", "e5m5") for t in "ab"], "mean over tasks"),
        (lambda p: [write_run(p, "fp32", 0), (p / "runs" / "x").mkdir(),
                    (p / "runs" / "x" / "config.json").write_text('{"config": {"lr": 1}}')], "names no task"),
    ],
)  # fmt: skip
def test_the_page_comes_out_whatever_is_there(tmp_path, prepare, said):
    prepare(tmp_path)
    assert said in page_of(tmp_path / "runs").text


def test_damage_is_said_on_the_page(sweep):
    folders = sorted((sweep / "runs").iterdir())
    (folders[0] / "metrics.jsonl").write_text('{"kind": "eval", "step": 1000, "return_mean": 4.0}\n{"kind": "ev')
    (folders[1] / "timing.json").write_text("[")
    (folders[2] / "numerics.csv").write_text("role,results\nforward,many\n")
    (folders[3] / "result.json").unlink()
    (folders[3] / "failed.json").write_text('{"reason": "MemoryError"}')
    shutil.rmtree(folders[4])
    page = page_of(sweep)
    assert "metrics.jsonl:2: this line is torn" in page.text
    assert "is not the table of an observed run" in page.text
    assert "2 of 12 runs have no result yet, or failed" in page.text
    assert "failed \u2013 MemoryError" in page.text


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("result.json", '"return": 800.0', '"return": Infinity'),
        ("result.json", '"step": 3000', '"step": 1e400'),
        ("result.json", '"status": "done"', '"status": "crashed"'),
        ("config.json", '"lr": 0.001', '"lr": 0.001, "steps": [1e400]'),
        ("metrics.jsonl", '"step": 1000', '"step": 1e400'),
        ("config.json", '"cartpole_swingup"', '"\\ud800"'),
        ("config.json", '"fixes": []', '"fixes": [{}, [1]]'),
        ("config.json", '"seed": 0', '"seed": [null]'),
        ("timing.json", "36.0", "[[]]"),
        ("timing.json", "36.0", "1e400"),
        ("timing.json", "36.0", f"1{400 * '0'}"),
        ("timing.json", '"seconds": 36.0', '"spent": {"updates": 1e400, "replay": [], "logging": null}'),
        ("timing.json", '"seconds": 36.0', '"ended": "yesterday", "commit": {}, "torch": [1]'),
        ("timing.json", '"seconds": 36.0', '"ended": "0001-01-01T00:00:00+14:00"'),
    ],
)
def test_odd_values_are_no_traceback(sweep, file, old, new):
    (sweep / "sweep.json").unlink()
    (folder,) = (sweep / "runs").glob("*fp32-s0*")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    page_of(sweep / "runs")


def test_runs_that_differ_in_very_many_keys_have_a_recipe(tmp_path):
    """Runs of two algorithms differ in so many keys that there would be 2^40 combinations."""
    for seed in range(3):
        keys = {f"key_{i}": seed for i in range(40)}
        write_run(tmp_path, "e5m5", seed, **keys)
    text, commands = recipe(read_experiment(tmp_path / "runs"))
    assert "key_0" not in text
    assert len(commands) == 4
    assert "key_39=2" in commands[2]


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(AnalysisError, match="holds no runs"):
        report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_observed_runs_have_a_table_of_what_rounding_did(sweep):
    (folder,) = (sweep / "runs").glob("*e5m5-s0*")
    names = "role,results,overflow,underflow,subnormal,infinite,nan,inexact,additions,absorbed"
    (folder / "numerics.csv").write_text(f"{names}\nforward,200,10,0,0,0,0,100,50,1\nforward,200,0,0,0,0,0,0,0,0\n")
    with (folder / "metrics.jsonl").open("a") as metrics:
        counts = {"results": 30, "exponents": {"-20": 10, "3": 20}}
        metrics.write(json.dumps({"kind": "numerics", "step": 3000, "backward": counts}) + "\n")
    page = page_of(sweep)
    assert "e5m5 forward 400 2.5 % 0 0 0 25 % 2 %" in page.text
    assert "<title>e5m5: 0.33 of results in [2^-20, 2^-19)</title>" in (sweep / "report.html").read_text()


def test_the_recipe_plans_the_same_runs(sweep, tmp_path):
    text, commands = recipe(read_experiment(sweep))
    content = yaml.safe_load(text)
    assert content["grid"] == {"format": ["e5m10", "e5m2", "e5m5", "fp32"], "seed": [0, 1, 2]}
    assert content["base"] == {"task": "cartpole_swingup", "fixes": [], "lr": 1e-3}
    assert commands[0] == "roundoff sweep demo.yaml"
    (tmp_path / "demo.yaml").write_text(text)
    planned = [(run.config.format, run.config.seed, run.config.lr) for run in plan_file(tmp_path / "demo.yaml").runs]
    assert sorted(planned) == [(fmt, seed, 1e-3) for fmt in sorted(LEVEL) for seed in range(3)]
    (sweep / "runs" / "more").mkdir()
    write_sweep(sweep, json.loads((sweep / "sweep.json").read_text())["runs"][:-1], name="de mo; rm")
    text, commands = recipe(read_experiment(sweep))  # no grid any more
    assert yaml.safe_load(text) == content["base"]
    assert len(commands) == 12
    assert commands[0] == "roundoff train --config de-mo--rm.yaml --out runs/0 format=e5m10 seed=0"


def test_numbers_as_they_are_read():
    shown = [number(value) for value in (0, 12345.6, -123.4, 12.345, 0.012345, 1e-9, float("nan"), float("inf"))]
    assert shown == ["0", "12\u2009346", "\u2212123", "12.3", "0.0123", "1.0e\u221209", "\u2013", "inf"]
    assert [percent(p) for p in (0, 0.001, 0.5, 0.999, 1)] == [
        "0\u2009%",
        "<\u20091\u2009%",
        "50\u2009%",
        ">\u200999\u2009%",
        "100\u2009%",
    ]
    assert tick(20000) == "20\u2009000"
    assert element("p", "<", x_y='"', hidden=True, no=None) == '<p x-y="&quot;" hidden>&lt;</p>'


def test_command(sweep):
    run = CliRunner().invoke(app, ["report", str(sweep)])
    assert run.output == f"{sweep / 'report.html'}\n"


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
def test_a_browser_shows_the_page_well(sweep, tmp_path_factory):
    path, _ = report(sweep)
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        for width, dark in ((1280, False), (390, True)):
            browser.size(width, 800, phone=width < 500)
            browser.dark(dark)
            browser.open(path.as_uri())
            messages, requests = browser.problems()
            assert messages == []
            assert requests == [path.as_uri()]
            assert browser.run("document.documentElement.scrollWidth") == width
            assert browser.run("[...document.querySelectorAll('main *')].filter(e => !e.closest('thead')"
                               f" && e.getBoundingClientRect().right > {width} + 1).length") == 0  # fmt: skip
            boxes = "[...document.querySelector('.first').children].map(e => e.getBoundingClientRect())"
            beside = browser.run(f"(([a, figure, table]) => [figure.left > a.right, table.top > a.bottom])({boxes})")
            assert beside == [not dark, True]  # the figure is next to the answer if there is space, else below it
            assert browser.run("getComputedStyle(document.querySelector('.bad')).color") == (
                "rgb(255, 154, 143)" if dark else "rgb(179, 38, 30)"
            )
            background = browser.run("getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(22, 23, 26)" if dark else "rgb(255, 254, 251)")
            browser.hover(".told.means circle")
            assert (
                browser.run("document.querySelector('.tip').textContent")
                == "e5m2\nmean 16.7 (0 to 50.0)\n3 runs, 2 crashed"
            )
        browser.run("document.querySelector('.chart').focus()")
        browser.press("ArrowRight")  # to the first mean, which is fp32's
        assert browser.run("document.querySelector('.tip').textContent").startswith("fp32\n")
        browser.press("ArrowDown")
        browser.press("ArrowRight")
        assert browser.run("document.querySelector('.tip').textContent").startswith("e5m5\n")
        assert browser.run("document.activeElement.getAttribute('aria-label')").startswith("e5m5\n")
        told = [node["name"]["value"] for node in browser.accessible() if node["role"]["value"] == "image"]
        assert "e5m5, seed 2: 788" in told  # as a screen reader has it
        assert "e5m5 mean 784 (780 to 788) 3 runs" in told
        assert browser.run("document.querySelector('.tip').getBoundingClientRect().width") > 20
        browser.press("Escape")
        assert browser.run("document.querySelector('.tip').textContent") == ""
        assert browser.run("document.activeElement.matches('.chart')")
        picture = sweep / "page.png"
        browser.screenshot(picture)
        assert picture.stat().st_size > 20_000
        pdf = browser.pdf()
        assert pdf.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 1


def test_the_horizon_that_values_have_stands_beside_what_the_format_leaves(tmp_path):
    """Six runs of 20 episodes of 125 agent steps, each worth 8 environment steps; the last tenth is two episodes."""
    written = [
        write_run(tmp_path, "e4m3", seed, algorithm="sac", action_repeat=8, discount=0.99, hidden_units=64)
        for seed in range(6)
    ]
    horizons = [11.0, 12.0, 14.0, 18.0]  # the fifth logs no values, and the values of the sixth are below zero
    for seed, run in enumerate(written):
        records = [{"kind": "train", "step": 1000 * i, "episode_return": 500.0 * i} for i in range(1, 21)]
        for record in records if seed != 4 else ():
            reward = (500.0 * 19 + 500.0 * 20) / 250
            record["q"] = -1.0 if seed == 5 else horizons[seed] * reward if record["step"] > 18000 else 1e6
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / "runs" / run["id"] / "metrics.jsonl").write_text(lines)
    text = page_of(write_sweep(tmp_path, written)).text
    assert (
        "discount 0.99 in e4m3, to nearest: values reach 14 to 24 steps of 100; stochastic_targets avoids this."
        " Learned: 11 to 18 steps, the median 13 (mean target over mean reward, last tenth of 4 runs)" in text
    )


@pytest.mark.parametrize(
    ("value", "episode", "settings"),
    [
        (None, 7.0, {}), (1e308, 1e-308, {}), (-1e308, 1e308, {}), (5.0, 0.0, {}), ("a", "b", {}),
        (5.0, 7.0, {"action_repeat": 0}), (5.0, 7.0, {"action_repeat": "x"}), (5.0, 7.0, {"action_repeat": None}),
    ],
)  # fmt: skip
def test_a_horizon_that_cannot_be_told_is_left_out(tmp_path, value, episode, settings):
    keys = {"algorithm": "sac", "discount": 0.99, "hidden_units": 64, "action_repeat": 8} | settings
    run = write_run(tmp_path, "e4m3", 0, **keys)
    records = [{"kind": "train", "step": 1000 * i, "episode_return": episode, "q": value} for i in range(1, 21)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "runs" / run["id"] / "metrics.jsonl").write_text(lines)
    text = page_of(write_sweep(tmp_path, [run])).text
    assert "values reach 14 to 24 steps of 100" in text
    assert "Learned:" not in text
