"""The code on the pages of docs/ runs, and prints what the pages say; the page about the house names every module."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from roundoff.agents import FIXES

PAGES = Path(__file__).parents[1] / "docs"
FIX_PAGES = sorted(path.name for path in (PAGES / "fixes").glob("*.md") if path.name != "README.md")

# A block of code, and what it prints if the page shows that.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


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


@pytest.mark.parametrize("page", FIX_PAGES)
def test_every_block_on_the_page_of_a_fix_is_a_program_and_prints_what_the_page_shows(page, capsys):
    code = blocks(f"fixes/{page}")
    assert len(code) >= 2  # the failure, and the part in a project of one's own
    for block, shown in code:
        assert block.count("\n") < 30
        exec(compile(block, page, "exec"), {"__name__": page})
        assert shown
        assert capsys.readouterr().out == shown


def test_every_fix_has_a_page_and_every_page_is_found():
    assert {f"{name}.md" for name in FIXES} <= set(FIX_PAGES)
    index = (PAGES / "fixes/README.md").read_text(encoding="utf-8")
    assert all(f"]({page})" in index for page in FIX_PAGES)
    for page in ("README.md", *FIX_PAGES):
        linked = re.findall(r"\]\((\w+\.md)\)", (PAGES / "fixes" / page).read_text(encoding="utf-8"))
        assert all((PAGES / "fixes" / name).exists() for name in linked)
    readme = (PAGES.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"docs/fixes/{name}.md" in readme for name in FIXES)


@pytest.mark.parametrize("folder", ["formats", "simulate", "agents", "sweeps", "analysis"])
def test_the_page_about_the_house_names_every_module_and_nothing_else(folder):
    page = (PAGES / "architecture.md").read_text(encoding="utf-8")
    sections = re.findall(rf"^## Inside {folder}/.*?(?=^## )", page, re.DOTALL | re.MULTILINE)
    named = {name for section in sections for name in re.findall(r"`(\w*\*?\w*\.py)`", section)}
    modules = {path.name for path in (PAGES.parent / folder).glob("*.py")} - {"__init__.py"}
    assert not {module for module in modules if not any(fnmatch(module, name) for name in named)}
    assert not {name for name in named if not any(fnmatch(module, name) for module in modules)}
