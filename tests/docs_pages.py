"""What the pages of docs/ show, run: blocks of Python, shell and YAML, in order, and what they print."""

import re
import shlex
import sys
import tempfile
from pathlib import Path

from roundoff.cli import main

# A block, and what it prints if the page shows that.
_BLOCK = re.compile(r"^```(python|sh|yaml)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def run_command(line, monkeypatch):
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    try:
        main()
    except SystemExit as exit_:
        assert not exit_.code, line


def run_page(page, monkeypatch, capsys):
    """Runs every block in the current folder; yields each with what it shows and what it printed.

    The temporary folders of a page lie in the current folder, too, and go when pytest removes it.
    """
    names = {"__name__": "page"}
    monkeypatch.setattr(tempfile, "tempdir", str(Path.cwd()))
    monkeypatch.syspath_prepend(Path.cwd())  # for modules that the page shows
    for language, block, shown in _BLOCK.findall(page.read_text(encoding="utf-8")):
        file = re.match(r"# (\w+\.(?:yaml|py))\n", block)
        if file:
            Path(file[1]).write_text(block, encoding="utf-8")
        elif language == "sh":
            for line in block.splitlines():
                run_command(line, monkeypatch)
        else:
            exec(compile(block, page.name, "exec", dont_inherit=True), names)
        yield block, shown, "".join(capsys.readouterr())


def matches(shown, printed):
    """Whether it is what the page shows, in which ``...`` is anything in a line."""
    pattern = re.escape(shown).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed) is not None
