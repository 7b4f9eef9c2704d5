"""The code on the pages of docs/ runs, and prints what they say; links lead somewhere; every module has its row."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from fnmatch import filter as fnmatch_filter
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from docs_pages import matches, run_command, run_page
from forked import ForkedWorkers
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from roundoff.agents import FIXES
from roundoff.agents.config import registry
from roundoff.agents.config.registry import keys
from roundoff.agents.config.train_config import ALGORITHMS, LIBRARIES
from roundoff.analysis import read_experiment
from roundoff.sweeps import plan_text
from roundoff.sweeps.programs.run import run_program
from roundoff.sweeps.workers import local

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs"
FIX_PAGES = sorted(path.name for path in (PAGES / "fixes").glob("*.md") if path.name != "README.md")

GOING_ON = ("sums-and-modes.md", "policies.md", "watching.md")  # from simulation.md, with its names

COUNTS = re.compile(r"(?<![:\w])\d[\d.]*")  # sums differ with the machine's BLAS

# A block of code, and what it prints if the page shows that.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def keys_table():
    """The keys of a run, as docs/keys.md lists them: with their algorithms and defaults."""
    rows = []
    for name in keys():
        fields = registry.fields_of(name)
        texts = [f"`{yaml_text(default_of(field))}`" for field in fields.values()]
        others = [f"{of} {text}" for of, text in zip(fields, texts, strict=True) if text != texts[0]]
        default = texts[0] + (f" ({', '.join(others)})" if others else "")
        about = next(iter(fields.values())).description
        groups = {(*ALGORITHMS, *LIBRARIES): "all", ALGORITHMS: "own"}
        of = next((word for names, word in groups.items() if {*names} == {*fields}), ", ".join(fields))
        rows.append(f"| `{name}` | {of} | {default} | {about} |")
    return "\n".join(["| key | algorithms | default | meaning |", "|---|---|---|---|", *rows])


def default_of(field):
    return "all" if field.default == FIXES else field.default


def yaml_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def blocks(page):
    return BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))


def test_the_page_of_the_commands_is_what_they_print(tmp_path):
    page = tmp_path / "commands.md"
    command = "-m typer roundoff.cli utils docs --name roundoff --title Commands --output"
    subprocess.run([sys.executable, *command.split(), page], check=True, capture_output=True)
    committed = (PAGES / "reference" / "commands.md").read_text(encoding="utf-8")
    assert not re.search(r"^\* `\w+`: .*\.\.\.$", committed, re.MULTILINE)  # the list has whole sentences
    assert committed == page.read_text(encoding="utf-8"), f"run: python {command} docs/reference/commands.md"


def test_the_reference_is_what_the_docstrings_say(monkeypatch):
    monkeypatch.syspath_prepend(PAGES)
    page = importlib.import_module("api").page().rstrip() + "\n"  # which runs the examples
    assert page == (PAGES / "reference" / "api.md").read_text(encoding="utf-8"), (
        "run: python docs/api.py > docs/reference/api.md"
    )


def test_the_code_on_the_pages_about_simulation_runs(capsys):
    names = {"__name__": "simulation.md"}
    for page in ("simulation.md", *GOING_ON):
        code = blocks(page)
        assert len(code) >= 3
        if page == "watching.md":
            names["train"].__defaults__ = (10,)  # steps: blame trains again and again
        for block, _ in code:
            exec(compile(block, page, "exec"), names)
    printed = capsys.readouterr().out
    assert "rounded" in printed  # the audit
    assert "first non-finite result" in printed or "results of" in printed  # the observer
    assert "stay in high precision" in printed  # blame


def test_the_code_on_the_page_about_programs_runs(tmp_path, monkeypatch):
    (train, _), (partly, _), (resumable, _), (table, _) = blocks("programs.md")
    text = (PAGES / "programs.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"^```yaml\n(.*?)^```\n", text, re.DOTALL | re.MULTILINE)
    name = "program_of_the_page.py"
    (tmp_path / name).write_text(f"{train}\n\n{partly}\n\n{resumable}")
    monkeypatch.chdir(tmp_path)
    plan = plan_text(file.replace("train.py", name), str(tmp_path / "sweep.yaml"))
    assert len(plan.runs) == 7 * 5
    result = run_program(plan.runs[0].config, plan.metric, tmp_path / "run")
    assert result["return"] < 0.1
    for function in ("partly_simulated", "resumable"):
        one = plan_text(f"program: {name}:{function}\nmetric: error", str(tmp_path / "sweep.yaml"))
        assert run_program(one.runs[0].config, one.metric, tmp_path / function)["status"] == "done"
    names = {"__name__": "page"}
    exec(compile(f"{train}\n{table}", "programs.md", "exec"), names)
    assert len(names["table"]) == 3 * 3


def test_the_code_on_the_page_about_environments_runs():
    ((code, _),) = blocks("environments.md")
    names = {}
    exec(compile(code, "environments.md", "exec"), names)
    assert names["steps"].rewards.shape == (2,)


def test_the_algorithm_on_the_page_trains(tmp_path):
    """The page's two files are put into a copy of the package, with nothing else touched."""
    package = tmp_path / "roundoff"
    package.mkdir()
    for entry in (ROOT / "src/roundoff").iterdir():
        if entry.name != "agents":
            (package / entry.name).symlink_to(entry.resolve())
    shutil.copytree(ROOT / "agents", package / "agents", ignore=shutil.ignore_patterns("__pycache__"))
    files = {block.partition("\n")[0].removeprefix("# "): block for block, _ in blocks("algorithms.md")}
    assert len(files) == 2
    for name, block in files.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(block)
    (package / "agents/algorithms/ddpg/__init__.py").touch()
    program = (
        "import odd_goal, json, sys; from roundoff.agents import TrainConfig, train\n"
        "keys = dict(algorithm='ddpg', task='gym:Goal-v0', hidden_units=16, batch_size=16, steps=600, seed_steps=200,"
        " eval_every=600, eval_episodes=5, lr=3e-3, discount=0.0)\n"
        "for format in ('fp32', 'e5m10'):\n"
        "    print(train(TrainConfig(format=format, **keys), sys.argv[1] + format).return_mean)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "tests")])}
    command = [sys.executable, "-c", program, str(tmp_path / "run-")]
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    returns = [float(line) for line in shown.split()]
    assert len(returns) == 2
    assert all(mean > 19.0 for mean in returns)  # doing nothing is worth 15.7, always doing the best 20
    read = read_experiment(tmp_path / "run-fp32")  # and analysis takes what it logs
    assert len(read.runs) == 1


def test_no_page_with_code_is_left_out():
    """All code on pages is run: here, and in test_frameworks.py."""
    here = {
        "programs.md",
        "simulation.md",
        *GOING_ON,
        "environments.md",
        "quickstart.md",
        "accuracy.md",
        "tutorial.md",
        "libraries.md",
        "compiling.md",
        "cost.md",
        "formats.md",
        "algorithms.md",
        "agents.md",
        "quantization.md",
        "recursions.md",
        "rollouts.md",
        "recipes.md",
        "hardware.md",
        "testing.md",
        "reference/api.md",  # test_the_reference_is_what_the_docstrings_say
    }
    with_code = {path for path in PAGES.rglob("*.md") if "```python\n" in path.read_text(encoding="utf-8")}
    assert {path.relative_to(PAGES).as_posix() for path in with_code} == here | {"frameworks.md"} | {
        f"fixes/{page}" for page in FIX_PAGES
    }


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("quickstart.md", 6),
        ("accuracy.md", 8),
        ("tutorial.md", 7),
        ("libraries.md", 3),
        ("compiling.md", 1),
        ("cost.md", 1),
        ("formats.md", 6),
        ("agents.md", 2),
        ("quantization.md", 5),
        ("recursions.md", 2),
        ("rollouts.md", 2),
        ("recipes.md", 8),
        ("hardware.md", 4),
        ("testing.md", 10),
    ],
)
def test_every_block_runs_and_every_line_printed_is_on_the_page(page, least, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "LocalProcesses", ForkedWorkers)
    count = 0
    for block, shown, printed in run_page(PAGES / page, monkeypatch, capsys):
        texts = [COUNTS.sub("0", text) if page == "quickstart.md" else text for text in (shown, printed)]
        assert matches(*texts), f"{block}\nprinted\n{printed}"
        count += 1
    assert count >= least


