"""The code on the pages of docs/ runs, and prints what they say; links lead somewhere; every module has its row."""

import inspect
import json
import re
import sys
from fnmatch import fnmatch
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from docs_pages import matches, run_page

from roundoff.agents import FIXES, TrainConfig

PAGES = Path(__file__).parents[1] / "docs"
FIX_PAGES = sorted(path.name for path in (PAGES / "fixes").glob("*.md") if path.name != "README.md")

# A block of code, and what it prints if the page shows that.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def keys_table():
    """The keys of a run, as docs/sweeps.md lists them: from the model and its docstring."""
    attributes = inspect.getdoc(TrainConfig).split("Attributes:\n")[1]
    about = {
        name: " ".join(text.split()).replace("``", "`")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n      +.*)*)", attributes, re.MULTILINE)
    }
    defaults = {**TrainConfig().as_json(), "fixes": "all"}
    assert set(about) == set(TrainConfig.model_fields)
    rows = [f"| `{name}` | `{yaml_text(defaults[name])}` | {text} |" for name, text in about.items()]
    return "\n".join(["| key | default | what |", "|---|---|---|", *rows])


def yaml_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def blocks(page):
    return BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))


def test_the_code_on_the_page_about_simulation_runs(capsys):
    code = blocks("simulation.md")
    assert len(code) >= 8
    names = {"__name__": "simulation.md"}
    for block, _ in code:
        exec(compile(block, "simulation.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "rounded" in printed  # the audit
    assert "first non-finite result" in printed or "results of" in printed  # the observer
    assert "stay in high precision" in printed  # blame


def test_the_code_on_the_page_about_environments_runs():
    ((code, _),) = blocks("environments.md")
    names = {}
    exec(compile(code, "environments.md", "exec"), names)
    assert names["steps"].rewards.shape == (2,)


@pytest.mark.parametrize(("page", "least"), [("tutorial.md", 10), ("compiling.md", 1), ("formats.md", 6)])
def test_every_block_runs_and_every_line_printed_is_on_the_page(page, least, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count = 0
    for block, shown, printed in run_page(PAGES / page, monkeypatch, capsys):
        assert matches(shown, printed), f"{block}\nprinted\n{printed}"
        count += 1
    assert count >= least


@pytest.fixture(scope="module")
def builder():
    spec = spec_from_file_location("pages", PAGES / "pages.py")
    module = sys.modules["pages"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_are_right_and_the_pages_build(builder, tmp_path):
    assert builder.build(PAGES.parent, tmp_path) == []
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "docs/index.html", "docs/tutorial.html", "docs/fixes/hadam.html"} <= written
    for path in written:
        text = (tmp_path / path).read_text(encoding="utf-8")
        targets = re.findall(r'(?:href|src)="(?!https?:)([^"#]*)(?:#([^"]*))?"', text)
        assert len(targets) > 5
        for name, anchor in targets:
            file = (tmp_path / path).parent / name if name else tmp_path / path
            assert file.is_file()
            assert not anchor or f'id="{anchor}"' in file.read_text(encoding="utf-8")
        assert not re.search(r"<(script|iframe)|(src|stylesheet\" href)=\"http", text)


def test_wrong_links_are_found(builder, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# A & `b_c`!\n\n# A\n\n# A\n[1](docs/README.md#no) [2](#a--b_c) [3](#a-1)\n")
    (tmp_path / "docs/README.md").write_text("[1](../README.md) [2](gone.md)\n\n![3](../../x.png) [4](x.csv#a)\n")
    (tmp_path / "docs/lost.md").write_text("[web](https://example.org/#a)\n")
    (tmp_path / "docs/x.csv").write_text("1\n")
    found = builder.build(tmp_path, tmp_path / "out")
    places = ["README.md:6: link to 'docs/README.md#no'", "docs/README.md:1: link to 'gone.md'",
              "docs/README.md:3: link to '../../x.png'", "docs/README.md:3: link to 'x.csv#a'",
              "docs/lost.md: no link from docs/README.md"]  # fmt: skip
    assert [any(message.startswith(place) for message in found) for place in places] == [True] * 5
    assert len(found) == 5
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("page", FIX_PAGES)
def test_every_block_on_the_page_of_a_fix_is_a_program_and_prints_what_the_page_shows(page, capsys):
    code = blocks(f"fixes/{page}")
    assert len(code) >= 2  # the failure, and the part in a project of one's own
    for block, shown in code:
        assert block.count("\n") < 30
        exec(compile(block, page, "exec"), {"__name__": page})
        assert shown
        assert capsys.readouterr().out == shown


def test_the_page_about_sweep_files_lists_the_keys_of_a_run():
    assert f"\n\n{keys_table()}\n\n" in (PAGES / "sweeps.md").read_text(encoding="utf-8"), keys_table()


def test_every_fix_has_a_page_and_every_page_is_found():
    assert {f"{name}.md" for name in FIXES} <= set(FIX_PAGES)
    index = (PAGES / "fixes/README.md").read_text(encoding="utf-8")
    assert all(f"]({page})" in index for page in FIX_PAGES)
    for page in ("README.md", *FIX_PAGES):
        linked = re.findall(r"\]\((\w+\.md)\)", (PAGES / "fixes" / page).read_text(encoding="utf-8"))
        assert all((PAGES / "fixes" / name).exists() for name in linked)
    readme = (PAGES.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"docs/fixes/{name}.md" in readme for name in FIXES)


@pytest.mark.parametrize("folder", ["formats", "simulate"])
def test_the_page_about_the_house_names_every_room_and_nothing_else(folder):
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## Inside {folder}/\n")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([\w/]+(?:/|\.py))`", table))
    root = PAGES.parent / folder
    rooms = {f"{path.parent.relative_to(root)}/" for path in root.rglob("*/__init__.py")}
    assert named == rooms | {path.name for path in root.glob("*.py")} - {"__init__.py"}


def test_rooms_are_not_full():
    """Folders stay small enough to be read: about a dozen modules."""
    for folder in ("formats", "simulate"):
        for init in (PAGES.parent / folder).rglob("__init__.py"):
            modules = {path.name for path in init.parent.glob("*.py")} - {"__init__.py"}
            assert len(modules) <= 15, init.parent


@pytest.mark.parametrize("folder", ["agents", "sweeps", "analysis"])
def test_the_page_about_the_house_names_every_module_and_nothing_else(folder):
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    sections = re.findall(rf"^## Inside {folder}/.*?(?=^## )", page, re.DOTALL | re.MULTILINE)
    assert sections
    named = {name for section in sections for name in re.findall(r"`(\w*\*?\w*\.py)`", section)}
    modules = {path.name for path in (PAGES.parent / folder).rglob("*.py")} - {"__init__.py"}
    assert modules
    assert not {module for module in modules if not any(fnmatch(module, name) for name in named)}
    assert not {name for name in named if not any(fnmatch(module, name) for module in modules)}


def test_the_page_about_the_house_names_every_module_of_the_umbrella():
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## The house")[1].split("## ")[0]
    named = set(re.findall(r"`(\w*\*?\w*\.py)`", block))
    modules = {path.name for path in (PAGES.parent / "src/roundoff").rglob("*.py")} - {"__init__.py"}
    assert not {module for module in modules if not any(fnmatch(module, name) for name in named)}
