"""The YAML reader: places, YAML 1.2 scalars, and files that are wrong or hostile."""

import math

import pytest
import yaml
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.sweeps.errors import SweepFileError
from roundoff.sweeps.language.located_yaml import parse


@each(
    ("text", "value"),
    [
        ("3e-4", 3e-4), ("1E5", 1e5), ("1.", 1.0), (".5", 0.5), ("-2", -2), ("+7", 7), ("010", 10), ("0o17", 15),
        ("0x1F", 31), ("no", "no"), ("on", "on"), ("off", "off"), ("yes", "yes"), ("y", "y"), ("true", True),
        ("False", False), ("null", None), ("~", None), (".inf", math.inf), ("-.inf", -math.inf), ("1_000", "1_000"),
        ("12:30", "12:30"), ("'3'", "3"), ('"true"', "true"), ("2001-01-01", "2001-01-01"), ("e5m10", "e5m10"),
        ("9" * 5000, "9" * 5000), ("=", "="),
    ],
)  # fmt: skip
def test_scalars(text, value):
    read = parse(f"a: {text}", "f").plain()["a"]
    assert read == value
    assert type(read) is type(value)


def test_nan():
    assert math.isnan(parse("a: .nan", "f").plain()["a"])


def test_places_count_lines_and_columns_from_one():
    document = parse("a: 1\nb:\n  - x\n  - {c: 2}\n", "file.yaml")
    assert document.place == "file.yaml:1:1"
    assert document.key_places == {"a": "file.yaml:1:1", "b": "file.yaml:2:1"}
    assert document.value["a"].place == "file.yaml:1:4"
    first, second = document.value["b"].value
    assert (first.place, second.place) == ("file.yaml:3:5", "file.yaml:4:5")
    assert second.value["c"].place == "file.yaml:4:9"


def test_aliases_are_followed():
    assert parse("a: &x [1, 2]\nb: *x", "f").plain() == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"f:3:1: duplicate key 'a'; it is already at f:1:1"),
        ("{a: [1, }", r"f:1:\d+: is not YAML"),
        ("a: b: c", r"f:1:5: is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("", "is empty"),
        ("# only a comment", "is empty"),
        ("a: !!python/object/apply:os.system ['true']", "tags such as tag:yaml.org,2002:python"),
        ("a: !x 3", "tags such as !x have no meaning"),
        ("[a]: 3", "a key must be text"),
        ("a: &x [*x]", "nested more than"),
        ("\x00", "is not YAML"),
        ("a: *nowhere", "is not YAML"),
        ("[" * 3000, "is not YAML"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    same = ("a: !x 'b'", "a: !x [1]", "!x {a: 1}", "a: !!str 5", "a: !!bool 3") if "!x" in text else ()
    for document in (text, *same):
        with pytest.raises(SweepFileError, match="tags such as" if document in same else message):
            parse(document, "f")


def test_a_billion_laughs_ends_soon():
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
    )
    with pytest.raises(SweepFileError, match="more than 100000 values"):
        parse(text, "f")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        parse(text, "f")
    except SweepFileError as error:
        assert str(error).startswith("f")


class Quoting(yaml.SafeDumper):
    """Quotes all text: plain text may be a number here that is none to PyYAML, such as 1e5."""


Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
        lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
        max_leaves=10,
    )
)
def test_what_is_written_with_all_text_quoted_comes_back(value):
    text = yaml.dump({"v": value}, Dumper=Quoting, allow_unicode=True, sort_keys=False)
    assert repr(parse(text, "f").plain()) == repr({"v": value})  # 1 and 1.0 and True are equal
