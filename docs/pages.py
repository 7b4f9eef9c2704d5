"""The pages of the project as HTML: ``make docs``. Checks every link on them first; nothing is loaded from outside.

    python docs/pages.py [FOLDER]     # build/docs

The folder mirrors the repository: ``README.md`` becomes ``index.html``, another page ``name.html``, and files that
pages link to are copied. Links to other sites are listed, not fetched.
"""

from __future__ import annotations

import re
import shutil
import sys
from functools import cached_property
from html import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

_EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_STYLE = Path(__file__).with_name("pages.css")


def _highlight(code: str, language: str, _attributes: str) -> str:
    """A block of code; empty if its language is unknown, which leaves it plain."""
    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        return ""
    return f'<pre class="code">{highlight(code, lexer, HtmlFormatter(nowrap=True))}</pre>\n'


_MARKDOWN = MarkdownIt("commonmark", {"highlight": _highlight}).enable("table")


class Link(NamedTuple):
    """A link or an image on a page."""

    line: int
    target: str
    token: Token

    @property
    def external(self) -> bool:
        """Whether it leads to another site."""
        return bool(_EXTERNAL.match(self.target))


class Page:
    """A file of Markdown.

    Args:
        root: of the repository.
        path: of the file, relative to ``root``.
    """

    def __init__(self, root: Path, path: PurePosixPath) -> None:
        self.path = path
        self._tokens = _MARKDOWN.parse((root / path).read_text(encoding="utf-8"))

    @cached_property
    def anchors(self) -> dict[str, str]:
        """What each heading is called in links, as GitHub calls it, and its text, in order."""
        found: dict[str, str] = {}
        for opening, inline in zip(self._tokens, self._tokens[1:], strict=False):
            if opening.type == "heading_open":
                text = "".join(part.content for part in inline.children or ())
                name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
                count = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in found)
                opening.attrSet("id", f"{name}-{count}" if count else name)
                found[str(opening.attrGet("id"))] = text
        return found

    @property
    def title(self) -> str:
        """Its first heading."""
        return next(iter(self.anchors.values()), str(self.path))

    @cached_property
    def links(self) -> list[Link]:
        """All links and images."""
        found = []
        for inline in self._tokens:
            line = inline.map[0] + 1 if inline.map else 0
            for part in inline.children or ():
                target = part.attrGet("src" if part.type == "image" else "href")
                if target is not None:
                    found.append(Link(line, str(target), part))
        return found

    def resolve(self, target: str) -> tuple[PurePosixPath | None, str]:
        """The file that an internal link leads to, None outside of the repository, and the anchor."""
        name, _, anchor = target.partition("#")
        if not name:
            return self.path, anchor
        parts: list[str] = list(self.path.parent.parts)
        for part in PurePosixPath(unquote(name)).parts:
            if part == "..":
                if not parts:
                    return None, anchor
                parts.pop()
            else:
                parts.append(part)
        return PurePosixPath(*parts), anchor

    @property
    def body(self) -> str:
        """As HTML, with links as they are now."""
        _ = self.anchors  # gives the headings their names
        return str(_MARKDOWN.renderer.render(self._tokens, _MARKDOWN.options, {}))


_INDEX = PurePosixPath("docs/README.md")
"""Leads to every page of its folder."""


def read_pages(root: Path) -> dict[PurePosixPath, Page]:
    """All pages: the README and what is in ``docs/``."""
    files = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    paths = [PurePosixPath(file.relative_to(root).as_posix()) for file in files]
    return {path: Page(root, path) for path in paths}


def _listed(pages: dict[PurePosixPath, Page]) -> dict[PurePosixPath, Page]:
    """The index, and the pages that it leads to, in its order."""
    index = pages[_INDEX]
    files = [index.resolve(link.target)[0] for link in index.links if not link.external]
    return {path: pages[path] for path in (_INDEX, *files) if path in pages}


def mistakes(root: Path, pages: dict[PurePosixPath, Page]) -> Iterator[str]:
    """Links that lead nowhere, and pages that ``docs/README.md`` does not lead to, each as a message with its place."""
    listed = _listed(pages)
    for path, page in pages.items():
        if path.parent == _INDEX.parent and path not in listed:
            yield f"{path}: no link from {_INDEX} leads here; add one"
        for link in page.links:
            if link.external:
                continue
            file, anchor = page.resolve(link.target)
            place = f"{path}:{link.line}: link to {link.target!r}"
            if file is None or not (root / file).is_file():
                yield f"{place}: there is no such file in the repository"
            elif anchor and file not in pages:
                yield f"{place}: {file} is no page, so it has no headings to link to"
            elif anchor and anchor not in pages[file].anchors:
                yield f"{place}: no such heading in {file}; there are {', '.join(pages[file].anchors)}"


def _address(path: PurePosixPath) -> PurePosixPath:
    """Where a page stands among the HTML files."""
    return path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")


def _relative(target: PurePosixPath, page: Page) -> str:
    return "../" * len(page.path.parent.parts) + str(target)


def _write_page(page: Page, pages: dict[PurePosixPath, Page], folder: Path) -> set[PurePosixPath]:
    """Writes a page; returns the files that it links to and which are no pages."""
    files = set()
    for link in page.links:
        file, anchor = (None, "") if link.external else page.resolve(link.target)
        if file is None:
            continue
        if file not in pages:
            files.add(file)
        target = _relative(_address(file) if file in pages else file, page)
        attribute = "src" if link.token.type == "image" else "href"
        link.token.attrSet(attribute, f"{target}#{anchor}" if anchor else target)
    entries = [
        f'<a href="{_relative(_address(path), page)}"{" aria-current=page" if other is page else ""}>'
        f"{escape(other.title)}</a>"
        for path, other in _listed(pages).items()
    ]
    destination = folder / _address(page.path)
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_text(
        f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)}</title>
<link rel="stylesheet" href="{_relative(PurePosixPath("pages.css"), page)}">
<main>
{page.body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")}</main>
<nav aria-label="Pages">{"".join(entries)}</nav>
</html>
""",
        encoding="utf-8",
    )
    return files


def build(root: Path, folder: Path) -> list[str]:
    """Checks all pages and writes them as HTML.

    Args:
        root: of the repository.
        folder: where to; made anew.

    Returns:
        Mistakes; nothing is written if there are any.
    """
    pages = read_pages(root)
    found = list(mistakes(root, pages))
    if found:
        return found
    if folder.exists():
        shutil.rmtree(folder)
    files = {file for page in pages.values() for file in _write_page(page, pages, folder)}
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, folder / file)
    light, dark = (HtmlFormatter(style=name).get_style_defs(".code") for name in ("default", "github-dark"))
    style = _STYLE.read_text(encoding="utf-8")
    (folder / "pages.css").write_text(f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}")
    return []


def main() -> None:
    """Builds the pages of this repository."""
    root = Path(__file__).parents[1]
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "build" / "docs"
    found = build(root, folder)
    if found:
        sys.exit("\n".join(found))
    pages = read_pages(root)
    links = [link for page in pages.values() for link in page.links]
    outside = sorted({link.target for link in links if link.external})
    print(f"{folder / 'index.html'}: {len(pages)} pages; {len(links)} links, all within the project right.")
    print("Not fetched:", *outside, sep="\n  ")


if __name__ == "__main__":
    main()
