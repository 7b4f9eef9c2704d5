"""Every operator of PyTorch's own sample database in simulations: formats, watching, shadows, halves.

One test an operator: all that is asked of it is asked in turn, and its failure has the names of all that failed. That
decompositions agree with kernels is asked in composites/test_primitives.py.
"""

import pytest
import torch
from operator_samples import UNDEFINED, op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import roundoff
from roundoff import simulate
from roundoff.simulate.aten.outputs import outputs
from roundoff.simulate.dispatch.narrow_tensors import NARROW
from roundoff.simulate.shadow.shadow import Shadow
from roundoff.simulate.watching.watcher import Call, Place

HALF, BRAIN = torch.float16, torch.bfloat16


def operators(*dtypes, without):
    """PyTorch's operators that take all of some dtypes, by name."""
    return {
        op.formatted_name: op
        for op in op_db
        if {*dtypes} <= op.supported_dtypes("cpu")
        and op.formatted_name not in without | UNDEFINED
        and not op.name.startswith("jiterator")  # CUDA only
    }


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def is_floating(x):
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def widened(tree):
    """Halves in float32, and float32 where they are asked for."""

    def widen(x):
        if isinstance(x, torch.Tensor) and x.dtype in NARROW:
            return x.detach().float()
        return torch.float32 if isinstance(x, torch.dtype) and x in NARROW else x

    return tree_map(widen, tree)


FORMAT = "e5m6"
REFUSED = {  # results that no simulation can hold; the message is tested elsewhere
    "bfloat16", "half", "chalf", "to_sparse", "sparse_sampled_addmm", "sparse_mm_reduce",
}  # fmt: skip
SINGLE = operators(torch.float32, without=REFUSED)
# Under any dispatch mode PyTorch computes singular vectors for these too, by another algorithm of LAPACK.
OTHER_ALGORITHM = {"linalg_cond", "linalg_eigvalsh", "linalg_svdvals", "norm_nuc"}
OTHER_DERIVATIVE = {"prod", "ormqr"}  # by another formula under any dispatch mode


def rounded(x):
    if x.is_complex():
        return torch.view_as_complex(roundoff.round(torch.view_as_real(x.detach().resolve_conj()), FORMAT))
    return roundoff.round(x, FORMAT)


def watched_in_fp32_nothing_changes(op):
    """Watching makes every operation pass through the mode; without, fp32 would not even enter it."""
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu") and op.name not in OTHER_DERIVATIVE
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    for _, sample in zip(range(2), op.sample_inputs("cpu", torch.float32, requires_grad=differentiable), strict=False):
        plain = forward_and_backward(op, sample)
        with simulate("fp32", observe=True):
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
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) and x.layout == torch.strided else x, tree)


def results_and_gradients_are_of_the_format(op):
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)):
        if number == 2:
            break
        with torch.no_grad():
            for x in tensors((sample.input, sample.args, sample.kwargs)):
                if x.is_floating_point() and x.layout == torch.strided:
                    x.copy_(rounded(x))
        inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
        with simulate(FORMAT):
            results = tensors(op(sample.input, *sample.args, **sample.kwargs))
            scalars = [x.abs().sum() for x in results if x.requires_grad]
            gradients = torch.autograd.grad(sum(scalars), inputs, allow_unused=True) if scalars and inputs else ()
        for x in (*results, *tensors(gradients)):
            assert_of_format(x)


WRITING = {
    "_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm", "nn_functional_batch_norm",
    "nn_functional_instance_norm", "nn_functional_embedding", "nn_functional_embedding_bag", "cauchy", "exponential",
    "geometric", "log_normal", "normal_in_place", "uniform",
}  # fmt: skip


def operands_are_left_as_they_are(op):
    """Results that lie in the memory of an operand are no new numbers, whether the operation says so or not."""
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    for _, sample in zip(range(2), op.sample_inputs("cpu", torch.float32), strict=False):
        given = (sample.input, sample.args, sample.kwargs)
        before = copied(given)
        with simulate("e5m2"):
            op(sample.input, *sample.args, **sample.kwargs)
        for x, expected in zip(tensors(given), tensors(before), strict=True):
            assert x.layout != torch.strided or same(x, expected)


def assert_of_format(x):
    if (x.is_floating_point() or x.is_complex()) and x.layout == torch.strided:
        torch.testing.assert_close(x.detach(), rounded(x), rtol=0, atol=0, equal_nan=True)


RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "normal_in_place", "normal_number_mean",
    "rand_like", "randint_like", "randn", "randn_like", "uniform", "nn_functional_alpha_dropout",
    "nn_functional_dropout", "nn_functional_dropout2d", "nn_functional_dropout3d",
    "nn_functional_feature_alpha_dropout_with_train", "nn_functional_fractional_max_pool2d",
    "nn_functional_fractional_max_pool3d", "nn_functional_multi_head_attention_forward", "nn_functional_rrelu",
    "nn_functional_scaled_dot_product_attention", "svd_lowrank", "pca_lowrank",
}  # fmt: skip
OTHER_DTYPES = {
    "bfloat16", "half", "chalf", "float", "cfloat", "to_sparse", "sparse_sampled_addmm", "sparse_mm_reduce",
    "signal_windows_blackman", "signal_windows_general_cosine", "signal_windows_general_hamming",
    "signal_windows_hamming", "signal_windows_nuttall",  # take their coefficients through float32 tensors
}  # fmt: skip

FOLLOWED = operators(torch.float32, torch.float64, without=RANDOM | OTHER_DTYPES)


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
                    x.copy_(in_half(x))
        for position, name in how.written:
            for x in tree_leaves(args[position] if position < len(args) else (kwargs or {}).get(name)):
                if is_floating(x):
                    x.copy_(in_half(x))
        self.shadow.after(call, token, result)
        return result


def in_half(x):
    numbers = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    numbers = roundoff.round(numbers.contiguous(), "e5m10")
    return torch.view_as_complex(numbers) if x.is_complex() else numbers


def doubled(x):
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


