"""Stand-ins for tensors on a GPU are followed, and what would wait for the device fails."""

import pytest
import torch
from devices import Waited, is_stand_in, stand_ins

import roundoff

WAITING = {
    "item": lambda x: x.sum().item(),
    "a decision": lambda x: bool((x > 0).any()),
    "a comparison of tensors": lambda x: torch.equal(x, x),
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "text": str,
    "a copy from it": lambda x: x.cpu(),
    "a copy to it": lambda x: torch.ones(4).to(x.device),
    "a number on it": lambda x: torch.tensor(1.0, device=x.device),
    "a copy into it": lambda x: x.copy_(torch.ones(3, 4)),
    "places": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "places in the processor's memory": lambda x: x[torch.tensor([0, 1])],
    "a choice with a number": lambda x: torch.where(x > 0, 0.0, x),
    "a number on it to fill with": lambda x: x.masked_fill(x > 0, x.sum()),
}


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_fails_in_a_simulation_and_outside(what, monkeypatch):
    with stand_ins(monkeypatch) as device:
        x = torch.ones(3, 4, device="cuda")
        WAITING[what](x)
        with device.nothing_waits():
            with pytest.raises(Waited):
                WAITING[what](x)
            with roundoff.simulate("e5m10"), pytest.raises(Waited):
                WAITING[what](x)


def test_results_are_followed_and_devices_do_not_mix(monkeypatch):
    with stand_ins(monkeypatch) as device, device.nothing_waits():
        generator = torch.Generator("cuda").manual_seed(0)
        w = torch.nn.Parameter(torch.randn(4, 4, generator=generator, device="cuda"))
        x = torch.ones(3, 4).to("cuda", non_blocking=True)
        (x @ w).tanh().sum().backward()
        x[0].mul_(2)
        x[x > 3] = 0.0
        torch._foreach_add_([x, w.detach()], 1.0)
        made = (x, w, w.grad, w.grad.view(-1)[1:], w.detach(), torch.empty_like(x), x.new_zeros(2), x.double(), x.to(x))
        assert all(map(is_stand_in, made))
        assert {t.device.type for t in made} == {"cuda"}
        assert not any(t.is_cpu for t in made)
        with pytest.raises(AssertionError, match="operands on both devices"):
            x + torch.ones(4)
        with pytest.raises(AssertionError, match="factors on the CPU"):
            torch._foreach_addcmul_([x], [x], [x], torch.ones(1, device="cuda"))
        assert not is_stand_in(torch.ones(3))
    assert x.is_cpu
    assert x.device.type == "cpu"
