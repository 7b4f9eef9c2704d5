"""Simulated fp16 at kernel granularity against PyTorch's own half-precision kernels, over its sample database."""

import pytest
import torch
from operator_samples import op_db
from torch.utils._pytree import tree_leaves, tree_map

import roundoff

SAMPLES = 4

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
}  # fmt: skip

# Half draws other random numbers than float32; or the result is memory as it was found; or half is refused.
INCOMPARABLE = {
    "as_strided_partial_views", "bfloat16", "chalf", "empty", "empty_like", "empty_permuted", "empty_strided", "half",
    "new_empty", "new_empty_strided", "nextafter", "normal", "normal_in_place", "rand_like", "randn", "randn_like",
    "sparse_mm_reduce", "to_sparse", "uniform",
}  # fmt: skip

OPERATORS = [
    op
    for op in op_db
    if {torch.float16, torch.float32} <= op.supported_dtypes("cpu")
    and op.formatted_name not in INCOMPARABLE | HALF_INSIDE
    and not op.name.startswith("jiterator")  # CUDA only
]


def widened(tree):
    def widen(x):
        if isinstance(x, torch.Tensor) and x.dtype == torch.float16:
            return x.float()
        return torch.float32 if x is torch.float16 else x

    return tree_map(widen, tree)


def ordered(x):
    """Half-precision numbers as integers of the same order."""
    codes = x.view(torch.int16).to(torch.int32)
    return torch.where(codes < 0, -(codes & 0x7FFF), codes)


def ulps(a, b):
    """The largest distance, in numbers of the format; NaN is at no distance from NaN."""
    assert torch.equal(a.isnan(), b.isnan())
    distances = (ordered(a) - ordered(b)).abs()[~a.isnan()]
    return int(distances.max()) if distances.numel() else 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_as_native_half(op):
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    for _, sample in zip(range(SAMPLES), op.sample_inputs("cpu", torch.float16), strict=False):
        arguments = widened((sample.input, *sample.args))
        named = widened(sample.kwargs)
        torch.manual_seed(1)
        native = op(sample.input, *sample.args, **sample.kwargs)
        torch.manual_seed(1)
        with roundoff.simulate("e5m10"):
            simulated = op(*arguments, **named)
        for a, b in zip(tree_leaves(native), tree_leaves(simulated), strict=True):
            if isinstance(a, torch.Tensor) and a.dtype == torch.float16:
                assert a.shape == b.shape
                assert ulps(a, b.half()) <= (op.formatted_name in ONE_ULP)
