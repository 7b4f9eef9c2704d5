"""Folders of results that somebody else has made, given to every command that reads one."""

import functools
import json
import operator
import shutil

import numpy as np
import pytest
from hostile.inputs import FILES, TEXTS, VALUES, places, replaced, write_results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RUNS = ["cartpole_swingup-fp32-s0-0123456789", "cartpole_swingup-e5m10-s0-0123456789"]
RUN = f"runs/{RUNS[0]}"
OTHER = f"runs/{RUNS[1]}"
LEASE = f"leases/{RUNS[0]}.1"
JSON_FILES = ["sweep.json", f"{RUN}/config.json", f"{RUN}/result.json", f"{RUN}/timing.json", f"{OTHER}/metrics.jsonl"]
CONFIGS = [f"{run}/config.json" for run in (RUN, OTHER)]
OTHER_FILES = [
    f"{RUN}/result.json",
    f"{RUN}/timing.json",
    f"{OTHER}/metrics.jsonl",
    f"{OTHER}/numerics.csv",
    f"{OTHER}/failed.json",
    f"{OTHER}/snapshots/1000.npz",
    f"{RUN}/snapshots/states.npz",
    LEASE,
]
WRITTEN = ["report.html", "summary.csv", "runs.csv", "curves.csv", "curves.svg", "differences.csv", "differences.svg"]
EVERYTHING = {**VALUES, **{name: json.dumps(text) for name, text in TEXTS.items()}}
VALUE_TEXTS = list(EVERYTHING.values())
FEW_FIGURES = ("--figures", "curves,differences", "--type", "svg")
DIFFERENCES = ("--figures", "differences", "--type", "svg")


@pytest.fixture
def folder(commands):
    """A folder of results in which nothing is wrong yet."""
    return write_results(commands.work / "results")


def _parts(folder, name):
    """The JSON values in a file, each with the function that writes it back as some text."""
    lines = (folder / name).read_text().splitlines()
    if not name.endswith("l"):
        return [(json.loads("".join(lines)), (folder / name).write_text)]

    def writer(number):
        def write(text):
            now = (folder / name).read_text().split("\n")
            (folder / name).write_text("\n".join([*now[:number], text, *now[number + 1 :]]))

        return write

    return [(json.loads(line), writer(number)) for number, line in enumerate(lines[:3])]


def _damages(folder, name):
    """Every place in a file, as a function that puts a text of JSON there."""
    for value, write in _parts(folder, name):
        yield from _damages_of(value, write)


def _damages_of(value, write):
    for way in places(value):
        yield lambda text, way=way: write(replaced(value, way, text))


def test_nothing_is_wrong_yet(commands, folder):
    assert commands.run("status", folder)[0] == 0
    assert commands.run("collect", folder, "-o", "all.parquet")[2] == ""
    assert commands.run("report", folder)[2] == ""
    assert commands.run("plot", folder, *FEW_FIGURES)[2] == ""
    assert commands.run("compare", folder, "-o", "compared", "--type", "svg")[2] == ""
    assert all((folder / name).stat().st_size for name in WRITTEN)


def test_wrong_types_in_every_field_of_a_plan(commands, folder):
    """Every field with another value; the slow tests below try all of them, and several at once."""
    for number, damage in enumerate(_damages(folder, "sweep.json")):
        damage(VALUE_TEXTS[number % len(VALUE_TEXTS)])
        commands.look(folder, page=number % 3 == 0)
    commands.run("plot", folder, *FEW_FIGURES)


