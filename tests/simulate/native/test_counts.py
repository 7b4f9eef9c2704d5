"""What C++ counts of every operation at every place is what Python counts: calls, moves, roundings, whole numbers."""

import pytest
import torch

import roundoff
from roundoff.simulate.native import library

pytestmark = [pytest.mark.usefixtures("asked_for"), pytest.mark.filterwarnings("ignore")]

POLICIES = {
    "everywhere": roundoff.Policy("e5m6"),
    "stochastic": roundoff.Policy("e5m6", rounding="stochastic"),
    "products alone": roundoff.Policy("fp32", rules=(roundoff.Rule("mm", format="e4m3"),)),
    "roles": roundoff.Policy("fp32", rules=(roundoff.Rule(role="backward", format="e5m4", operands="e5m2"),)),
    "recipe": roundoff.Policy.fp8("blockwise"),
}


def steps():
    """Moves, what may be one, counts of steps, reads, and what is computed, forward and backward."""
    torch.manual_seed(0)
    net, index = torch.nn.Linear(6, 6), torch.tensor([2, 0, 1])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-3)
    for _ in range(4):
        x = torch.linspace(-1, 1, 24).view(4, 6)
        y = torch.cat([net(x).clone(), x.relu()]).index_select(0, index)
        y = torch.where(y > 0, y, torch.zeros_like(y)).flip(0).masked_fill(y > 0.9, 0.0).masked_fill(y > 0.8, 0.3)
        y = torch.stack([y, y.clamp(min=0.0), y.clamp(0.1, 0.7)]).amax(0) + torch.ones(6) * torch.full((), 0.3)
        y = torch.nn.functional.max_pool1d(y @ y.t(), 2) @ y[:1, :4].t()[:1] + torch.nn.functional.pad(y, (1, 1)).sum()
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
        y.detach().mean().item()


@pytest.mark.parametrize("name", POLICIES)
def test_counters_of_every_plan_are_alike(name, monkeypatch):
    found = []
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        with roundoff.simulate(POLICIES[name]) as simulation:
            steps()
        plans = {(plan.operation, plan.role, plan.module): plan.outcome for plan in simulation.plans()}
        found.append({key: {slot: getattr(of, slot) for slot in of.__slots__} for key, of in plans.items()})
    assert found[0] == found[1]
    assert any(0 < counts["moved"] <= counts["calls"] for counts in found[0].values())
