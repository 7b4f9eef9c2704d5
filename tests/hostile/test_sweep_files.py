"""Sweep files and configs that somebody else has written: planned without running anything, or refused in words."""

import json

import pytest
from hostile.inputs import FILES, TEXTS, VALUES, write_results

from roundoff.agents.config.registry import keys
from roundoff.sweeps.language.plan import plan_file

DRY = ("--dry-run", "--no-estimate")
GRID = "base: {task: cartpole_swingup}\ngrid: {seed: [0]}\n"
ENDED = '{"status": "done", "return": 1, "return_std": 0, "step": 5, "crash": null}'
TEN = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"

YAML = {
    "bomb": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "bomb of mappings": "a: &a {x: 1, y: 2}\n"
    + "".join(
        f"{b}: &{b} {{x: *{a}, y: *{a}, z: *{a}}}\n" for a, b in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
    ),
    "itself": "name: x\ngrid: &a {seed: [*a]}\n",
    "itself as a key": "&a {*a : 1}",
    "merged with itself": "&a {<<: *a, grid: {seed: [1]}}",
    "deep": "[" * 3_000,
    "deep mappings": "{a: " * 5_000 + "}" * 5_000,
    "deep indented": "".join(" " * i + "a:\n" for i in range(500)),
    "called": '!!python/object/apply:os.system ["touch ../precious/PWNED"]',
    "called within": GRID + "description: !!python/object/new:os.system [touch ../precious/PWNED]\n",
    "imported": GRID + "description: !!python/name:evil.x\n",
    "binary": "name: !!binary aGVsbG8=\n" + GRID,
    "set": "!!set {grid, base}",
    "time": "name: 2001-12-14t21:59:43.10-05:00\n" + GRID,
    "several": GRID + "---\n" + GRID,
    "directive": "%YAML 9.9\n%TAG ! tag:evil,2000:\n---\n" + GRID,
    "unknown anchor": "grid: *nothing\n",
    "duplicate": "grid: {seed: [0]}\ngrid: {seed: [1]}\n",
    "long number": f"grid: {{seed: [{'9' * 10_000}]}}\n",
    "long hexadecimal": f"grid: {{seed: [0x{'f' * 10_000}]}}\n",
    "long key": f"{'k' * 1_000_000}: 1\n",
    "many keys": "".join(f"k{i}: 1\n" for i in range(3_000)),
    "huge product": "grid: {"
    + ", ".join(f"{key}: {TEN}" for key in ("seed", "steps", "batch_size", "lr", "eval_every", "gamma"))
    + "}\n",
    "huge draw": "random: {draws: 1000000000000, seed: 1, values: {lr: {log_uniform: [1e-5, 1e-3]}}}\n",
    "steps without end": "base: {task: cartpole_swingup, steps: 999999999999999999}\ngrid: {seed: [0]}\n",
    "escapes": 'name: "\\e]0;OWNED\\a"\n"\\e[31mbase": {"\\e[1mtask": "\\u202egnp"}\ngrid: {"\\x9b31mseed": ["\\e"]}\n',
    "only an escape": "\x1b]0;OWNED\x07",
    "circle": "include: sweep.yaml\n" + GRID,
    "no text": "\ufeff" + GRID,
    "list": "- 1\n- 2\n",
    "a word": "sweep\n",
    "nothing": "",
    "comment": "# nothing\n",
}


@pytest.mark.parametrize("name", YAML)
def test_yaml(commands, name):
    (commands.work / "sweep.yaml").write_text(YAML[name])
    commands.run("sweep", "sweep.yaml", *DRY)
    if name in ("itself", "called within", "escapes", "many keys", "list", "nothing"):
        status, _, err = commands.run("train", "--config", "sweep.yaml", "--out", "run")
        assert (status, err.startswith("roundoff: ")) == (2, True)
        assert commands.run("blame", "--config", "sweep.yaml", "--out", "run")[0] == 2
    assert not (commands.work / "run").exists()
    assert not (commands.work / "results").exists()


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_none(commands, kind):
    path = commands.work / "sweep.yaml"
    FILES[kind](path)
    (commands.work / "including.yaml").write_text("include: ./sweep.yaml\n" + GRID)
    for command in (("sweep", path, *DRY), ("train", "--config", path), ("blame", "--config", path)):
        assert commands.run(*command)[0] == 2
    assert commands.run("sweep", "including.yaml", *DRY)[0] == 2


@pytest.mark.parametrize("name", ["utf-16", "nul", "latin-1"])
def test_bytes_that_are_no_text(commands, name):
    content = {
        "utf-16": GRID.encode("utf-16"),
        "nul": GRID.encode() + b"\0",
        "latin-1": b"name: \xe9\n" + GRID.encode(),
    }
    (commands.work / "sweep.yaml").write_bytes(content[name])
    assert commands.run("sweep", "sweep.yaml", *DRY)[0] in (0, 2)


SECTIONS = ["base", "grid", "zip", "cases", "exclude", "random", "include", "name", "description", "reproduces"]
SHORT = [value for value in [*VALUES.values(), *map(json.dumps, TEXTS.values())] if len(value) < 20_000]


