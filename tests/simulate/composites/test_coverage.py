"""Every operator in PyTorch's own sample database, forward and backward, under a narrow format."""

import pytest
import torch
from operator_samples import op_db

import roundoff

FORMAT = "e5m6"
SAMPLES = 2

REFUSED = {  # results that no simulation can hold; the message is tested elsewhere
    "bfloat16", "half", "chalf", "to_sparse", "sparse_sampled_addmm", "sparse_mm_reduce",
}  # fmt: skip
# Results that no operation computed: memory as it was found, or more of the caller's than the caller rounded.
UNDEFINED = {
    "as_strided_partial_views",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}

OPERATORS = [
    op
    for op in op_db
    if torch.float32 in op.supported_dtypes("cpu")
    and op.formatted_name not in REFUSED | UNDEFINED
    and not op.name.startswith("jiterator")  # CUDA only
]


def tensors(tree):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def rounded(x):
    if x.is_complex():
        return torch.view_as_complex(roundoff.round(torch.view_as_real(x.detach().resolve_conj()), FORMAT))
    return roundoff.round(x, FORMAT)


def assert_of_format(x):
    if (x.is_floating_point() or x.is_complex()) and x.layout == torch.strided:
        torch.testing.assert_close(x.detach(), rounded(x), rtol=0, atol=0, equal_nan=True)


# Under any dispatch mode PyTorch computes singular vectors for these too, by another algorithm of LAPACK.
OTHER_ALGORITHM = {"linalg_cond", "linalg_eigvalsh", "linalg_svdvals", "norm_nuc"}
OTHER_DERIVATIVE = {"prod", "ormqr"}  # by another formula under any dispatch mode


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.formatted_name not in OTHER_ALGORITHM], ids=lambda op: op.formatted_name
)
def test_watched_in_fp32_nothing_changes(op):
    """Watching makes every operation pass through the mode; without, fp32 would not even enter it."""
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu") and op.name not in OTHER_DERIVATIVE
    torch.manual_seed(0)
    for _, sample in zip(
        range(SAMPLES), op.sample_inputs("cpu", torch.float32, requires_grad=differentiable), strict=False
    ):
        plain = forward_and_backward(op, sample)
        with roundoff.simulate("fp32", observe=True):
            watched = forward_and_backward(op, sample)
        for a, b in zip(plain, watched, strict=True):
            assert (a.dtype, a.device, a.layout, a.shape) == (b.dtype, b.device, b.layout, b.shape)
            if a.layout == torch.strided:
                assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def forward_and_backward(op, sample):
    torch.manual_seed(1)
    arguments = copied((sample.input, sample.args, sample.kwargs))
    results = tensors(op(arguments[0], *arguments[1], **arguments[2]))
    scalars = [x.abs().sum() for x in results if x.requires_grad]
    inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
    gradients = torch.autograd.grad(sum(scalars), inputs, allow_unused=True) if scalars and inputs else ()
    return [x.detach() for x in (*results, *tensors(gradients))]


def copied(tree):
    return torch.utils._pytree.tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) and x.layout == torch.strided else x, tree
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_results_and_gradients_are_of_the_format(op):
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)):
        if number == SAMPLES:
            break
        with torch.no_grad():
            for x in tensors((sample.input, sample.args, sample.kwargs)):
                if x.is_floating_point() and x.layout == torch.strided:
                    x.copy_(rounded(x))
        inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
        with roundoff.simulate(FORMAT):
            results = tensors(op(sample.input, *sample.args, **sample.kwargs))
            scalars = [x.abs().sum() for x in results if x.requires_grad]
            gradients = torch.autograd.grad(sum(scalars), inputs, allow_unused=True) if scalars and inputs else ()
        for x in (*results, *tensors(gradients)):
            assert_of_format(x)
