"""The shadow run on every operator of PyTorch's own sample database: the twins are what float64 computes."""

import pytest
import torch
from operator_samples import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import roundoff
from roundoff.simulate.aten.outputs import outputs
from roundoff.simulate.shadow.shadow import Shadow
from roundoff.simulate.watching.watcher import Call, Place

RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "normal_in_place", "normal_number_mean",
    "rand_like", "randint_like", "randn", "randn_like", "uniform", "nn_functional_alpha_dropout",
    "nn_functional_dropout", "nn_functional_dropout2d", "nn_functional_dropout3d",
    "nn_functional_feature_alpha_dropout_with_train", "nn_functional_fractional_max_pool2d",
    "nn_functional_fractional_max_pool3d", "nn_functional_multi_head_attention_forward", "nn_functional_rrelu",
    "nn_functional_scaled_dot_product_attention", "svd_lowrank", "pca_lowrank",
}  # fmt: skip
UNDEFINED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "as_strided_partial_views",  # reads beyond what its sample defines
}  # fmt: skip
OTHER_DTYPES = {
    "bfloat16", "half", "chalf", "float", "cfloat", "to_sparse", "sparse_sampled_addmm", "sparse_mm_reduce",
    "signal_windows_blackman", "signal_windows_general_cosine", "signal_windows_general_hamming",
    "signal_windows_hamming", "signal_windows_nuttall",  # take their coefficients through float32 tensors
}  # fmt: skip

OPERATORS = [
    op
    for op in op_db
    if {torch.float32, torch.float64} <= op.supported_dtypes("cpu")
    and op.formatted_name not in RANDOM | UNDEFINED | OTHER_DTYPES
    and not op.name.startswith("jiterator")  # CUDA only
]


class Rounding(TorchDispatchMode):
    """Rounds every result to e5m10, as a simulation does, with a shadow."""

    def __init__(self):
        super().__init__()
        self.shadow = Shadow()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        place, given = Place("forward", "", func.overloadpacket.__name__), (args, kwargs or {})
        call = Call(place, roundoff.Format.parse("e5m10"), func, *given, given)
        token = self.shadow.before(call)
        result = func(*args, **(kwargs or {}))
        how = outputs(func)
        if how.results and not any(how.viewing):
            for x in tree_leaves(result):
                if is_floating(x) and not x._is_zerotensor():
                    x.copy_(rounded(x))
        for position, name in how.written:
            for x in tree_leaves(args[position] if position < len(args) else (kwargs or {}).get(name)):
                if is_floating(x):
                    x.copy_(rounded(x))
        self.shadow.after(call, token, result)
        return result


def rounded(x):
    numbers = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    numbers = roundoff.round(numbers.contiguous(), "e5m10")
    return torch.view_as_complex(numbers) if x.is_complex() else numbers


def is_floating(x):
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def widened(x):
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    if is_floating(x):
        return x.detach().to(wide[x.dtype]).requires_grad_(x.requires_grad)
    return wide.get(x, x) if isinstance(x, torch.dtype) else x


def values_and_gradients(op, sample):
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    results = tree_leaves(op(*args, **kwargs))
    scalars = [x.abs().sum() for x in results if is_floating(x) and x.requires_grad]
    gradients = torch.autograd.grad(sum(scalars), inputs, allow_unused=True) if scalars and inputs else ()
    return [x for x in (*results, *gradients) if is_floating(x)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_twins_are_what_float64_computes(op):
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)))
    with torch.no_grad():  # comparisons with their results, as in the gradient of amax, want values of the format
        for x in tree_leaves((sample.input, sample.args, sample.kwargs)):
            if is_floating(x):
                x.copy_(rounded(x))
    wide = type(sample)(
        tree_map(widened, sample.input), args=tree_map(widened, sample.args), kwargs=tree_map(widened, sample.kwargs)
    )
    with Rounding() as mode:
        found = values_and_gradients(op, sample)
    honest = values_and_gradients(op, wide)
    report = mode.shadow.report()
    assert not report.unfollowed
    assert not report.unseen
    for x, expected in zip(found, honest, strict=True):
        twin = mode.shadow.twin(x)
        torch.testing.assert_close(twin, expected.detach(), rtol=1e-9, atol=1e-10, equal_nan=True)