@pytest.mark.usefixtures("forked_interpreters")
def test_the_examples_of_the_readme_run(tmp_path, monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ((script, _), (code, shown)) = BLOCK.findall(readme)
    (tmp_path / "train.py").write_text(script)
    (console,) = re.findall(r"^```console\n(.*?)^```\n", readme, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)+)", console, re.MULTILINE)
    assert len(commands) == 5
    for command, printed in commands[1:]:  # in float32 nothing is ours
        words = [sys.executable, "-m", *command.split()]
        run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        out = (run.stdout + run.stderr).replace(f"{tmp_path}/", "")
        if "--observe" in command:  # then come the operations
            out = "".join(out.splitlines(keepends=True)[:4]) + "...\n"
        assert COUNTS.sub("0", out) == COUNTS.sub("0", printed)
    (tmp_path / "example.py").write_text(code)  # whose lines the report quotes
    exec(compile(code, tmp_path / "example.py", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert matches(shown, capsys.readouterr().out)
    (file,) = re.findall(r"^```yaml\n(.*?)^```\n", readme, re.DOTALL | re.MULTILINE)
    assert len(plan_text(file, str(ROOT / "examples/digits/sweep.yaml")).runs) == 6 * 2 * 5 + 5  # fp32 once
    monkeypatch.chdir(ROOT)
    (line,) = re.findall(r"^(roundoff sweep .*--dry-run) ", readme, re.MULTILINE)
    run_command(f"{line} --no-estimate", monkeypatch)
    assert "75 runs" in capsys.readouterr().out


def test_the_pages_about_performance_show_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    for name, text in import_module("bench.table").pages().items():
        assert (PAGES / name).read_text(encoding="utf-8") == text


@contextmanager
def the_faces_as_they_are():
    """Takes the names away again that Sphinx puts into packages which import them when they are asked for."""
    faces = [import_module(f"roundoff.{part}") for part in ("formats", "simulate", "agents", "sweeps", "analysis")]
    before = [set(vars(face)) for face in faces]
    try:
        yield
    finally:
        for face, names in zip(faces, before, strict=True):
            for name in set(face.__all__) & (set(vars(face)) - names):
                delattr(face, name)


def built(source, folder):
    """What Sphinx makes of a folder with the settings of ``make docs``: the names it documents, and its warnings."""
    warnings = StringIO()
    with patch_docutils(PAGES), docutils_namespace(), the_faces_as_they_are():
        app = Sphinx(
            source, PAGES, folder, folder / "doctrees", "dummy", confoverrides={"smartquotes": False},
            status=None, warning=warnings, freshenv=True,
        )  # fmt: skip
        app.build()
    return set(app.env.domains.python_domain.objects), re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue())


def test_links_and_references_lead_somewhere_and_every_public_name_is_documented(tmp_path):
    documented, warnings = built(ROOT, tmp_path)
    assert not warnings
    for part in ("formats", "simulate", "agents", "sweeps", "analysis", "testing"):
        names = import_module(f"roundoff.{part}").__all__
        assert {f"roundoff.{part}.{name}" for name in names} <= documented
    for name in ("checkpoint", "log", "restore"):
        assert f"roundoff.current_run.{name}" in documented
    assert "roundoff.sweeps.from_python.sweep" in documented
    assert "roundoff.simulate.Policy.tells_products_apart" not in documented
    formula = next((tmp_path / "doctrees/docs/reference").glob("simulate.doctree")).read_bytes()
    assert b"literal_block" in formula
    assert b"Alias for field number" not in formula


def test_wrong_links_and_references_are_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# A\n\n[1](docs/page.md#no)\n\n[2](docs/gone.md) [3](docs/page.md#a--b_c)\n")
    (tmp_path / "docs/page.md").write_text("# A & `b_c`!\n\n![4](../x.png) [5](../README.md#a)\n")
    (tmp_path / "docs/lost.md").write_text("# Lost\n\n[web](https://example.org/#a)\n")
    text = ".. automodule:: roundoff.testing\n\n:func:`roundoff.no_such_name` :func:`compare` :func:`A.no_such_name`\n"
    (tmp_path / "docs/index.rst").write_text(f"Title\n=====\n\n.. toctree::\n\n   /README\n   page\n\n{text}")
    documented, warnings = built(tmp_path, tmp_path / "out")
    assert "roundoff.testing.equivalence" in documented
    found = [line.removeprefix(f"{tmp_path}/") for line in warnings.splitlines()]
    expected = ["README.md:3: WARNING: ", "README.md:5: WARNING: ", "docs/page.md:3: WARNING: image file not readable",
                "docs/lost.md: WARNING: document isn't included in any toctree",
                "docs/index.rst:11: WARNING: py:func reference target not found: roundoff.no_such_name",
                "docs/index.rst:11: WARNING: py:func reference target not found: A.no_such_name"]  # fmt: skip
    assert all(any(line.startswith(place) for line in found) for place in expected), found
    assert len(found) == len(expected), found


def test_the_index_leads_to_every_page(monkeypatch):
    monkeypatch.syspath_prepend(PAGES)
    index = importlib.import_module("index")
    for name, text in index.texts().items():
        assert (PAGES / name).read_text(encoding="utf-8") == text, "run: python docs/index.py"
    for page in f"{index.KINDS['Learn']} {index.KINDS['Do']}".split():
        assert (PAGES / f"{page}.md").read_text(encoding="utf-8").split("\n\n")[-1].startswith("Next: "), page
    listed = " ".join(index.KINDS.values()).split()
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(PAGES).with_suffix("").as_posix() for path in PAGES.rglob("*.md")}
    pages -= {"README", *(f"fixes/{page[:-3]}" for page in FIX_PAGES)}
    assert set(listed) == pages | {"../CONTRIBUTING", "../CHANGELOG"}


