"""Text from files of unknown origin, as a terminal may show it."""

from __future__ import annotations

from unicodedata import category

# Control characters (ESC, with which a terminal is told what to do, is one), characters that nobody sees or that turn
# the direction of what follows, other ends of lines, and halves of pairs, which are no text at all.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LONGEST = 10_000
_LATIN, _BASIC = 0x100, 0x10000


def printable(text: str, *, lines: bool = False) -> str:
    r"""``text`` without anything that a terminal obeys or hides: such characters as escapes, ESC as ``\x1b``.

    Args:
        text: Any text, even if an attacker has chosen it.
        lines: whether line feeds stay, for messages of several lines; else they are shown as ``\n``.

    Returns:
        The text; very long ones are cut, each line by itself if ``lines``.
    """
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if category(character) not in _HIDDEN:
        return character
    code = ord(character)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return named or (f"\\x{code:02x}" if code < _LATIN else f"\\u{code:04x}" if code < _BASIC else f"\\U{code:08x}")
