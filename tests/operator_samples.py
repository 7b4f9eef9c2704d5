"""PyTorch's own database of its operators, with sample inputs for each."""

import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

__all__ = ["OPERATORS", "UNDEFINED", "op_db"]

UNDEFINED = {
    "as_strided_partial_views", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
    "new_empty_strided",
}  # fmt: skip
"""Operators whose results nothing computed: memory as it was found, or more of the caller's than the caller set."""

OPERATORS = [
    op
    for op in op_db
    if torch.float32 in op.supported_dtypes("cpu")
    and op.formatted_name not in UNDEFINED
    and not op.name.startswith("jiterator")  # CUDA only
]
"""The operators on float32 of which the CPU computes every number; memory as it was found is none."""

# Which unittest asks for samples: none does, and torch takes a fifth of a second to find that out, each time.
for module in (common_utils, core):
    module.extract_test_fn = lambda: None
