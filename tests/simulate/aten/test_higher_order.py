"""Operators whose arguments are functions: what the functions compute is rounded, operation by operation."""

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch._ops import HigherOrderOperator
from torch.nn.attention.flex_attention import flex_attention

import roundoff
from roundoff import FormatError, simulate

X = roundoff.round(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), "e5m3")
HEADS = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(1))


def by_hand_scan(x):
    carried, rows = torch.zeros(3), []
    for row in x:
        rows.append(carried * 0.1)
        carried = carried + row.sin()
    return torch.stack(rows)


def attend(x):
    with torch.no_grad():
        return flex_attention(x, x, x, score_mod=lambda score, _b, _h, i, j: score - 0.1 * (i - j))


PROGRAMS = {
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * 0.1, lambda x: x.cos() * 0.3, (x,)),
        lambda x: x.sin() * 0.1 if x.sum() > 0 else x.cos() * 0.3,
    ),
    "scan": (lambda x: scan(lambda c, y: (c + y.sin(), c * 0.1), torch.zeros(3), x)[1], by_hand_scan),
    "map": (lambda x: map_rows(lambda row: row.sin() * 0.1, x), lambda x: torch.stack([row.sin() * 0.1 for row in x])),
    "while_loop": (
        lambda x: while_loop(lambda i, _y: i < 3, lambda i, y: (i + 1, y * 0.3 + 1), (torch.tensor(0), x.detach()))[1],
        lambda x: ((x.detach() * 0.3 + 1) * 0.3 + 1) * 0.3 + 1,
    ),
}


@pytest.mark.filterwarnings("ignore")  # what torch.compile, which they call, says
@pytest.mark.parametrize("options", [{"format": "e5m3"}, {"format": "fp32", "observe": True}], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_compute_as_if_they_were_called(name, options):
    operator, by_hand = PROGRAMS[name]
    results = []
    for program in (operator, by_hand):
        x = X.clone().requires_grad_()
        with simulate(**options) as simulation:
            y = program(x)
            if y.requires_grad:
                y.sum().backward()
        results.append((y.detach(), x.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] is None or torch.equal(results[0][1], results[1][1])
    assert options["format"] == "fp32" or torch.equal(y.detach(), roundoff.round(y.detach(), "e5m3"))
    assert not simulation.unused_rules()


@pytest.mark.filterwarnings("ignore")
def test_scans_and_attention_of_ones_own():
    with simulate("e5m3"):
        sums = associative_scan(lambda a, b: a + b, X, 0, combine_mode="generic")
        attended = attend(HEADS)
    for x in (sums, attended):
        assert torch.equal(x, roundoff.round(x, "e5m3"))
    with simulate("e5m3", observe=True) as simulation:
        assert torch.equal(attend(HEADS), attended)
    assert {"bmm", "exp", "sum"} & {plan.name for plan in simulation.plans()}
    plain = attend(HEADS)
    with simulate("fp32", observe=True):
        assert torch.equal(attend(HEADS), plain)


class Unknown(HigherOrderOperator):
    def __init__(self):
        super().__init__("roundoff_tests_unknown")

    def __call__(self, function, x):
        return super().__call__(function, x)


def test_others_are_refused_in_words():
    unknown = Unknown()
    unknown.py_autograd_impl(lambda function, x: unknown.dispatch(torch._C.DispatchKey.Python, function, x))
    with simulate("e5m3"), pytest.raises(FormatError, match="roundoff_tests_unknown calls functions that a simulation"):
        unknown(torch.sin, X)