@pytest.mark.parametrize("section", SECTIONS)
def test_wrong_types_in_every_section(commands, section):
    for value in SHORT[SECTIONS.index(section) % 3 :: 3]:
        (commands.work / "sweep.yaml").write_text(f"{section}: {value}\n")
        commands.run("sweep", "sweep.yaml", *DRY)


def test_wrong_types_for_every_key(commands):
    """In a file, all at once; in arguments, each by itself."""
    values = [value for value in [*VALUES.values(), *map(json.dumps, TEXTS.values())] if len(value) < 3_000]
    (commands.work / "sweep.yaml").write_text(
        "grid:\n" + "".join(f"  {key}: [{', '.join(values)}]\n" for key in keys() if key != "task")
    )
    assert commands.run("sweep", "sweep.yaml", *DRY)[0] == 2
    (commands.work / "sweep.yaml").write_text(GRID)
    for number, key in enumerate(keys()):
        argument = f"{key}={values[number % len(values)]}"
        commands.run("sweep", "sweep.yaml", *((argument,) if number % 2 else ("--only", argument)), *DRY)


def test_tasks_import_nothing(commands):
    """Neither as a file is read, nor as it is planned, nor as it is begun without permission."""
    for task in ("gym:evil:X-v0", "gym:evil.part:X-v0", "gym:os:X", "gym:../precious/evil:X", f"gym:{'a.' * 5000}b:X"):
        (commands.work / "sweep.yaml").write_text(f"base: {{task: {json.dumps(task)}}}\ngrid: {{seed: [0]}}\n")
        commands.run("sweep", "sweep.yaml", *DRY)
        (commands.work / "run.yaml").write_text(f"task: {json.dumps(task)}\n")
        assert commands.run("train", "--config", "run.yaml", "--out", "run")[0] == 2
        assert not (commands.work / "run").exists()


def test_includes_stay_what_they_are(commands):
    secret = commands.precious / "secret.yaml"
    secret.write_text("password: hunter2\n")
    for path in (
        "../precious/secret.yaml",
        str(secret),
        "/dev/zero",
        "/proc/self/mem",
        "http://127.0.0.1:9/x.yaml",
        "./.",
        "./\\0",
    ):
        (commands.work / "sweep.yaml").write_text(f'include: "{path}"\n' + GRID)
        status, out, err = commands.run("sweep", "sweep.yaml", *DRY)
        assert status == 2
        assert "hunter2" not in out + err  # of what is no sweep, the keys are named and nothing else


@pytest.mark.parametrize("link", ["sweep.json", ".lock", "logs", "leases", "runs", "run"])
def test_a_sweep_goes_on_in_a_folder_somebody_has_prepared(commands, link):
    """What is written goes nowhere else; where runs would have to go elsewhere, none is begun."""
    base = "base: {task: cartpole_swingup, steps: 3000, seed_steps: 1000}\n"
    (commands.work / "sweep.yaml").write_text(base + "grid: {seed: [0, 1]}\n")
    plan = plan_file(commands.work / "sweep.yaml")
    folder = commands.work / "results"
    replaced_or_refused = link in ("sweep.json", ".lock")
    for run in plan.runs:
        path = folder / "runs" / run.id
        path.mkdir(parents=True)
        if replaced_or_refused:  # then nothing is to be trained
            (path / "config.json").write_text(json.dumps({"config": run.config.as_json(), "version": "0.1.0"}))
            (path / "result.json").write_text(ENDED)
    entries = [{"id": run.id, "config": run.config.as_json()} for run in plan.runs]
    content = {"layout": 1, "name": "sweep", "description": "\x1b[2J", "varying": ["seed"], "runs": entries[:1]}
    (folder / "sweep.json").write_text(json.dumps(content))
    place = folder / (f"runs/{plan.runs[0].id}" if link == "run" else link)
    target = commands.precious / ("sweep.json" if link == "sweep.json" else "file" if link == ".lock" else link)
    if place.exists():
        place.rename(target)
    elif link != ".lock":
        target.mkdir()
    place.symlink_to(target)
    status, _, err = commands.run("sweep", "sweep.yaml", "--out", folder, "--workers", "1", allowed=(0, 1, 2))
    if link == "sweep.json":
        assert status == 0
    elif link != "run":
        assert (status, "link" in err) == (2, True)


def test_reproductions_beside_prepared_folders(commands):
    results = commands.work / "results"
    write_results(results / "demo")
    for number, value in enumerate(VALUES.values()):
        (results / str(number)).mkdir()
        (results / str(number) / "sweep.json").write_text(value)
    for number, make in enumerate(FILES.values()):
        (results / f"file{number}").mkdir()
        make(results / f"file{number}" / "sweep.json")
    assert commands.run("reproduce", "fig4", *DRY, "--out", results)[0] == 0
    for text in TEXTS.values():
        if "\0" not in text:
            assert commands.run("reproduce", text.encode(errors="ignore").decode(), *DRY)[0] == 2