@pytest.mark.parametrize("page", FIX_PAGES)
def test_every_block_on_the_page_of_a_fix_is_a_program_and_prints_what_the_page_shows(page, capsys):
    code = blocks(f"fixes/{page}")
    assert len(code) >= 2  # the failure, and the part in a project of one's own
    for block, shown in code:
        assert block.count("\n") < 30
        exec(compile(block, page, "exec"), {"__name__": page})
        assert shown
        assert capsys.readouterr().out == shown


def test_the_page_of_keys_lists_the_keys_of_a_run():
    assert f"\n\n{keys_table()}\n\n" in (PAGES / "keys.md").read_text(encoding="utf-8"), keys_table()


def test_every_fix_has_a_page_and_every_page_is_found():
    assert {f"{name}.md" for name in FIXES} <= set(FIX_PAGES)
    index = (PAGES / "fixes/README.md").read_text(encoding="utf-8")
    assert all(f"]({page})" in index for page in FIX_PAGES)
    for page in ("README.md", *FIX_PAGES):
        linked = re.findall(r"\]\((\w+\.md)\)", (PAGES / "fixes" / page).read_text(encoding="utf-8"))
        assert all((PAGES / "fixes" / name).exists() for name in linked)
    files = {path for path in paths_in(index) if re.match("agents/.", path)}
    assert len(files) == len(FIX_PAGES)


