"""Blame finds planted weak spots, all of them, and nothing else."""

import pytest
import torch

from roundoff.formats import FormatError
from roundoff.simulate.blame import BlameError, blame


def overflowing():
    """exp overflows e5m10, and the mean of a long vector is fine; cosine has nothing to do with it."""
    x = torch.linspace(-1, 12, 50)
    return (x.exp() / (x.exp() + 1)).mean() + x.cos().mean() * 0


def test_an_overflow_is_blamed_and_needs_exponent_bits():
    found = blame(overflowing, "e5m10", lambda y: bool(y.isfinite()))
    # not add, which overflows too: exp(12) / infinity is 0
    assert found.culprits == ("exp",)
    assert set(found.units) >= {"add", "cos", "div", "exp", "mean"}
    assert found.needs["exp"] == "e8m10"  # range is all it takes: no more significand bits
    assert "needs e8m10" in str(found)


def test_a_lost_addition_is_blamed_and_needs_significand_bits():
    def program():
        total = torch.ones(1)
        for _ in range(100):
            total = total.add(2.0**-9)
        return total.sin().cos(), total

    found = blame(program, "e5m6", lambda y: abs(y[1].item() - (1 + 100 * 2.0**-9)) < 1e-3)
    assert found.culprits == ("add",)
    assert found.needs == {"add": "e5m9"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.good = torch.nn.Linear(4, 4)
        self.bad = torch.nn.LayerNorm(4)
        self.also = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.also(self.bad(self.good(x) * 1e3 + 1e4))


def test_modules_are_blamed():
    def program():
        torch.manual_seed(0)
        return Net()(torch.randn(16, 4)), Net

    torch.manual_seed(0)
    expected = Net()(torch.randn(16, 4))

    def passes(result):
        return (result[0] - expected).abs().max() < 0.3

    # the offset is lost in what the net itself computes, outside of its children
    found = blame(program, "e5m4", passes, over="module")
    assert "Net" in found.culprits
    assert "Net.also" not in found.culprits


def test_roles_are_blamed():
    def program():
        torch.manual_seed(0)
        weight = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=2.0**-8)
        for _ in range(2**8):
            optimizer.zero_grad()
            (weight - 4).sum().mul(-1).backward()
            optimizer.step()
        return weight.detach()

    found = blame(program, "e5m4", lambda w: bool((w > 0.99).all()), over="role")
    assert found.culprits == ("optimizer",)


def test_a_program_that_passes_has_no_culprits():
    found = blame(lambda: torch.ones(3) + 1, "e5m10", lambda y: bool((y == 2).all()))
    assert found.culprits == ()
    assert "passes as it is" in str(found)


def test_a_program_that_fails_anyway_is_refused():
    with pytest.raises(
        BlameError, match=r"the program also fails in high precision \(what it returned\): nothing is to blame"
    ):
        blame(lambda: torch.ones(3), "e5m10", lambda _: False)
    with pytest.raises(BlameError, match="every module in high precision"):
        blame(lambda: torch.ones(3) * (1 + 2.0**-12), "e5m10", lambda y: bool((y > 1).all()), over="module")


def test_exceptions_of_arithmetic_are_failures():
    def program():
        x = torch.full((1,), 300.0) * 300.0
        if not x.isfinite():
            raise OverflowError("too large")
        return x

    assert blame(program, "e5m10", lambda _: True).culprits == ("mul",)


def test_a_matrix_that_rounding_makes_indefinite_is_a_failure():
    def program():
        torch.manual_seed(0)
        a = torch.randn(8, 4)
        return torch.linalg.cholesky(a @ a.mT + 1e-3 * torch.eye(8))

    found = blame(program, "e5m6", lambda y: bool(y.isfinite().all()))
    assert found.culprits
    assert set(found.culprits) <= {"add", "mm", "linalg_cholesky_ex"}


def test_an_error_that_follows_an_infinity_is_a_failure():
    def program():
        weights = (torch.linspace(0, 12, 5)).exp()
        return torch.multinomial(weights / weights.sum(), 1, generator=torch.Generator().manual_seed(0))

    found = blame(program, "e5m10", lambda y: y.numel() == 1)
    assert found.culprits == ("exp", "sum")


def test_errors_of_the_program_are_raised():
    def wrong():
        x = torch.full((1,), 1.0) + 2.0**-12
        return x.view(3) if x == 1 else x  # only where the sum is rounded

    with pytest.raises(RuntimeError, match="shape '\\[3\\]' is invalid"):
        blame(wrong, "e5m10", lambda _: True)
    with pytest.raises(FormatError, match="bfloat16"):
        blame(lambda: torch.ones(1).bfloat16(), "e5m10", lambda _: True)
    with pytest.raises(RuntimeError, match="shape"):
        blame(lambda: torch.ones(1).view(3), "e5m10", lambda _: True)


def test_a_program_in_half_precision():
    """What an operation needs is sought among formats that float16 has all numbers of; it has not those of e8m3."""

    def program():
        x = torch.linspace(-30, 30, 64).half().view(8, 8)
        return (x @ x).float().square().mean().log().item()

    expected = program()
    blamed = blame(program, "e4m3", lambda value: abs(value - expected) < 0.1)
    assert blamed.needs["mm"] is None
