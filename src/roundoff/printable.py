"""Makes text from files of unknown origin safe for a terminal."""

from __future__ import annotations

from unicodedata import category

# Control characters (such as ESC, which begins commands to a terminal), invisible characters and those that change
# the direction of text, other ends of lines, and halves of surrogate pairs, which are not text.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LONGEST = 10_000
_LATIN, _BASIC = 0x100, 0x10000


def printable(text: str, *, lines: bool = False) -> str:
    r"""Escapes the characters of ``text`` that a terminal obeys or hides: ESC becomes ``\x1b``.

    Args:
        text: Any text, even if an attacker has chosen it.
        lines: whether line feeds stay, for messages of several lines; else they become ``\n``.

    Returns:
        The text; very long ones are cut, each line by itself if ``lines``.
    """
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if category(character) not in _HIDDEN:
        return character
    code = ord(character)
    name = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return name or (f"\\x{code:02x}" if code < _LATIN else f"\\u{code:04x}" if code < _BASIC else f"\\U{code:08x}")
