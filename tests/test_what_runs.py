"""The page of what runs says what happens: every cell of its table, run again."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from roundoff.simulate import Policy, Rule

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "what-runs.md"
QUICK = ("nn.MultiheadAttention", "optim.Adam", "optim.SparseAdam")
"""Programs that take no time unless they are compiled."""


def cells():
    """The page's table: program, package, mode, and what is said."""
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| program \| library \|.*?\n\n", text, re.DOTALL | re.MULTILINE)
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line]
    for program, package, *said in lines:
        for mode, what in zip(head[2:], said, strict=True):
            yield program, package, mode, what


def word(what):
    """What became of the program: in the table, a number alone says that it runs."""
    return re.match(r"[A-Za-z]*", what)[0] or "runs"


@pytest.fixture
def imported(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return import_module


def check(imported, program, package, mode, what):
    pytest.importorskip(package)
    (found,) = [each for each in imported("bench.others").PROGRAMS if each.name == program]
    outcome = imported("bench.programs").outcome(found, mode)
    assert outcome.word == word(what), outcome


TRIED = [cell for cell in cells() if cell[3]]


def is_quick(cell):
    return cell[0] in QUICK and cell[2] != "compiled"


@pytest.mark.parametrize("cell", filter(is_quick, TRIED), ids=lambda cell: f"{cell[0]}-{cell[2]}")
def test_a_quick_cell_of_the_table(cell, imported):
    check(imported, *cell)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", [cell for cell in TRIED if not is_quick(cell)], ids=lambda cell: f"{cell[0]}-{cell[2]}"
)
def test_a_cell_of_the_table(cell, imported):
    check(imported, *cell)


OPTIMIZERS = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "Adafactor", "RMSprop",
              "Rprop", "ASGD", "LBFGS", "Muon")  # fmt: skip
CURES = [(f"optim.{name}", "torch", Rule(role="optimizer", format="fp32")) for name in OPTIMIZERS] + [
    (name, "transformers", Rule(module="*norm*", format="fp32")) for name in ("Llama", "Mixtral")
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "package", "cure"), CURES, ids=lambda x: x if isinstance(x, str) else "")
def test_what_the_page_names_as_a_cure(program, package, cure, imported, monkeypatch):
    modes = {"cured": {"policy": Policy("e5m10").with_rules(cure)}}
    monkeypatch.setattr(imported("bench.programs"), "MODES", modes)
    check(imported, program, package, "cured", "")


def test_every_program_is_in_the_table_in_every_mode(imported):
    programs, modes = imported("bench.others").PROGRAMS, imported("bench.programs").MODES
    tried = [(each.name, mode) for each in programs for mode in modes if mode != "compiled" or each.compiles]
    assert [(program, mode) for program, _, mode, what in cells() if what] == tried


def test_the_page_shows_what_was_measured(imported):
    assert PAGE.read_text(encoding="utf-8") == imported("bench.what_runs").page()
