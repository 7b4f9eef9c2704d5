"""The code on the pages of docs/ runs."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[1] / "docs"


def code(page):
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["simulation.md"])
def test_the_code_on_the_page_runs(page, capsys):
    blocks = code(page)
    assert len(blocks) >= 8
    names = {"__name__": page}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    printed = capsys.readouterr().out
    assert "rounded" in printed  # the audit
    assert "first non-finite result" in printed or "results of" in printed  # the observer
    assert "stay in high precision" in printed  # blame
