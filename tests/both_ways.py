"""Programs run with plain operations in C++ and through Python: bits and audits must be the same."""

import pytest
import torch
from comparing import same_bits
from each import each
from operator_samples import OPERATORS
from torch.utils._pytree import tree_leaves, tree_map

import roundoff
from roundoff.simulate.native import library


def both_ways(monkeypatch, program, *args, **how):
    """What a program returns in C++ and in Python, each with the table of its audit.

    A second simulation of the same arithmetic finds all described to the C++ that the first one's Python has.
    """
    found = []
    for asked in "110":
        monkeypatch.setenv(library.VARIABLE, asked)
        torch.manual_seed(0)
        with roundoff.simulate(*args, **how) as simulation:
            result = program()
        found.append((result, simulation.audit().table))
    assert_same(found[:2])
    return found[1:]


def assert_same(found):
    (native, audit), (python, expected) = found
    leaves = [[x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)] for tree in (native, python)]
    for a, b in zip(*leaves, strict=True):
        if a.layout == torch.strided:
            assert same_bits(a.detach(), b.detach())
            assert a.stride() == b.stride()
    assert audit.to_dict("list") == expected.to_dict("list")


def one_operator_in(count):
    """PyTorch's operators as lists, for a parameter of a test: one in so many, and the others, which are slow."""
    others = [op for i, op in enumerate(OPERATORS) if i % count]
    return [
        pytest.param(OPERATORS[::count], id=f"one operator in {count}"),
        pytest.param(others, marks=pytest.mark.slow, id="the others"),
    ]


def check_operators(monkeypatch, operators, policy):
    """Each of some operators: see :func:`check_operator`."""

    @each("op", operators)
    def check(op):
        check_operator(monkeypatch, op, policy)

    check()


def check_operator(monkeypatch, op, policy):
    """An operator's first sample, forward and backward, or what is said of it where it is refused."""
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(3)
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)))

    def tried():
        try:
            return forward_and_backward(op, sample)
        except roundoff.FormatError as error:
            return str(error)

    found = both_ways(monkeypatch, tried, policy)
    assert_same(found)
    assert isinstance(found[0][0], str) == isinstance(found[1][0], str)


def forward_and_backward(op, sample):
    torch.manual_seed(1)

    def fresh(x):
        return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    arguments = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    results = tensors_of(op(arguments[0], *arguments[1], **arguments[2]))
    scalars = [x.abs().sum() for x in results if x.requires_grad]
    given = [x for x in tensors_of(arguments) if x.requires_grad]
    gradients = torch.autograd.grad(sum(scalars), given, allow_unused=True) if scalars else ()
    return [*results, *(x for x in gradients if x is not None)]


def tensors_of(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
