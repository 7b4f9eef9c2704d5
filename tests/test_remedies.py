"""``roundoff.remedies`` and ``roundoff.agents`` share no name, and each has what it lists."""

import pytest
import torch

from roundoff import agents, remedies


def test_each_name_is_there_and_in_one_place():
    assert not set(agents.__all__) & set(remedies.__all__)
    for module in (agents, remedies):
        assert all(getattr(module, name) is not None for name in module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'fake_round'"):
            module.fake_round  # noqa: B018


def test_an_optimizer_from_there_trains():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = remedies.HAdam([weight], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    assert abs(weight.item()) < 0.2
