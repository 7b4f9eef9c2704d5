"""What the scale of FP8 is for: a small transformer trained with operands in E4M3, with a scale and without."""

import pytest
import torch
from networks import Transformer

from roundoff import Policy, Rule, simulate
from roundoff.simulate.aten.tables import CONTRACTIONS

STEPS, SEQUENCES = 60, 128


def sequences(generator, count):
    """Tokens that count on by 1, 2 or 3 modulo 11: from two of them follows the rest."""
    start = torch.randint(0, 11, (count, 1), generator=generator)
    return (start + torch.randint(1, 4, (count, 1), generator=generator) * torch.arange(9)) % 11


def operands(format):
    return Policy("fp32").with_rules(Rule(CONTRACTIONS, operands=format))


def trained(policy):
    """The losses before and after training, both computed in float32."""
    torch.manual_seed(0)
    net, generator = Transformer(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    unseen = sequences(torch.Generator().manual_seed(2), 512)
    with torch.no_grad():
        before = net.loss(unseen).item()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with simulate(policy):
            net.loss(sequences(generator, SEQUENCES)).backward()
        optimizer.step()
    with torch.no_grad():
        return before, net.loss(unseen).item()


@pytest.fixture(scope="module")
def exact():
    return trained("fp32")


@pytest.mark.parametrize("policy", [operands("fp8_e4m3_tensor"), Policy.fp8("tensorwise")], ids=["operands", "recipe"])
def test_with_a_scale_a_network_learns_as_in_float32(policy, exact):
    before, after = trained(policy)
    assert before == exact[0] > 2.5
    assert exact[1] < 0.5
    assert after < exact[1] + 0.2


def test_without_a_scale_it_learns_nothing(exact):
    """A mean over 1024 tokens has gradients below 2^-10, half the smallest number of E4M3."""
    before, after = trained(operands("fp8_e4m3_saturate"))
    assert before - after < 0.05 * (exact[0] - exact[1])
