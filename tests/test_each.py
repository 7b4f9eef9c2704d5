"""One test of several values."""

import re

import pytest
from each import each

CALLS = []


@each("second", [3, 4])
@each(("first", "word"), [(1, "a"), (2, "b")])
def combinations(first, second, word, tmp_path):
    CALLS.append((first, second, word, tmp_path))


def test_every_combination_is_asked_for_and_other_arguments_are_passed_on():
    CALLS.clear()
    combinations(tmp_path="here")
    assert CALLS == [(1, 3, "a", "here"), (2, 3, "b", "here"), (1, 4, "a", "here"), (2, 4, "b", "here")]


@each("number", [1, 2, 3, 4])
def even(number, monkeypatch):
    assert "EACH" not in __import__("os").environ
    monkeypatch.setenv("EACH", "1")
    if number == 4:
        pytest.skip("too large")
    assert number % 2 == 0


def test_a_failure_names_all_that_failed_and_each_has_a_monkeypatch_of_its_own(monkeypatch):
    with pytest.raises(BaseExceptionGroup, match="2 of 4 failed") as failed:
        even(monkeypatch=monkeypatch)
    assert [error.__notes__ for error in failed.value.exceptions] == [["with number = 1"], ["with number = 3"]]


@each("why", ["one", "two"])
def skipped(why):
    pytest.skip(why)


@each("fails", [False, True])
def sometimes(fails):
    if fails:
        pytest.fail("told")
    pytest.skip("not this one")


def test_it_is_skipped_where_all_are_and_one_failure_is_itself():
    with pytest.raises(pytest.skip.Exception, match="one"):
        skipped()
    with pytest.raises(pytest.fail.Exception, match="told") as failed:
        sometimes()
    assert failed.value.__notes__ == ["with fails = True"]


@each("number", [1, 2])
def test_pytest_sees_one_test(number, request):
    assert request.node.name == "test_pytest_sees_one_test"
    assert re.fullmatch("[12]", str(number))
