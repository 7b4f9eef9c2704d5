"""Makes the frame of a report: one file that includes its style and script, and may load nothing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..markup import Safe, element, join

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).parent


def page(title: str, content: Sequence[object]) -> str:
    """Makes a whole HTML document.

    Its content security policy forbids every load, and every script but the page's own, which is known by its hash.

    Args:
        title: the title of the window.
        content: the content of the body; anything but :class:`roundoff.analysis.reports.markup.Safe` is escaped.
    """
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Safe(style)),
    )
    tip = element("div", class_="tip", role="status", aria_live="polite")
    body = element("body", element("main", *content), tip, element("script", Safe(script)))
    return join([Safe("<!DOCTYPE html>\n"), element("html", head, Safe("\n"), body, lang="en"), Safe("\n")])
