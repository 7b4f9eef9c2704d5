"""What a policy does not reach is named, in a warning and in the audit."""

import warnings

import pytest
import torch
from each import each
from torch import nn

import roundoff
from roundoff import Policy, PolicyWarning, Rule, SimulationWarning, simulate

RECIPES = {
    "mixed precision": Policy.mixed_precision("e5m2"),
    "fp8": Policy.fp8("tensorwise"),
    "mx": Policy.mx("mxfp4"),
    "weights alone": Policy("fp32").with_rules(Rule(role="weights", format="e4m3")),
}


def matrix(layout):
    dense = torch.rand(20, 20) * (torch.rand(20, 20) < 0.2)
    return dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(20, 4)), nn.Linear(4, 4)

    def forward(self, sparse, by):
        return self.head(by(sparse, self.weight))


def treatments(simulation):
    table = simulation.audit().table
    return dict(zip(table["operation"].str.split(".").str[1], table["treatment"], strict=True))


@pytest.mark.filterwarnings("ignore:Sparse")
@each(("recipe", "layout"), [(recipe, layout) for recipe in RECIPES for layout in ("coo", "csr")])
def test_products_of_sparse_matrices_that_no_rule_reaches(recipe, layout):
    sparse, layer = matrix(layout), Layer()
    with (
        pytest.warns(PolicyWarning, match="reaches _sparse_addmm, which also ran"),
        simulate(RECIPES[recipe]) as simulation,
    ):
        layer(sparse, torch.sparse.mm)
    assert treatments(simulation)["_sparse_addmm"].endswith("; a product that no rule about products reaches")
    # A product that rules know sees the dense operand rounded, and the sparse one as it is.
    said = pytest.warns(PolicyWarning, match="operands that are sparse tensors are not rounded, .* in mm$")
    with said, simulate(RECIPES[recipe]) as simulation:
        layer(sparse, torch.matmul)
    assert "sparse unrounded" in str(simulation.audit())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sums_of_sparse_products_that_no_accumulator_reaches():
    for sparse in map(matrix, ("coo", "csr")):
        said = pytest.warns(PolicyWarning, match="the accumulator of the policy does not reach _sparse_addmm")
        with said, simulate("e5m2", accumulate="e5m2") as simulation:
            torch.sparse.mm(sparse, torch.randn(20, 4))
        assert treatments(simulation)["_sparse_addmm"] == "rounded; sums in the carrier"
        with (
            pytest.warns(PolicyWarning, match="does not reach _sparse_addmm: "),
            simulate("e5m2", accumulate="h100-fp8"),
        ):
            torch.sparse.mm(sparse, torch.randn(20, 4)).cumsum(0)  # which no matrix unit computes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with simulate(Policy("fp32").with_rules(Rule("_sparse_addmm", format="e5m2"))):  # a rule that names it
            torch.sparse.mm(sparse, torch.randn(20, 4))


POSITIVE = torch.eye(8) + 0.1
STEPS = {
    "_fft_r2c": lambda: torch.fft.fft(torch.randn(64)),
    "linalg_cholesky_ex": lambda: torch.linalg.cholesky(POSITIVE),
    "_linalg_solve_ex": lambda: torch.linalg.solve(POSITIVE, torch.ones(8)),
    "linalg_qr": lambda: torch.linalg.qr(POSITIVE),
    "_linalg_svd": lambda: torch.linalg.svd(POSITIVE),
    "cumsum": lambda: torch.rand(64).cumsum(0),
    "cumprod": lambda: torch.rand(64).cumprod(0),
}


@each("name", STEPS)
def test_steps_that_primitive_granularity_does_not_reach(name):
    said = pytest.warns(PolicyWarning, match=rf"primitive has no formula for {name}: each call was computed in")
    with said, simulate("e5m10", granularity="primitive") as simulation:
        STEPS[name]()
    assert treatments(simulation)[name].endswith("; steps in the carrier")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with simulate("e5m10", granularity="primitive"):  # what is taken apart, or has accumulators
            torch.rand(8, 8).softmax(0) @ POSITIVE + torch.rand(8).sum()
            torch.rand(8).logsumexp(0) * torch.rand(8).prod()


def of_one_module(dtype):
    return nn.Linear(3, 3).to(dtype)(torch.randn(2, 3, dtype=dtype))


def test_float64_programs_that_fp32_leaves_as_they_are():
    expected = r"fp32.\) runs a program as it is, and this one computes in float64"
    for policy in ("fp32", "e8m23", Policy("fp32", rounding="up")):
        with pytest.warns(SimulationWarning, match=expected), simulate(policy) as simulation:
            of_one_module(torch.float64)
        with simulation:
            of_one_module(torch.float64)  # said once
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.warns(SimulationWarning, match=expected), simulate("fp32"):
            torch.randn(3) * 2
    finally:
        torch.set_default_dtype(torch.float32)
    hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with simulate("fp32"):
            of_one_module(torch.float32)
            of_one_module(torch.float64)  # a part of a float32 program
        with simulate("e5m10"), roundoff.exact():
            of_one_module(torch.float64)
        with simulate("fp32"), simulate("e5m10"):
            of_one_module(torch.float64)
    assert torch.nn.modules.module._global_forward_pre_hooks == hooks
