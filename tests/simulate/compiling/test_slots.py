"""Places of tensors: read, filled with others, and given back."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from roundoff.simulate.compiling.slots import Slot, Slots


class Pair(NamedTuple):
    first: object
    second: object


def places():
    """A dict with tensors at two keys, one of them in tuples, and its places."""
    holder = {"x": torch.zeros(1), "pair": Pair(torch.ones(1), (3.0, torch.ones(2)))}
    return holder, Slots(torch.Tensor, [Slot("x", holder, "x"), Slot("pair", holder, "pair")])


def test_all_are_read_in_order_and_others_put_in_their_places():
    holder, slots = places()
    before = slots.read()
    assert [path for path, _ in slots] == ["x", "pair", "pair"]
    others = [torch.full((1,), float(i)) for i in range(3)]
    slots.put(others)
    assert all(x is y for x, y in zip(slots.read(), others, strict=True))
    assert isinstance(holder["pair"], Pair)
    assert holder["pair"].second[0] == 3.0
    assert not any(x is y for x, y in zip(before, others, strict=True))


def test_a_place_that_has_its_own_already_stays_as_it_is():
    holder, slots = places()
    pair = holder["pair"]
    slots.put([torch.ones(1), *slots.read()[1:]])
    assert holder["pair"] is pair


def test_what_was_there_comes_back_also_after_an_error():
    holder, slots = places()
    before = dict(holder)
    with pytest.raises(ValueError, match="stop"), slots.holding([torch.ones(1) for _ in slots.read()]):
        assert holder["x"] is not before["x"]
        raise ValueError("stop")
    assert all(holder[key] is value for key, value in before.items())


def test_a_slot_that_is_added_twice_in_a_row_is_one():
    _, slots = places()
    slot = Slot("y", [torch.zeros(1)], 0)
    slots.add(slot)
    slots.add(slot)
    assert len(slots.read()) == 4


def test_attributes_are_what_they_are():
    owner = SimpleNamespace(average=torch.ones(1), factor=0.5, compensation=None)
    slots = Slots.attributes(owner, ["average", "factor", "compensation"])
    assert slots.read() == [owner.average, 0.5, None]
    slots.put([owner.average, torch.tensor(0.25), None])
    assert owner.factor.item() == 0.25
    assert owner.compensation is None
