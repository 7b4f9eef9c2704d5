"""Every operator of PyTorch that multiplies or adds up inside is known, so that none escapes without a word."""

import re
from fnmatch import fnmatchcase

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch.utils.flop_counter import flop_registry

from roundoff.simulate.accumulation.run import accumulates
from roundoff.simulate.aten.kernels import FOR_ANY_BACKEND, is_composite
from roundoff.simulate.aten.sums import steps_inside, sums_inside
from roundoff.simulate.aten.tables import is_contraction, is_other_product, plain_name

OF_SPARSE = ("SparseCPU", "SparseCsrCPU", "SparseCUDA", "SparseCsrCUDA")
BACKENDS = (*FOR_ANY_BACKEND, *OF_SPARSE, "CPU", "CUDA", "MkldnnCPU", "QuantizedCPU")
MULTIPLIED = {"mat", "mat1", "mat2", "vec", "vec1", "vec2", "weight", "batch1", "batch2", "dense", "other_matrix"}
TOLD_BY_NAME = re.compile(
    r"mm|(^|_)(add)?mv|dot|matmul|conv(?!ert)|linear|attention|lstm|gru|rnn|sum|mean|norm|loss|softmax|cum|prod|_fft|solve"
    r"|chol|qr|svd|eig|dist|scatter|accum|pool|interp|upsample|grid|embedding|reduce|trace|var|std|inverse|det|histogram"
    r"|bincount|(?<!un)fold|unfold_backward|col2im|coalesce|outer|kron|cross"
)

# What looks like a product or a sum, and is none.
NEITHER = {
    "moves": [
        "*max_pool*", "*max_unpool*", "*scatter", "masked_scatter_backward", "*upsample_nearest*", "cummax", "cummin",
        "_cumm*_helper", "embedding", "index_select", "copy*", "detach*", "sparse_mask", "_sparse_mask_projection",
        "slice_inverse", "_nested_sum_backward", "_sparse_sum_backward", "_convert_weight_*", "mkldnn_reorder_*",
        "_padded_dense_to_jagged_forward", "*_coalesced", "resize_as_sparse", "_sparse_coo_tensor_with_dims_*",
        "_nested_get_jagged_dummy", "_dyn_quant_pack_4bit_weight",
    ],
    "elementwise, and products of all elements": [
        "add", "addr", "sub", "mul", "div", "floor_divide", "lerp", "sqrt", "rsqrt", "threshold_backward",
        "*_loss_backward", "nll_loss2d_backward", "binary_cross_entropy_backward", "_prelu_kernel*", "_thnn_fused_*",
        "hamming_window", "fft_fftfreq", "igamma*", "lgamma", "digamma", "mvlgamma", "polygamma", "*normal*",
        "_standard_gamma*", "prod", "_sparse_csr_prod",
    ],
    "integers, counts and questions": [
        "_int_mm", "histogram", "_histogramdd_*", "_philox_key_fold_in", "_use_*_ctc_loss", "is_coalesced",
    ],
}  # fmt: skip


def operators():
    """The operators of ATen that have kernels, by name."""
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        operation = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if operation is None or not full.startswith("aten::"):
            continue
        if not is_composite(operation) or any(has_kernel(full, key) for key in BACKENDS):
            found.setdefault(plain_name(name), []).append(operation)
    return found


def multiplies_or_adds(name, overloads):
    """Whether an operator seems to: by its name, PyTorch's formulas, the names of its arguments, or sparse kernels."""
    if TOLD_BY_NAME.search(name) or any(name == getattr(known, "__name__", "") for known in flop_registry):
        return True
    for operation in overloads:
        arguments = [one for one in operation._schema.arguments if "Tensor" in str(one.type) and not one.is_out]
        is_sparse = any(has_kernel(operation.name(), key) for key in OF_SPARSE)
        if len(arguments) > 1 and (is_sparse or MULTIPLIED & {one.name for one in arguments}):
            return True
    return False


def is_known(name, overloads):
    if is_contraction(name) or is_other_product(name):
        return True
    return any(sums_inside(operation) or steps_inside(operation) or accumulates(operation) for operation in overloads)


def test_every_operator_that_multiplies_or_adds_up_is_known():
    patterns = [pattern for of_a_kind in NEITHER.values() for pattern in of_a_kind]
    there = operators()
    suspected = {name for name, overloads in there.items() if multiplies_or_adds(name, overloads)}
    unknown = {name for name in suspected if not is_known(name, there[name])}
    excepted = {name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)}
    assert unknown - excepted == set()  # to be added to the tables of aten/tables.py or aten/sums.py, or above
    assert {
        "_sparse_addmm",
        "_sparse_mm_reduce_impl",
        "hspmm",
        "_fft_c2c",
        "linalg_qr",
        "cumprod",
    } <= suspected - unknown
