"""Write both indexes of the pages, docs/README.md and docs/index.rst (for the HTML), and the table of docs/presets.md.

    python docs/index.py

``KINDS`` lists the pages by kind. The line of a page is its title and its first sentence.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from roundoff.sweeps.language.preset_files import presets

PAGES = Path(__file__).parent

KINDS = {
    "Learn": "quickstart tutorial",
    "Do": "simulation recipes policies watching accuracy testing programs running-sweeps reading cost compiling"
    " frameworks libraries environments learners rollouts quantization algorithms hardware",
    "Look up": "reference/api reference/commands formats sweeps keys presets fixes/README agents sums-and-modes"
    " what-runs performance performance-rounding performance-agents limits glossary",
    "Understand": "recursions fidelity",
    "Research": "research/results research/results-sac research/results-algorithms research/next-fix",
    "Contribute": "../CONTRIBUTING architecture ../CHANGELOG",
}
ABOUT = {
    "Learn": "Begin here, in this order.",
    "Do": "One task per page.",
    "Look up": "Arguments, keys, names and numbers.",
    "Understand": "Explanations of results.",
    "Research": "Reports of experiments. You do not need them to use `roundoff`.",
    "Contribute": "For changes to the project.",
}
HEAD = """# Documentation

[The front page](../README.md) introduces `roundoff`. This page, written by `python docs/index.py`, lists all pages by
kind. `make docs` builds them as HTML in `build/docs`, with [all public names](reference/index.rst), and fails on broken
links and references.
"""
HTML_HEAD = """roundoff
========

``roundoff`` runs unmodified PyTorch programs in any number format and says what breaks first. New readers begin with
:doc:`the front page </README>`. :doc:`Another index <README>` has a sentence about each page.

.. toctree::
   :hidden:

   /README
   README
"""


def line(page: str) -> str:
    """The entry of a page: its title as a link, and its first sentence."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    title, _, body = text.partition("# ")[2].partition("\n")
    body = re.sub(r"^```.*?^```\n", "", body, flags=re.DOTALL | re.MULTILINE)
    paragraph = next(part for part in re.split(r"\n\s*\n", body) if re.match(r"\n*[\w`\[*\"]", part))
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    first = re.findall(r"(?:`[^`]*`|[^`])+?[.?!:](?= |$)", plain)[0]
    text = f"- [{title}]({page}.md): {first.rstrip(':.')}{'' if first.endswith('?') else '.'}"
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def table_of_presets() -> str:
    """Presets of one subject in a row: their sizes, their figures, and the first sentence of a description."""
    rows: dict[str, list[str]] = {}
    for name, preset in sorted(presets().items()):
        subject, size = re.sub(f"-{preset.size}$", "", name), preset.size
        first = re.split(r"(?<=[.?:]) ", f"{preset.description} ")[0].strip(":.")
        row = rows.setdefault(subject, [f"`{subject}`", "", " ".join(preset.reproduces), first])
        row[1] = f"{row[1]} {size if size == 'paper' else f'`-{size}`'}".strip()
    lines = ["| preset | sizes | paper | subject |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows.values())]) + "\n"


def texts() -> dict[str, str]:
    """The text of each file by its name."""
    pages, html = HEAD, HTML_HEAD
    for kind, names in KINDS.items():
        pages += f"\n## {kind}\n\n{ABOUT[kind]}\n\n" + "\n".join(map(line, names.split())) + "\n"
        entries = "".join(f"   {name.replace('../', '/')}\n" for name in names.split())
        html += f"\n.. toctree::\n   :caption: {kind}\n   :maxdepth: 1\n\n{entries}"
    html += "\n.. toctree::\n   :caption: Reference\n   :glob:\n\n   reference/index\n   fixes/[!R]*\n"
    before, mark, _ = (PAGES / "presets.md").read_text(encoding="utf-8").partition("<!-- python docs/index.py -->\n")
    return {"README.md": pages, "index.rst": html, "presets.md": before + mark + table_of_presets()}


if __name__ == "__main__":
    for name, text in texts().items():
        (PAGES / name).write_text(text, encoding="utf-8")
