"""What files say reaches a terminal as text alone."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundoff.cli.options import say
from roundoff.printable import printable


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    shown = printable(text)
    assert shown.isprintable() or all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in shown)
    assert printable(text, lines=True).count("\n") == text.count("\n")
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grün, 漢字, Ⅷ ½", "grün, 漢字, Ⅷ ½"),
        ("\x1b[2J\x07\x9b", r"\x1b[2J\x07\x9b"),
        ("a\nb\rc\td\0", r"a\nb\rc\td\x00"),
        ("a\u202eb\u2028\ud800\U000e0001", r"a\u202eb\u2028\ud800\U000e0001"),
        ("x" * 20_000, "x" * 10_000 + "..."),
    ],
)
def test_what_is_hidden_is_shown(text, shown):
    assert printable(text) == shown


def test_the_command_line_says_printable_text(capsys):
    say("one\x1b[1m\ntwo")
    say("three\x9b", error=True)
    out, err = capsys.readouterr()
    assert (out, err) == ("one\\x1b[1m\ntwo\n", "three\\x9b\n")


def test_a_mistake_of_ours_is_told_with_printable_text(monkeypatch, capsys):
    from roundoff import cli

    def fail():
        raise AssertionError("\x1b[2J")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    err = capsys.readouterr().err
    assert "AssertionError: \\x1b[2J" in err
    assert "\x1b" not in err