def twins_are_what_float64_computes(op):
    differentiable = torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)))
    with torch.no_grad():  # comparisons with their results, as in the gradient of amax, want values of the format
        for x in tree_leaves((sample.input, sample.args, sample.kwargs)):
            if is_floating(x):
                x.copy_(in_half(x))
    wide = type(sample)(
        tree_map(doubled, sample.input), args=tree_map(doubled, sample.args), kwargs=tree_map(doubled, sample.kwargs)
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


# Kernels that compute in float32 inside and round once, or compute exactly, must agree bit for bit. These are within
# one unit in the last place: their float32 result lies next to a tie, or they round twice.
ONE_ULP = {
    "addmv", "dist", "ldexp", "linspace", "masked_log_softmax", "masked_softmax", "mvlgamma_mvlgamma_p_1",
    "mvlgamma_mvlgamma_p_3", "mvlgamma_mvlgamma_p_5", "nn_functional_binary_cross_entropy_with_logits",
    "nn_functional_huber_loss", "nn_functional_kl_div", "nn_functional_linear_cross_entropy",
    "nn_functional_linear_cross_entropy_chunked", "nn_functional_smooth_l1_loss",
    "normal_number_mean", "polygamma_polygamma_n_0", "prod", "renorm", "rsqrt", "softmax", "special_entr",
    "special_i0e", "special_polygamma_special_polygamma_n_0", "special_xlog1py", "xlogy",
}  # fmt: skip

ONE_ULP_OF_BRAIN = {"nn_functional_cross_entropy", "nn_functional_softmin"}

# PyTorch computes these in half inside, several roundings one after the other.
HALF_INSIDE = {
    "_batch_norm_with_update", "_native_batch_norm_legit", "_unsafe_masked_index_put_accumulate", "addbmm", "addr",
    "cross", "grid_sampler_2d", "grid_sampler_3d", "linalg_cross", "log_softmax", "logit", "matrix_exp",
    "native_batch_norm", "nn_functional_adaptive_avg_pool3d", "nn_functional_batch_norm", "nn_functional_bilinear",
    "nn_functional_conv_transpose1d", "nn_functional_conv_transpose2d", "nn_functional_conv_transpose3d",
    "nn_functional_grid_sample", "nn_functional_instance_norm", "nn_functional_interpolate_bicubic",
    "nn_functional_interpolate_linear", "nn_functional_interpolate_trilinear", "nn_functional_mse_loss",
    "nn_functional_rms_norm",
    "nn_functional_scaled_dot_product_attention", "nn_functional_soft_margin_loss",
    "torch_ops_aten__scaled_dot_product_flash_attention_for_cpu",
}  # fmt: skip

# Half draws other normal numbers than float32, and the lower end of a range for the upper one; or half is refused.
WITHOUT_PARTNER = {
    "bfloat16", "chalf", "half", "normal", "normal_in_place", "rand_like", "randn", "randn_like", "sparse_mm_reduce",
    "to_sparse", "uniform",
}  # fmt: skip
NATIVE = operators(HALF, torch.float32, without=WITHOUT_PARTNER | HALF_INSIDE)


def ordered(x):
    """Half-precision numbers as integers of the same order."""
    codes = x.view(torch.int16).to(torch.int32)
    return torch.where(codes < 0, -(codes & 0x7FFF), codes)


def ulps(a, b):
    """The largest distance, in numbers of the format; NaN is at no distance from NaN."""
    assert torch.equal(a.isnan(), b.isnan())
    distances = (ordered(a) - ordered(b)).abs()[~a.isnan()]
    return int(distances.max()) if distances.numel() else 0


def as_native_half(op, most=2, dtypes=(HALF, BRAIN)):
    for dtype in op.supported_dtypes("cpu").intersection(dtypes):
        one_ulp = ONE_ULP | (ONE_ULP_OF_BRAIN if dtype == BRAIN else set())
        torch.manual_seed(0)  # the sample generators have no other source of randomness
        for _, sample in zip(range(most), op.sample_inputs("cpu", dtype), strict=False):
            arguments = widened((sample.input, *sample.args))
            named = widened(sample.kwargs)
            torch.manual_seed(1)
            native = op(sample.input, *sample.args, **sample.kwargs)
            torch.manual_seed(1)
            with simulate({HALF: "e5m10", BRAIN: "e8m7"}[dtype]):
                simulated = op(*arguments, **named)
            for a, b in zip(tree_leaves(native), tree_leaves(simulated), strict=True):
                if isinstance(a, torch.Tensor) and a.dtype == dtype:
                    assert a.shape == b.shape
                    assert ulps(a, b.to(dtype)) <= (op.formatted_name in one_ulp)


HELD = {HALF: ["e5m10", "e5m7", "e4m3", "e4m6_saturate", "q3.4"], BRAIN: ["e8m7", "e5m7", "e4m3", "posit8"]}
# Random numbers depend on the dtype they are drawn in; or float32 is asked for.
INCOMPARABLE = {
    "bfloat16", "chalf", "float", "half", "sparse_mm_reduce", "to_sparse",
    "nn_functional_scaled_dot_product_attention",  # with dropout PyTorch makes it of other operations, for half
}  # fmt: skip
WIDENED = operators(HALF, BRAIN, torch.float32, without=INCOMPARABLE)


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def the_bits_of_a_float32_program(op, most=2):
    """Results have the bits of the float32 program, and the dtypes that the program has without simulation."""
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    turn = [*WIDENED].index(op.formatted_name)
    dtype = (HALF, BRAIN)[turn % 2]
    for number, sample in zip(range(most), op.sample_inputs("cpu", dtype), strict=False):
        fmt = HELD[dtype][(turn + number) % len(HELD[dtype])]
        given = (sample.input, *sample.args), sample.kwargs
        results = []
        wide = widened(given)
        rounded = simulate(fmt, whole="rounded")  # of a float32 program counts are left whole
        for simulation, (args, kwargs) in ((simulate("fp32"), given), (rounded, given), (rounded, wide)):
            torch.manual_seed(1)
            with simulation:
                results.append(tree_leaves(op(*args, **kwargs)))
        for plain, x, y in zip(*results, strict=True):
            if isinstance(x, torch.Tensor):
                assert (x.dtype, x.shape) == (plain.dtype, plain.shape)
                assert same(x.double(), y.double()) if x.is_floating_point() else torch.equal(x, y)


CHECKS = [
    (watched_in_fp32_nothing_changes, SINGLE.keys() - OTHER_ALGORITHM, SINGLE),
    (results_and_gradients_are_of_the_format, SINGLE.keys(), SINGLE),
    (operands_are_left_as_they_are, SINGLE.keys() - WRITING, SINGLE),
    (twins_are_what_float64_computes, FOLLOWED.keys(), FOLLOWED),
    (as_native_half, NATIVE.keys(), NATIVE),
    (the_bits_of_a_float32_program, WIDENED.keys(), WIDENED),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", {name: None for _, names, _ in CHECKS for name in sorted(names)})
def test_operator(name):
    wrong = []
    for check, names, ops in CHECKS:
        if name in names:
            try:
                check(ops[name])
            except Exception as error:  # noqa: BLE001  the next ones are asked all the same
                error.add_note(f"{name}: {check.__name__}")
                wrong.append(error)
    if wrong:
        raise ExceptionGroup(f"{name}: {len(wrong)} of its checks failed", wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({**NATIVE, **WIDENED}))
def test_halves_in_more_samples(name):
    if name in NATIVE:
        as_native_half(NATIVE[name], 4, [HALF])
    if name in WIDENED:
        the_bits_of_a_float32_program(WIDENED[name], 3)
