"""Searches in rounds: what they find, how much they ask, and that they wait for answers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from roundoff.searches import allocation, ask, bisection, minimal


@given(st.data())
def test_minimal_sets_are_found_for_any_monotone_property(data):
    units = tuple("abcdefgh"[: data.draw(st.integers(1, 8))])
    needed = data.draw(st.lists(st.sets(st.sampled_from(units)), min_size=1, max_size=3))  # perhaps nothing

    def passes(kept):
        return any(need <= set(kept) for need in needed)

    _, found = ask(minimal(units), passes)
    assert passes(found)
    for member in found:
        assert not passes([unit for unit in found if unit != member])


def test_minimal_takes_few_trials():
    units = [f"u{i}" for i in range(64)]
    trials = itertools.count()

    def passes(kept):
        next(trials)
        return {"u5", "u40"} <= set(kept)

    assert sorted(ask(minimal(units), passes)[1]) == ["u40", "u5"]
    assert next(trials) < 100  # of 2^64 sets


@given(st.integers(1, 20).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count))))
def test_bisection_finds_the_first_that_passes_and_waits_for_answers(counts):
    count, failing = counts
    names = [str(i) for i in range(count)]
    asked, found = ask(bisection(names), lambda name: int(name) >= failing)
    assert found == (names[failing] if failing < count else None)
    assert asked[0] == names[-1]  # nothing is enough if that is not
    assert len(asked) <= 1 + max(count, 2).bit_length()
    for known in range(len(asked)):  # continued, it asks the same
        waiting = ask(bisection(names), lambda name: int(name) >= failing if name in asked[:known] else None)  # noqa: B023
        assert waiting == (asked[: known + 1], None)


def test_an_answer_that_cannot_be_given_is_no_end_of_a_search():
    """A program that is run for an answer may raise StopIteration, which also ends generators."""

    def exhausted(_):
        return next(iter(()))

    try:
        ask(minimal(["a", "b"]), exhausted)
    except StopIteration:
        return
    raise AssertionError("taken for the end of the search")


@given(st.data())
def test_an_allocation_passes_and_no_unit_alone_could_have_an_earlier_choice(data):
    units = "abcd"[: data.draw(st.integers(1, 4))]
    choices = [str(i) for i in range(data.draw(st.integers(1, 7)))]
    seeds = data.draw(st.integers(1, 6))
    needs = {unit: data.draw(st.integers(0, len(choices))) for unit in units}  # len: none is enough
    most = data.draw(st.integers(0, 8))  # that all may lose together

    def passes(chosen):
        if any(choices.index(choice) < needs[unit] for unit, choice in chosen.items()):
            return False
        return sum(len(choices) - choices.index(choice) for choice in chosen.values()) <= most

    def scores(question):
        candidates, count = question
        assert 1 <= count <= seeds
        last = [choices.index(next(reversed(chosen.values()))) for chosen in candidates]
        return [len(choices) - i if passes(chosen) else -1 for i, chosen in zip(last, candidates, strict=True)]

    asked, found = ask(allocation(units, choices, seeds), scores)
    assert passes(found)
    before = {}
    for unit in units:
        enough = [choice for choice in choices if passes(before | {unit: choice})]
        assert found.get(unit) == (enough[0] if enough else None)
        rounds = [(candidates, count) for candidates, count in asked if next(reversed(candidates[0])) == unit]
        assert [len(candidates) for candidates, _ in rounds] == sorted([len(c) for c, _ in rounds], reverse=True)
        assert rounds[-1][1] == seeds  # nobody is chosen by fewer
        assert all(chosen == before | {unit: chosen[unit]} for candidates, _ in rounds for chosen in candidates)
        before |= {unit: found[unit]} if unit in found else {}


def test_an_allocation_gives_more_seeds_to_the_better_half_of_the_choices():
    def scores(question):
        return [3 - "wxyz".index(next(reversed(one.values()))) if one == {"a": "y"} else -1 for one in question[0]]

    asked, found = ask(allocation("ab", "wxyz", 4), scores)
    assert found == {"a": "y"}
    sizes = [(len(candidates), count) for candidates, count in asked]
    assert sizes == [(4, 2), (2, 4)] * 2
    assert asked[1][0][1] == {"a": "y"}
    assert asked[2][0] == [{"a": "y", "b": choice} for choice in "wxyz"]


def test_an_allocation_waits_for_answers():
    asked, found = ask(allocation("ab", "xyz", 2), lambda _: None)
    assert (asked, found) == ([([{"a": choice} for choice in "xyz"], 2)], None)
