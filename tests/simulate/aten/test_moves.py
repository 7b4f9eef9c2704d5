"""Calls that are exact moves: what is moved, what is computed or brought in, for the same operations."""

import pytest
import torch

from roundoff.simulate.aten.moves import is_exact_in_carrier, is_move

aten = torch.ops.aten
X, D, C = torch.rand(3), torch.rand(3).double(), torch.rand(3, dtype=torch.complex64)
AT = [torch.tensor([0])]


@pytest.mark.parametrize(
    ("operation", "args", "moves"),
    [
        (aten.clone.default, (X,), True),
        (aten.relu.default, (X,), True),
        (aten.neg.default, (X,), True),
        (aten.neg.default, (C,), False),
        (aten.cat.default, ([X, X],), True),
        (aten.cat.default, ([X, D],), False),
        (aten.where.self, (X > 0, X, X), True),
        (aten.where.self, (X > 0, X, D), False),
        (aten.copy_.default, (X, X), True),
        (aten.copy_.default, (X, D), False),
        (aten._foreach_maximum.List, ([X, X], [X, X]), True),
        (aten.masked_fill.Scalar, (X, X > 0, 0), True),
        (aten.masked_fill.Scalar, (X, X > 0, -0.0), False),
        (aten.masked_fill.Scalar, (X, X > 0, -1e9), False),
        (aten.index_put.default, (X, AT, X[:1]), True),
        (aten.index_put.default, (X, AT, X[:1], True), False),
        (aten.scatter.reduce, (X, 0, AT[0], X[:1]), False),
        (aten.threshold.default, (X, 0.1, 0.0), True),
        (aten.threshold.default, (X, 0.1, 0.3), False),
        (aten.constant_pad_nd.default, (X, [1, 1]), True),
        (aten.constant_pad_nd.default, (X, [1, 1], 0.5), False),
        (aten.fill_.Scalar, (X, 0.1), False),
        (aten.sign.default, (X,), False),
        (aten.add.Tensor, (X, X), False),
    ],
)
def test_calls(operation, args, moves):
    kwargs = {"reduce": "add"} if operation is aten.scatter.reduce else {}
    assert is_move(operation, args, kwargs) == moves


def test_arguments_by_name():
    assert is_move(aten.cat.default, (), {"tensors": [X, X]})
    assert not is_move(aten.where.self, (X > 0, X), {"other": D})
    assert not is_move(aten.constant_pad_nd.default, (X, [1, 1]), {"value": 0.5})


def test_kernels_that_round_nothing():
    assert is_exact_in_carrier(aten.masked_fill_.Scalar)
    assert is_exact_in_carrier(aten.sign.default)
    assert not is_exact_in_carrier(aten.index_put.default)  # it can add
    assert not is_exact_in_carrier(aten.add.Tensor)