def test_wrong_types_in_every_field_of_a_run(commands, folder):
    """A field of each file and of each record at once."""
    damages = [list(_damages_of(*part)) for name in JSON_FILES[1:] for part in _parts(folder, name)]
    for number in range(max(map(len, damages))):
        for place, choices in enumerate(damages):
            choices[number % len(choices)](VALUE_TEXTS[(7 * number + place) % len(VALUE_TEXTS)])
        commands.look(folder, page=number % 2 == 0)
    commands.run("plot", folder, *FEW_FIGURES)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_wherever_a_text_can_be(commands, folder, name):
    text = TEXTS[name]
    quoted = json.dumps(text)

    def put(path, *ways):
        value = json.loads((folder / path).read_text())
        for *way, last in ways:
            part = functools.reduce(operator.getitem, way, value)
            part[last] = text
        (folder / path).write_text(json.dumps(value))

    config = [("runs", i, "config", key) for i in range(3) for key in ("task", "fixes", text[:99])]
    put("sweep.json", ("name",), ("description",), ("varying", 0), ("runs", 0, "case"), *config)
    put(f"{RUN}/config.json", ("config", "task"), ("version",))
    result = {"status": "crashed", "return": 0, "return_std": 0, "step": 5, "crash": {"step": 5, "reason": "HERE"}}
    (folder / RUN / "result.json").write_text(json.dumps(result).replace('"HERE"', quoted))
    (folder / OTHER / "result.json").unlink()
    (folder / OTHER / "failed.json").write_text(f'{{"reason": {quoted}}}')
    with (folder / OTHER / "metrics.jsonl").open("a") as file:
        file.write(f'{{"kind": "train", "step": 1500, {quoted}: 3}}\n')
        file.write(f'{{"kind": "numerics", "step": 2500, {quoted}: {{"results": 3, "exponents": {{"1": 3}}}}}}\n')
        file.write(f'{{"kind": {quoted}, "step": 2600}}\n')
    (folder / LEASE).write_text(f'[{quoted}, {quoted}, 1, 1]\n{{"step": {quoted}, {quoted}: 1}}\n')
    (folder / OTHER / "numerics.csv").write_text(
        (folder / OTHER / "numerics.csv").read_text() + f'"{text}","{text}",{"1," * 8}1\n', errors="replace"
    )
    commands.look(folder)
    if name in ("escapes", "lines", "long", "half a pair", "formula"):
        commands.run("plot", folder, *FEW_FIGURES)
    if (folder / "report.html").exists():
        assert "<script>alert" not in (folder / "report.html").read_text()


@pytest.mark.parametrize("kind", FILES)
def test_plans_that_are_none(commands, folder, kind):
    _put_file(folder / "sweep.json", kind)
    assert "sweep.json" in commands.look(folder)


