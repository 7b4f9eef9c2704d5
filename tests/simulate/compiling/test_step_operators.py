"""Compiled steps of every operator in PyTorch's own sample database, forward and backward: the bits of the eager one.

Many operators are one program, since compiling is what takes time.
"""

import pytest
import torch
from comparing import same_bits
from operator_samples import OPERATORS
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import roundoff
from roundoff import FormatError, simulate
from roundoff.simulate.compiling.graphs import tracing as graphs
from roundoff.simulate.dispatch.graph_writer import FormatsAsData

SAMPLES = 2
A_PROGRAM = 16

NAMED = {op.formatted_name: op for op in OPERATORS}
PROGRAMS = [sorted(NAMED)[i : i + A_PROGRAM] for i in range(0, len(NAMED), A_PROGRAM)]

# What moves with some arguments, and computes or brings numbers in with others; and a few of each other kind.
A_FEW = [
    "__getitem__", "index_put", "put", "scatter", "scatter_add", "index_add", "index_fill", "masked_fill", "fill",
    "nn_functional_pad_constant", "nn_functional_threshold", "take_along_dim", "where", "clamp", "sign",
    "nn_functional_silu", "nn_functional_rms_norm", "nn_functional_dropout", "lerp", "addcdiv",
]  # fmt: skip

TENSOR = object()


class Sample:
    """A call of an operator as a step: its results, and the gradients of their magnitudes' sum."""

    def __init__(self, op, sample):
        self.op, self.name = op, op.formatted_name
        leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.leaves = [TENSOR if isinstance(x, torch.Tensor) else x for x in leaves]
        self.given = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
        self.differentiable = [x.requires_grad for x in leaves if isinstance(x, torch.Tensor)]

    def __call__(self, tensors):
        # Tensors of its own, in the same layout, so that operators may write to them.
        own = [
            torch.empty_like(x).copy_(x).requires_grad_(d) for x, d in zip(tensors, self.differentiable, strict=True)
        ]
        rest = iter(own)
        given, args, kwargs = tree_unflatten([next(rest) if x is TENSOR else x for x in self.leaves], self.spec)
        results = [x for x in tree_leaves(self.op(given, *args, **kwargs)) if isinstance(x, torch.Tensor)]
        sums = [x.abs().sum() for x in results if x.requires_grad]
        inputs = [x for x in own if x.requires_grad]
        gradients = torch.autograd.grad(sum(sums), inputs, allow_unused=True) if sums and inputs else ()
        return [x.detach() for x in results] + [x for x in gradients if x is not None]


def samples(names):
    for name in names:
        op = NAMED[name]
        torch.manual_seed(0)  # the sample generators have no other source of randomness
        differentiable = torch.float32 in op.supported_backward_dtypes("cpu")
        given = op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)
        yield from (Sample(op, sample) for _, sample in zip(range(SAMPLES), given, strict=False))


def runs(step, simulation):
    """Whether a step runs in the simulation at all, and gives dense tensors."""
    try:
        with simulation():
            return all(x.layout == torch.strided for x in step(step.given))
    except (RuntimeError, FormatError, ValueError, TypeError):
        return False


def traceable(step, simulation):
    mine = simulation()
    try:
        graphs.trace(step, step.given, mine, FormatsAsData(mine.policy.formats(), torch.float32, torch.device("cpu")))
    except FormatError:
        return False
    return True


def differing(steps, simulation):
    """The names of operators that have other bits, as one program."""

    def all_of(given):
        return [step(tensors) for step, tensors in zip(steps, given, strict=True)]

    given = [step.given for step in steps]
    torch.manual_seed(1)
    with simulation():
        expected = all_of(given)
    torch.manual_seed(1)
    program = roundoff.compile(all_of, simulation())
    found = program(given)
    assert program.reason is None
    return sorted({step.name for step, a, b in zip(steps, expected, found, strict=True) if not same(a, b)})


def same(a, b):
    return len(a) == len(b) and all(map(same_bits, a, b))


# The shapes of their results, or of tensors on the way to their gradients, depend on numbers; or they read a number, or
# have results of half precision.
UNTRACED = {
    "allclose", "argwhere", "bfloat16", "combinations", "corrcoef", "cov", "equal", "half", "index_fill", "index_put",
    "item", "linalg_lstsq", "linalg_lstsq_grad_oriented", "masked_select", "narrow", "nn_functional_ctc_loss",
    "nn_functional_gaussian_nll_loss", "nonzero", "tensor_split", "unique", "unique_consecutive",
}  # fmt: skip
# PyTorch calls them with a seed that it sets, which a step that draws random numbers may not; see test_step_edges.py.
CODE = {name: getattr(op.op, "__code__", None) for name, op in NAMED.items()}
UNTRACED |= {name for name, code in CODE.items() if code and "wrapper_set_seed" in code.co_names}

# They write to diagonals of complex numbers, which inductor leaves to kernels: such a step runs eagerly.
EAGER = {"linalg_eig"}


def check(names, **settings):
    def simulation():
        return simulate(**settings)

    steps = [
        step for step in samples([name for name in names if name not in EAGER]) if step.given and runs(step, simulation)
    ]
    traced = [step for step in steps if step.name not in UNTRACED or traceable(step, simulation)]
    assert not traced or not differing(traced, simulation)  # if one of them cannot be traced, this says so


@pytest.mark.filterwarnings("ignore")
def test_graphs_of_a_few_operators(uncompiled):
    check(A_FEW, format="e5m3")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings", [{"format": "e5m6"}, {"format": "bf16"}, {"format": "e5m3", "rounding": "stochastic"}], ids=str
)
@pytest.mark.parametrize("names", PROGRAMS, ids=lambda names: names[0])
def test_operators(names, settings):
    check(names, **settings)


@pytest.mark.parametrize("fmt", ["fp32", "e5m10"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool], ids=str)
def test_what_makes_floats_of_integers(uncompiled, dtype, fmt):
    """A root was an integer, and the square of a boolean was a boolean."""

    def step(x):
        floats = x.sqrt(), x.T.sqrt(), x.reciprocal(), x.exp(), x / 3, x * 0.3, x**0.5
        return *floats, x**2, x.square(), x.T.square()

    x = (torch.arange(15).view(3, 5) % 7).to(dtype)
    simulation = simulate(fmt)
    with simulation:
        expected = step(x)
    assert [y.dtype for y in expected[:7]] == [torch.float32] * 7
    for found, y in zip(roundoff.compile(step, simulation)(x), expected, strict=True):
        assert found.dtype == y.dtype
        assert found.stride() == y.stride()
        assert torch.equal(found, y)
