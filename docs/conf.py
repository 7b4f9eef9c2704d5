"""Sphinx: the pages of the project and the reference of its public names, as HTML. ``make docs`` runs it.

A link that leads nowhere and a reference to an undocumented name are errors.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "roundoff"
release = metadata.version("roundoff")
html_title = "roundoff"
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["pages.css"]

# The source is the repository: links between pages, the README and other files are the same here and on GitHub.
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = [".*", "build", "results", "src", "tests"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4  # named as GitHub names them
autodoc_default_options = {"members": True, "imported-members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

nitpicky = True  # a reference to a name that is not documented is a mistake

# Addresses of pages that were merged into others.
_MOVED = {
    "docs/decisions.html": "../CONTRIBUTING.html#decisions",
    "docs/deployment.html": "quantization.html#export-a-policy",
    "docs/diff.html": "testing.html#two-programs",
    "docs/digits.html": "accuracy.html#digits-of-a-loss",
    "docs/eight-bits.html": "recipes.html#sac-in-eight-bits",
    "docs/first-answer.html": "programs.html#plan-seeds-and-steps",
    "docs/matrix-units.html": "hardware.html#sums-of-matrix-units",
    "docs/or-another.html": "limits.html#which-library",
    "docs/own-agents.html": "libraries.html#your-own-agent",
    "docs/own-dtypes.html": "sums-and-modes.html#programs-in-half-precision",
    "docs/performance-plain.html": "performance.html",
    "docs/research/bf16-critics.html": "../recursions.html#critics-in-bfloat16",
    "docs/research/reproducing.html": "../presets.html#reproduce-three-papers",
    "docs/troubleshooting.html": "running-sweeps.html#troubleshooting",
    "docs/versions.html": "limits.html#tested-versions",
}

_INTERNAL = {"ignore_compile_internals", "load_observer_state", "tells_products_apart", "writing"}
_PUBLIC = ("formats", "simulate", "agents", "sweeps", "analysis", "testing")


def _import_all(_app: Sphinx) -> None:
    """Puts names that modules import when they are first used where autodoc looks for them."""
    for part in _PUBLIC:
        module = import_module(f"roundoff.{part}")
        for name in module.__all__:
            setattr(module, name, getattr(module, name))


def _google(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings in Google's style as Sphinx reads them."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
        return
    text = _read(lines)
    if what not in ("property", "attribute"):  # there napoleon takes what stands before a colon for a type
        text = GoogleDocstring(text, Config(napoleon_use_ivar=True), app, what, name, obj, options).lines()
    lines[:] = text


def _read(lines: list[str]) -> list[str]:
    """Lines of a docstring as Sphinx reads them: formulas (indented paragraphs) as written, bars escaped."""
    found: list[str] = []
    is_formula = False
    for line in lines:
        if line and not line.startswith("    "):
            is_formula = False
        elif line and found and not found[-1] and not is_formula:
            ahead = next((text for text in reversed(found) if text), " ")
            is_formula = not ahead.startswith(" ") and not ahead.endswith("::")
            found += ["::", ""] if is_formula else []
        found.append(line if is_formula else re.sub(r"(``.*?``)|\|", lambda found: found[1] or r"\|", line))
    return found


def _skip(_app: Sphinx, _what: str, name: str, _obj: Any, skip: bool, _options: Any) -> bool:
    """Whether a member is left out: the pages do not show internals of PyTorch's modes and of the package."""
    return skip or name in _INTERNAL


def _keys(_app: Sphinx, _what: str, _name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """The signature of a model of settings: its keys are in its docstring."""
    return ("(**keys)", "") if isinstance(obj, type) and issubclass(obj, BaseModel) else None


@cache
def _all_names() -> set[str]:
    """The names of all imported modules, their objects, and the members of their classes."""
    modules = [module for name, module in sys.modules.items() if name.startswith("roundoff.")]
    objects = [vars(module) for module in modules]
    members = [dir(entry) for names in objects for entry in names.values() if isinstance(entry, type)]
    return {module.__name__.rpartition(".")[2] for module in modules}.union(*objects, *members)


def _by_last_part(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.TextElement
) -> nodes.Node | None:
    """Resolves names that Sphinx does not find: public names under another path (``roundoff.round``), private names."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rpartition(".")[2]
    found = {
        (entry.docname, entry.node_id)
        for name, entry in env.domains.python_domain.objects.items()
        if name.startswith("roundoff.") and name.split(".")[2:] == [last]
    }
    if len(found) == 1:
        ((page, anchor),) = found
        return make_refnode(app.builder, node["refdoc"], page, anchor, content)
    in_signature = "refwarn" not in node and node["reftype"] in ("class", "obj")
    return content if in_signature or last in _all_names() else None


def _redirect(app: Sphinx, error: Exception | None) -> None:
    """Writes a page at each old address that leads to the new one."""
    for old, new in _MOVED.items() if error is None and app.builder.format == "html" else ():
        (Path(app.outdir) / old).write_text(f'<meta http-equiv="refresh" content="0; url={new}">', encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", _import_all)
    app.connect("autodoc-process-docstring", _google)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _keys)
    app.connect("missing-reference", _by_last_part)
    app.connect("build-finished", _redirect)