@pytest.mark.parametrize("first", range(0, len(FILES), 4))
def test_files_that_are_not_what_they_are_called(commands, folder, first):
    """Each in another way; then the configs too."""
    kinds = [*FILES, *FILES][first:]
    for name, kind in zip(OTHER_FILES, kinds, strict=False):
        _put_file(folder / name, kind)
    commands.look(folder)
    commands.run("plot", folder, *FEW_FIGURES)
    for name, kind in zip(CONFIGS, kinds, strict=False):
        _put_file(folder / name, kind)
    commands.look(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", [*CONFIGS, *OTHER_FILES])
def test_single_files_that_are_not_what_they_are_called(commands, folder, kind, name):
    _put_file(folder / name, kind)
    commands.look(folder)
    commands.run("plot", folder, *FEW_FIGURES)


def _put_file(path, kind):
    path.unlink(missing_ok=True)
    FILES[kind](path)


@pytest.mark.parametrize("kind", ["a link to a file", "a link to nothing", "pipe", "link to itself", "device"])
def test_what_stands_where_something_is_written(commands, folder, kind):
    precious = commands.precious
    for name in [*WRITTEN, ".lock", "../records.parquet"]:
        if kind == "a link to a file":
            (folder / name).symlink_to(precious / "file")
        elif kind == "a link to nothing":
            (folder / name).symlink_to(precious / "new")
        else:
            FILES[kind](folder / name)
    commands.look(folder)
    commands.run("plot", folder, *FEW_FIGURES)
    assert not (folder / "report.html").is_symlink()


@pytest.mark.parametrize("name", ["runs", RUN, f"{RUN}/snapshots", "leases"])
def test_folders_that_lead_elsewhere(commands, folder, name):
    shutil.rmtree(folder / name)
    (folder / name).symlink_to(commands.precious / "folder")
    commands.look(folder)
    commands.run("plot", folder, *DIFFERENCES)


@pytest.mark.parametrize("identity", ["../../precious/folder", "/precious", "..", ".", "", "a/b", "a\0b", "x" * 300])
def test_runs_are_looked_for_in_the_folder_alone(commands, folder, identity):
    plan = json.loads((folder / "sweep.json").read_text())
    plan["runs"][0]["id"] = identity
    (folder / "sweep.json").write_text(json.dumps(plan))
    assert "mine" not in commands.look(folder)


def test_strangers_are_named_harmlessly(commands, folder):
    for name, text in TEXTS.items():
        if name in ("escapes", "lines", "right to left", "formula", "markup"):
            legal = text.replace("/", "-")
            (folder / "runs" / legal).mkdir()
            (folder / "runs" / legal / "config.json").write_text(text)
            (folder / "leases" / f"{legal}.1").write_text("[1]")
            (folder / "leases" / f"{legal}.{'9' * 50}").write_text("[1]")
            (folder / "logs" / legal).write_text(text)
    (folder / "runs" / "\udcff").mkdir()  # a name that is not in UTF-8
    (folder / "runs" / "\udcff" / "config.json").mkdir()
    said = commands.look(folder)
    assert "\\x1b]0;OWNED" in said
    commands.run("plot", folder, *FEW_FIGURES)


STATES = {"shapes": np.ones((3, 7)), "texts": np.array(["x"]), "complex": 1j * np.ones((3, 2)), "single": np.ones(())}


def _pickled(path):
    np.savez(path, actor_0=np.array([lambda: 0, print], dtype=object)[1:], critic_0=np.ones((2, 2, 1)))


SNAPSHOTS = {
    "pickled": _pickled,
    "shapes": lambda path: np.savez(path, actor_0=np.ones((5, 1)), critic_0=np.ones((7, 7, 7))),
    "names": lambda path: np.savez(path, actor_0=np.ones((1, 2, 2)), actor_7=np.ones(1), critic_5=np.ones(1)),
    "texts": lambda path: np.savez(path, actor_0=np.array(["x"]), critic_0=np.array(["2020"], "datetime64[s]")),
    "complex": lambda path: np.savez(path, actor_0=np.ones((1, 2, 2)) * 1j, critic_0=np.ones((2, 2, 1)) * 1j),
    "empty": lambda path: np.savez(path, actor_0=np.ones(0), critic_0=np.ones((0, 0))),
    "nothing": np.savez,
    "single": lambda path: np.savez(path, actor_0=np.float64(3), critic_0=np.float64(3)),
    "not finite": lambda path: np.savez(path, actor_0=np.full((1, 2, 2), np.nan), critic_0=np.full((2, 2, 1), np.inf)),
}


def test_networks_that_are_none(commands, folder):
    for step, make in enumerate(SNAPSHOTS.values(), 2):
        for run in RUNS:
            make(folder / "runs" / run / "snapshots" / f"{step}000.npz")
    for name in ("2x", "\N{SUPERSCRIPT TWO}", "9" * 200, "1\N{ARABIC-INDIC DIGIT ONE}"):
        shutil.copy(folder / RUN / "snapshots" / "1000.npz", folder / OTHER / "snapshots" / f"{name}.npz")
    commands.run("plot", folder, *DIFFERENCES)
    for kind in ("shapes", "texts", "complex", "single"):
        np.savez(folder / RUN / "snapshots" / "states.npz", inputs=STATES[kind])
        commands.run("plot", folder, *DIFFERENCES)


def test_single_runs(commands, folder):
    """Files of runs are read in folders of single runs, too, which nothing has planned."""
    (folder / "sweep.json").unlink()
    for run in (folder / RUN, folder / "runs"):
        commands.run("status", run)
        for command in ("report", "plot"):
            commands.run(command, run, *(FEW_FIGURES if command == "plot" else ()))
        commands.run("collect", run, "-o", "x.parquet")
    for value in EVERYTHING.values():
        (folder / RUN / "config.json").write_text(f'{{"config": {value}}}')
        commands.run("report", folder / RUN)


@pytest.mark.slow
@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_anywhere(commands, data):
    """Several fields damaged at once, at random, and all figures drawn."""
    folder = commands.work / "results"
    shutil.rmtree(folder, ignore_errors=True)
    write_results(folder)
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(JSON_FILES))
        with_json = list(_damages(folder, name)) if (folder / name).stat().st_size < 10_000 else []
        if with_json:
            damage = data.draw(st.sampled_from(range(len(with_json))))
            with_json[damage](data.draw(st.sampled_from(sorted(EVERYTHING.values(), key=len)[:-4])))
    commands.look(folder)
    commands.run("plot", folder, "--type", "svg")