FOLDERS = ("formats", "simulate", "agents", "sweeps", "analysis")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_page_about_the_house_names_every_room_and_nothing_else(folder):
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## Inside {folder}/\n")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([\w/]+(?:/|\.py))`", table))
    root = ROOT / folder
    rooms = {f"{path.parent.relative_to(root)}/" for path in root.rglob("*/__init__.py")}
    rooms -= {room for room in rooms if re.match("algorithms/.", room)}  # an algorithm is described in its own folder
    assert named == rooms | {path.name for path in root.glob("*.py")} - {"__init__.py"}


def defined_in(path):
    """The functions and classes of a module; those within a class by ``Class.name``."""

    def names(body, before):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield f"{before}{node.name}"
                if isinstance(node, ast.ClassDef):
                    yield from names(node.body, f"{before}{node.name}.")

    return set(names(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def test_every_step_that_a_page_names_is_a_function_of_that_file():
    """Steps are written ``file:function``, with the file from the root of the repository."""
    steps = [
        (page.name, *step)
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES.rglob("*.md")]
        for step in re.findall(r"`([\w/]+/\w+\.py):([A-Za-z_][\w.]*)`", page.read_text(encoding="utf-8"))
    ]
    missing = [step for step in steps if not (ROOT / step[1]).is_file() or step[2] not in defined_in(ROOT / step[1])]
    assert not missing
    ways = (PAGES / "architecture.md").read_text(encoding="utf-8").split("## Paths through the code\n")[1]
    ways = re.split(r"^\*\*", ways.split("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(ways) >= 8
    for way in ways:
        steps = re.split(r"^\d\. ", way, flags=re.MULTILINE)
        assert all(re.search(r"`[\w/]+\.py(:[\w.]+)?`", step) for step in steps[1:] or steps), way


def test_pages_are_not_long():
    """A page is read in one sitting; logs and long tables stand behind a link."""
    pages = [*PAGES.glob("*.md"), *PAGES.glob("research/*.md")]
    long = {path.name: count for path in pages if (count := len(path.read_text().splitlines())) > 300}
    assert not long


def test_rooms_are_not_full():
    """Folders stay small enough to be read: about a dozen modules."""
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            modules = {path.name for path in init.parent.glob("*.py")} - {"__init__.py"}
            assert len(modules) <= 15, init.parent


def test_the_page_about_the_house_names_every_module_of_the_umbrella():
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## Folders")[1].split("## ")[0]
    named = set(re.findall(r"`(\w+(?:\.py|/))`", block))
    umbrella = ROOT / "src/roundoff"
    links = {path.name for path in umbrella.iterdir() if path.is_symlink()}
    modules = {path.name for path in umbrella.glob("*.py")} - {"__init__.py"}
    rooms = {f"{path.parent.name}/" for path in umbrella.glob("*/__init__.py")} - {f"{name}/" for name in links}
    assert modules | rooms <= named
    assert named - {f"{folder}/" for folder in FOLDERS} <= modules | rooms


def paths_in(text):
    """Paths in the project that a page names as code: modules, and whatever begins with one of its folders."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    folders = "|".join((*FOLDERS, "bench", "docs", "src", "tests"))
    for span in re.findall(r"`([^`]+)`", prose):
        if re.fullmatch(rf"(?:[\w.-]+/)*[\w-]+\.py|(?:{folders})/[\w./*-]*", span):
            yield span


def test_every_path_on_a_page_exists():
    """A path may begin at any folder: ``watching/watcher.py``."""
    roots = [ROOT / name for name in (*FOLDERS, "bench", "docs", "examples", "src", "src/roundoff/cli", "tests")]
    files = [f"/{path.relative_to(ROOT)}" for root in roots for path in (root, root.parent, *root.rglob("*"))]
    files += [f"/src/roundoff/{path.name}" for path in ROOT.glob("src/roundoff/*.py")]
    files += [f"/{path.name}" for path in ROOT.glob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES.rglob("*.md")]
    named = [(page.name, path) for page in pages for path in paths_in(page.read_text(encoding="utf-8"))]
    assert len(named) > 50
    missing = [(page, path) for page, path in named if not fnmatch_filter(files, f"*/{path.rstrip('/')}")]
    assert not missing
