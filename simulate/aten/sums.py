"""The ATen operations that add up numbers inside; accumulators of a policy reach only the products among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from .schemas import schema_of
from .tables import is_contraction, is_other_product, plain_name

Asked = Callable[[Sequence[Any], Mapping[str, Any]], bool]

SUMMING = (
    # Losses add up a value for each element.
    "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss",
    "multilabel_margin_loss_forward", "_ctc_loss*", "_cudnn_ctc_loss*", "miopen_ctc_loss",
    # Softmax, normalisation, variances, norms and distances.
    "*softmax*", "*sumexp", "*layer_norm*", "*group_norm*", "*batch_norm*", "*rms_norm*", "var", "std", "var_mean",
    "std_mean", "norm", "native_norm", "powsum", "dist", "*renorm", "_cdist_*", "_pdist_*", "_weight_norm_interface*",
    # Sums over places and windows.
    "nansum", "_sparse_sum", "_sparse_csr_sum", "_coalesce", "trace", "scatter", "scatter_add",
    "scatter_reduce", "index_add", "index_reduce", "index_put", "_index_put_impl", "_unsafe_index_put",
    "_unsafe_masked_index_put_accumulate", "put", "*segment_reduce*", "_embedding_bag*", "embedding_dense_backward",
    "embedding_backward", "bincount", "*avg_pool*", "*pool*_backward", "*pad*_backward", "col2im", "unfold_backward",
    "*upsample*linear*", "*upsample*cubic*", "*upsample*lanczos*", "*upsample*_backward", "*grid_sampler*",
    "_fake_quantize_learnable_*_backward",
)  # fmt: skip
"""Names of operations that add up, as patterns, without leading ``_foreach_`` and trailing ``_``."""

ALGORITHMS = (
    "*linalg*", "*cholesky*", "_fft_*", "ormqr", "geqrf", "lu_solve", "triangular_solve", "_spsolve", "cumsum",
    "*cumsumexp", "cumprod",
)  # fmt: skip
"""Names of operations that make a result by more than one sum, or a sequence of steps."""

_NOSUM = {"reduction": (0,), "accumulate": (False,), "reduce": (None, "multiply", "prod", "amax", "amin", "max", "min")}
"""Values of arguments with which an operation adds nothing up."""


def are_floats(args: Sequence[Any]) -> bool:
    """Whether a call is about floating-point or complex numbers: sums of integers are exact."""
    flat = (x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,)))
    return any(isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) for x in flat)


@cache
def sums_inside(operation: OpOverload) -> Asked | None:
    """Returns a predicate on the arguments: whether a call of an operation adds up inside; None if no call does."""
    name = plain_name(operation.overloadpacket.__name__)
    if steps_inside(operation):
        return None if name == "cumprod" else _always
    if operation.namespace != "aten" or not any(fnmatchcase(name, pattern) for pattern in SUMMING):
        return None
    if name == "scatter" and "reduce" not in (argument.name for argument in schema_of(operation).arguments):
        return None
    for position, argument in enumerate(schema_of(operation).arguments):
        if argument.name in _NOSUM:
            return _unless(position, argument.name, argument.default_value)
    return _always


@cache
def steps_inside(operation: OpOverload) -> Asked | None:
    """Returns such a predicate for products and ``ALGORITHMS``; None for all other operations."""
    name = plain_name(operation.overloadpacket.__name__)
    if is_contraction(name) or is_other_product(name):
        return _always
    of_aten = operation.namespace == "aten"
    return _always if of_aten and any(fnmatchcase(name, pattern) for pattern in ALGORITHMS) else None


def _always(_args: Sequence[Any], _kwargs: Mapping[str, Any]) -> bool:
    return True


def _unless(position: int, name: str, default: Any) -> Asked:
    def adds(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        value = args[position] if position < len(args) else kwargs.get(name, default)
        return value not in _NOSUM[name]

    return adds
