"""Decompositions: the same numbers as the kernels in float64, every step rounded, and the failures the steps have."""

import functools
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from each import each
from operator_samples import UNDEFINED, op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import roundoff
from roundoff.agents.models.normal_fix import normal_log_prob
from roundoff.agents.models.softplus_fix import softplus
from roundoff.agents.models.squashed_normal import SquashedNormal
from roundoff.agents.optimizers.hadam import HAdam
from roundoff.simulate.composites.primitives import _FORMULAS, decomposition

aten = torch.ops.aten
SAMPLES = 12
FORMAT = "e5m6"
# Kernels of other devices, and what only they run.
ELSEWHERE = {
    "aten.cudnn_batch_norm", "aten.cudnn_batch_norm_backward", "aten.miopen_batch_norm",
    "aten.miopen_batch_norm_backward", "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_efficient_attention_backward", "aten._fused_rms_norm", "aten._fused_rms_norm_backward",
    "aten._thnn_fused_lstm_cell", "aten._thnn_fused_lstm_cell_backward_impl",
}  # fmt: skip


class Primitive(TorchDispatchMode):
    """Takes composite operations apart and rounds nothing."""

    def __init__(self):
        super().__init__()
        self.taken_apart = set()
        self.ran = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        formula = decomposition(func)
        if formula is not None:
            with self:
                result = formula(*args, **kwargs)
            if result is not NotImplemented:
                self.taken_apart.add(func)
                return result
        self.ran.add(func)
        return func(*args, **kwargs)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def run(op, sample, mode):
    """Results and gradients of one sample, or None if the operator refuses it."""
    torch.manual_seed(0)
    inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
    with mode or nullcontext():
        results = tensors(op(sample.input, *sample.args, **sample.kwargs))
        scalars = [(x.abs() * uneven(x)).sum() for x in results if x.requires_grad and x.numel()]
        gradients = torch.autograd.grad(sum(scalars), inputs, allow_unused=True) if scalars and inputs else ()
    return results, tensors(gradients)


def uneven(x):
    """Weights that leave no gradient zero for symmetry: the sum over a softmax is a constant."""
    return torch.arange(x.numel(), dtype=torch.float64).add(1).cos().view(x.shape)


def samples(op, dtype, most):
    differentiable = dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)  # the sample generators have no other source of randomness
    return itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), most)


def assert_same(actual, expected, what):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11, equal_nan=True, msg=lambda m: f"{what}: {m}")
    if expected.layout == torch.strided and expected.numel():
        assert strides(actual) == strides(expected), what


def strides(x):
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


OPERATORS = [
    op
    for op in op_db
    if torch.float64 in op.supported_dtypes("cpu")
    and op.formatted_name not in UNDEFINED
    and not op.name.startswith("jiterator")  # CUDA only
]
reached = set()  # what the tests below took apart


def names(operations):
    return {str(operation) for operation in operations} | {str(operation.overloadpacket) for operation in operations}


def transposed(x):
    return x.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)


def channels_last(x):
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return x.contiguous(memory_format=layout) if layout else transposed(x)


def with_gaps(x):
    return torch.stack([x, x], -1)[..., 0]


def laid_out(tree, layout):
    """Copies a tree of tensors: numbers are the same, elsewhere in memory."""

    def one(x):
        strided = isinstance(x, torch.Tensor) and x.layout == torch.strided and x.is_floating_point() and x.dim() > 1
        return layout(x.detach()).requires_grad_(x.requires_grad) if strided else x

    return tree_map(one, tree)


def run_laid_out(op, arguments, mode, layout):
    """Results and gradients, with gradients of the results that lie in memory as the arguments do."""
    torch.manual_seed(0)
    inputs = [x for x in tensors(arguments) if x.requires_grad]
    with mode or nullcontext():
        results = tensors(op(arguments[0], *arguments[1], **arguments[2]))
        derived = [x for x in results if x.requires_grad and x.numel()]
        weights = [laid_out(uneven(x).to(x.dtype), layout) for x in derived]
        gradients = torch.autograd.grad(derived, inputs, weights, allow_unused=True) if derived and inputs else ()
    return results, tensors(gradients)


# Called by itself, the kernel reads a last axis with gaps as if it had none (PyTorch 2.13 and 2.15).
WITHOUT_GAPS = {"torch_ops_aten__scaled_dot_product_flash_attention_for_cpu"}


def check_layouts(op, layouts, most):
    if op.formatted_name in WITHOUT_GAPS:
        return
    for sample in samples(op, torch.float64, most):
        for layout in layouts:
            arguments = laid_out((sample.input, sample.args, sample.kwargs), layout)
            mode = Primitive()
            try:
                expected = run_laid_out(op, arguments, None, layout)
            except RuntimeError:
                continue  # the kernel itself does not take it
            decomposed = run_laid_out(op, arguments, mode, layout)
            if not mode.taken_apart:
                return
            for actual, wanted in zip(tensors(decomposed), tensors(expected), strict=True):
                assert_same(actual, wanted, mode.taken_apart)


@pytest.mark.filterwarnings("ignore")
@each("op", OPERATORS)
def test_agrees_with_the_kernel_and_lies_in_memory_as_it_does(op):
    """Decompositions compute in double precision what the kernel does, and round every step."""
    check_layouts(op, [channels_last], 2)
    check_numbers(op, SAMPLES // 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_agrees_with_the_kernel_in_more_samples(op):
    check_numbers(op, SAMPLES)


def check_numbers(op, most):
    for number, sample in enumerate(samples(op, torch.float64, most)):
        mode = Primitive()
        decomposed = run(op, sample, mode)
        if mode.taken_apart:
            reached.update(mode.taken_apart)
            for actual, expected in zip(tensors(decomposed), tensors(run(op, sample, None)), strict=True):
                assert_same(actual, expected, mode.taken_apart)
            if number < 2:
                round_inputs(sample)
                for x in tensors(run(op, sample, roundoff.simulate(FORMAT, granularity="primitive"))):
                    assert_of_format(x)
        elif number == 2:
            return  # it seems to be primitive


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_results_lie_in_memory_as_those_of_the_kernel_whatever_the_layout(op):
    check_layouts(op, [channels_last, transposed, with_gaps], SAMPLES)


@each("gradient", [transposed, with_gaps, channels_last, torch.clone])
@each("layout", [transposed, with_gaps, channels_last, torch.clone])
@each("shape", [(2, 8, 6), (2, 8, 4, 5)])
def test_group_norm_of_permuted_images(shape, layout, gradient):
    x, weight = layout(numbers(*shape)).requires_grad_(), numbers(8).requires_grad_()
    expected = torch.nn.functional.group_norm(x.contiguous(), 4, weight)
    g = gradient(numbers(*shape, seed=1))
    gradients = torch.autograd.grad(expected, [x, weight], g)
    with Primitive():
        actual = torch.nn.functional.group_norm(x, 4, weight)
        found = torch.autograd.grad(actual, [x, weight], g)
    assert_all_same((actual, found), (expected, gradients), strides=False)


def test_cross_entropy_of_images_with_channels_last():
    labels = torch.randint(0, 5, (2, 8, 8), generator=torch.Generator().manual_seed(0))
    for layout in (channels_last, transposed):
        logits = layout(numbers(2, 5, 8, 8)).requires_grad_()
        with roundoff.simulate(FORMAT, granularity="primitive"):
            torch.nn.functional.cross_entropy(logits, labels).backward()
        assert_of_format(logits.grad)


def round_inputs(sample):
    with torch.no_grad():
        for x in tensors((sample.input, sample.args, sample.kwargs)):
            if x.dtype == torch.float64 and x.layout == torch.strided:
                x.copy_(roundoff.round(x, FORMAT))


def assert_of_format(x):
    x = torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()
    if x.dtype == torch.float64:
        torch.testing.assert_close(x, roundoff.round(x, FORMAT), rtol=0, atol=0, equal_nan=True)


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def positive(*shape, seed=0):
    return numbers(*shape, seed=seed).abs() + 0.5


def lists(count):
    return [[numbers(4, 3 + i, seed=10 * j + i) for i in range(3)] for j in range(count)]


def changed(operation, *args, **kwargs):
    """An in-place operation's result and what it left in its arguments."""
    return operation(*args, **kwargs), args, kwargs


def with_out(operation, *args, shape=(), **kwargs):
    out = torch.zeros(shape, dtype=torch.float64)
    result = operation(*args, out=out, **kwargs)
    assert result is out
    return out


def attention(**options):
    query, key, value = (numbers(2, 3, length, 8, seed=length) for length in (4, 5, 5))
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, **options)
    scale, mask = options.get("scale"), options.get("attn_mask")
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    gradients = backward(
        numbers(2, 3, 4, 8, seed=9), query, key, value, out, logsumexp, 0.0, options.get("is_causal", False),
        scale=scale, attn_mask=mask,
    )  # fmt: skip
    return out, logsumexp, gradients


def self_attention():
    x = numbers(2, 5, 8)
    weights = numbers(24, 8, seed=1), numbers(24, seed=2), numbers(8, 8, seed=3), numbers(8, seed=4)
    return x, x, x, 8, 2, *weights


def adam(operation, **options):
    params, grads, means = lists(3)
    squares, largest = ([x * x for x in each] for each in lists(2))
    steps = [torch.tensor(3.0, dtype=torch.float64) for _ in params]
    settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8}
    settings |= {"amsgrad": False, "maximize": False} | options
    return changed(operation, params, grads, means, squares, largest if settings["amsgrad"] else [], steps, **settings)


def sgd(**options):
    params, grads, buffers = lists(3)
    settings = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.2, "nesterov": False}
    settings |= {"maximize": False, "is_first_step": False} | options
    return changed(aten._fused_sgd_, params, grads, buffers, **settings)


def adagrad(**options):
    params, grads, sums = lists(3)
    steps = [torch.tensor(3.0) for _ in params]
    settings = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10, "maximize": False} | options
    return changed(aten._fused_adagrad_, params, grads, [x * x for x in sums], steps, **settings)


def batch(operation, *options, stats=True):
    running = (numbers(3, seed=1), positive(3, seed=2)) if stats else ()
    return changed(operation, numbers(5, 3, 2), numbers(3, seed=3), numbers(3, seed=4), *running, *options)


def weight_norm(dim):
    v, g = numbers(4, 3), numbers(*((4, 1) if dim == 0 else (1, 3)), seed=1)
    w, norm = aten._weight_norm_interface(v, g, dim)
    return w, norm, aten._weight_norm_interface_backward(numbers(4, 3, seed=2), v, g, norm, dim)


def seeded(operation, *args):
    torch.manual_seed(3)
    return operation(*args)


def distances(order):
    x, y = numbers(4, 3), torch.cat([numbers(4, 3)[:1], numbers(2, 3)])  # the first two are at distance 0
    forward = aten._cdist_forward(x, y, order, 2)
    pairs = aten._pdist_forward(y, order)
    return (
        forward, aten._cdist_backward(numbers(4, 3, seed=1), x, y, order, forward),
        pairs, aten._pdist_backward(numbers(3), y, order, pairs),
    )  # fmt: skip


X, Y, Z = (numbers(4, 3, seed=seed) for seed in (21, 22, 23))
SQUARE, LINE = numbers(3, 3), numbers(3)
IMAGES, BITS = numbers(2, 8, 4, 5), torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
CALLS = {
    "add with alpha": lambda: torch.add(X, Y, alpha=0.3),
    "add a number with alpha": lambda: torch.add(X, 2.0, alpha=0.3),
    "sub with alpha": lambda: torch.sub(X, Y, alpha=0.3),
    "rsub with alpha": lambda: torch.rsub(X, Y, alpha=0.3),
    "add_ with alpha": lambda: changed(aten.add_, X.clone(), Y, alpha=0.3),
    "add out": lambda: with_out(torch.add, X, Y, alpha=2, shape=(4, 3)),
    "lerp by a tensor": lambda: torch.lerp(X, Y, Z),
    "lerp_": lambda: changed(aten.lerp_, X.clone(), Y, 0.7),
    "lerp out": lambda: with_out(torch.lerp, X, Y, Z, shape=0),
    "addcmul_": lambda: changed(aten.addcmul_, X.clone(), Y, Z, value=0.3),
    "addcmul_ of a transpose": lambda: changed(aten.addcmul_, numbers(3, 4).t(), Y, Z, value=0.3),
    "addcdiv_": lambda: changed(aten.addcdiv_, X.clone(), Y, positive(4, 3), value=0.3),
    "addcdiv out": lambda: with_out(torch.addcdiv, X, Y, Z, value=3, shape=(4, 3)),
    "addmm": lambda: torch.addmm(X, Y, SQUARE, beta=0.5, alpha=2),
    "addmm without bias": lambda: torch.addmm(X / 0, Y, SQUARE, beta=0),
    "addmm_": lambda: changed(aten.addmm_, X.clone(), Y, SQUARE, alpha=2),
    "addmm and relu": lambda: aten._addmm_activation(LINE, Y, SQUARE),
    "addmm and gelu": lambda: aten._addmm_activation(LINE, Y, SQUARE, use_gelu=True),
    "silu_": lambda: changed(aten.silu_, X.clone()),
    "gelu out": lambda: with_out(aten.gelu.out, X, shape=(4, 3)),
    "mean out": lambda: with_out(torch.mean, X, 1, shape=(4,)),
    "var out": lambda: with_out(torch.var, X, 1, shape=0),
    "softmax out": lambda: with_out(torch.softmax, X, 1, shape=(4, 3)),
    "norm": lambda: torch.norm(X),
    "norm over all": lambda: aten.norm.ScalarOpt_dtype(X.float(), 3, dtype=torch.float64),
    "norm over one": lambda: aten.norm.ScalarOpt_dim_dtype(X.float(), 3, [1], False, dtype=torch.float64),
    "norm number": lambda: aten.norm.Scalar(X, 2),
    "masked softmax": lambda: aten._masked_softmax(X, X > 0, 1),
    "softmax of nothing": lambda: aten._safe_softmax(torch.full((2, 3), -math.inf, dtype=torch.float64), 1),
    "dropout": lambda: seeded(aten.native_dropout, X, 0.3, True),
    "no dropout": lambda: aten.native_dropout(X, 0.3, False),
    "weight norm, rows": lambda: weight_norm(0),
    "weight norm, columns": lambda: weight_norm(1),
    "batch norm": lambda: batch(aten.native_batch_norm, True, 0.1, 1e-5),
    "batch norm, evaluated": lambda: batch(aten.native_batch_norm, False, 0.1, 1e-5),
    "batch norm, legitimate": lambda: batch(aten._native_batch_norm_legit, True, 0.1, 1e-5),
    "batch norm, no statistics": lambda: batch(aten._native_batch_norm_legit.no_stats, True, 0.1, 1e-5, stats=False),
    "batch norm, no training": lambda: batch(aten._native_batch_norm_legit_no_training, 0.1, 1e-5),
    "batch norm, functional": lambda: batch(aten._native_batch_norm_legit_functional, True, 0.1, 1e-5),
    "batch norm, updated": lambda: batch(aten._batch_norm_with_update, 0.1, 1e-5)[0][:3],
    "batch norm, not updated": lambda: batch(aten._batch_norm_no_update, 0.1, 1e-5)[0][:3],
    **{
        f"distances of order {order}": functools.partial(distances, order)
        for order in (0.0, 1.0, 1.5, 2.0, 3.0, math.inf)
    },
    "attention": attention,
    "attention, causal": lambda: attention(is_causal=True, scale=0.5),
    "attention, masked": lambda: attention(attn_mask=numbers(2, 3, 4, 5, seed=7)),
    "attention, a layer": lambda: aten._native_multi_head_attention(*self_attention(), need_weights=False),
    "attention, its operands": lambda: aten._transform_bias_rescale_qkv(numbers(2, 5, 24), numbers(24), 2),
    "foreach add": lambda: aten._foreach_add(*lists(2), alpha=0.3),
    "foreach add_": lambda: changed(aten._foreach_add_, *lists(2), alpha=0.3),
    "foreach add tensor": lambda: aten._foreach_add.Tensor(*lists(1), numbers()[()], alpha=0.3),
    "foreach add_ tensor": lambda: changed(aten._foreach_add_.Tensor, *lists(1), numbers()[()], alpha=0.3),
    "foreach sub": lambda: aten._foreach_sub(*lists(2), alpha=0.3),
    "foreach sub_": lambda: changed(aten._foreach_sub_, *lists(2), alpha=0.3),
    "foreach addcmul": lambda: aten._foreach_addcmul(*lists(3), 0.3),
    "foreach addcmul_": lambda: changed(aten._foreach_addcmul_, *lists(3), [0.1, 0.2, 0.3]),
    "foreach addcdiv": lambda: aten._foreach_addcdiv.Tensor(*lists(3), numbers(3)),
    "foreach addcdiv_": lambda: changed(aten._foreach_addcdiv_, *lists(3), [0.1, 0.2, 0.3]),
    "foreach lerp": lambda: aten._foreach_lerp(*lists(3)),
    "foreach lerp_": lambda: changed(aten._foreach_lerp_, *lists(2), 0.3),
    "foreach norm": lambda: [aten._foreach_norm(*lists(1), order) for order in (2, 1, math.inf)],
    "foreach powsum": lambda: aten._foreach_powsum(*lists(1), 3),
    "fused adam": lambda: adam(aten._fused_adam_),
    "fused adam, options": lambda: adam(aten._fused_adam_, amsgrad=True, maximize=True, lr=torch.tensor(0.1).double()),
    "fused adam, scaled": lambda: adam(aten._fused_adam_, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(0.0)),
    "fused adam, skipped": lambda: adam(aten._fused_adam_, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(1.0)),
    "fused adamw": lambda: adam(aten._fused_adamw_),
    "fused sgd": sgd,
    "fused sgd, first step": lambda: sgd(is_first_step=True),
    "fused sgd, nesterov": lambda: sgd(nesterov=True, maximize=True, dampening=0.0),
    "fused adagrad": adagrad,
    "binary cross-entropy at the ends": lambda: aten.binary_cross_entropy(BITS, BITS.flip(0)),
    "cross-entropy with logits, weighted": lambda: aten.binary_cross_entropy_with_logits(
        X, Y.sigmoid(), None, positive(3), 0
    ),
    "derivative of elu by its result": lambda: aten.elu_backward(Y, 1.5, 0.7, 1.2, True, X),
    "group norm of images": lambda: aten.native_group_norm(channels_last(IMAGES), None, None, 2, 8, 20, 4, 1e-5),
    "derivative of a squared error": lambda: aten.mse_loss_backward(transposed(Z), transposed(X), transposed(Y), 0),
    "logsumexp of infinities": lambda: torch.logsumexp(torch.tensor([[-math.inf, -math.inf], [math.inf, 1.0]]), 1),
}


@pytest.mark.filterwarnings("ignore")
@each("name", CALLS)
def test_other_operations_agree_with_the_kernel(name):
    mode = Primitive()
    with mode:
        decomposed = CALLS[name]()
    assert mode.taken_apart
    reached.update(mode.taken_apart)
    expected = tensors(CALLS[name]())
    for actual, wanted in zip(tensors(decomposed), expected, strict=True):
        assert_same(actual, wanted, name)


def by_formula(operation, *args, **kwargs):
    return decomposition(operation.default)(*args, **kwargs)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_other_devices(training):
    operands = numbers(5, 3, 2), numbers(3), numbers(3, seed=1)
    running = [[numbers(3, seed=4), positive(3, seed=5)] for _ in range(2)]
    expected = aten.native_batch_norm(*operands, *running[0], training, 0.1, 1e-5)
    actual = by_formula(aten.cudnn_batch_norm, *operands, *running[1], training, 0.1, 1e-5)
    assert actual[3].dtype == torch.uint8
    assert_all_same((actual[:3], running[1]), (expected, running[0]))
    actual = by_formula(aten.miopen_batch_norm, *operands, *running[1], training, 0.1, 1e-5)
    expected = aten.native_batch_norm(*operands, *running[0], training, 0.1, 1e-5)
    assert_all_same((actual, running[1]), (expected, running[0]))


@pytest.mark.parametrize("operation", [aten.cudnn_batch_norm_backward, aten.miopen_batch_norm_backward])
def test_derivative_of_batch_norm_of_other_devices(operation):
    g, x, weight = numbers(5, 3, 2, seed=1), numbers(5, 3, 2), numbers(3)
    _, mean, rstd = aten.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    expected = aten.native_batch_norm_backward(g, x, weight, None, None, mean, rstd, True, 1e-5, [True, True, True])
    reserve = [x.new_empty(0, dtype=torch.uint8)] if operation is aten.cudnn_batch_norm_backward else []
    actual = by_formula(operation, x, g, weight, None, None, mean, rstd, 1e-5, *reserve)
    assert_all_same(actual, expected)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_other_devices(causal):
    query, key, value = (numbers(2, 3, length, 8, seed=length) for length in (4, 5, 5))
    bias, g = numbers(2, 3, 4, 5).requires_grad_(), numbers(2, 3, 4, 8, seed=8)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    scores = query @ key.transpose(-1, -2) * 0.3 + bias
    if causal:
        scores = scores.masked_fill(torch.ones(4, 5, dtype=torch.bool).triu(1), -math.inf)
    expected = scores.softmax(-1) @ value
    gradients = torch.autograd.grad(expected, [*leaves, bias], g)
    with torch.no_grad():
        out, logsumexp, seed, offset = by_formula(
            aten._scaled_dot_product_efficient_attention, *leaves, bias, True, 0.0, causal, scale=0.3
        )
        actual = by_formula(
            aten._scaled_dot_product_efficient_attention_backward,
            g, *leaves, bias, out, logsumexp, seed, offset, 0.0, [True] * 4, causal, scale=0.3,
        )  # fmt: skip
    assert_all_same((out, logsumexp, actual), (expected, scores.logsumexp(-1), gradients), strides=False)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"batch_first": True}, {"bias": False}], ids=str)
def test_a_layer_of_lstm(options):
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 4, num_layers=2, **options)
    leaves = [numbers(5, 2, 3).float().requires_grad_(), *layer.parameters()]
    states = [numbers(8 if "bidirectional" in options else 4, 5 if "batch_first" in options else 2, 4).float()[::2]] * 2
    fused = Primitive()

    def everything(mode):
        with mode:
            output, (hidden, cell) = layer(leaves[0], tuple(states))
            return output, hidden, cell, torch.autograd.grad((output * output).sum() + cell.sum(), leaves)

    decomposed, expected = everything(fused), everything(nullcontext())
    assert {aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default} <= fused.taken_apart
    reached.update(fused.taken_apart)
    for one, other in zip(tensors(decomposed), tensors(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for x in tensors(everything(at_primitive())):
        torch.testing.assert_close(x.detach(), rounded(x.detach()), rtol=0, atol=0)


@pytest.mark.parametrize("biased", [True, False])
def test_the_lstm_cell_of_other_devices(biased):
    bias = [numbers(8, seed=3), numbers(8, seed=4)] if biased else []
    leaves = [x.requires_grad_() for x in (numbers(3, 8), numbers(3, 8, seed=1), numbers(3, 2, seed=2), *bias)]
    g, h = numbers(3, 2, seed=5), numbers(3, 2, seed=6)
    i, f, c, o = sum(x for number, x in enumerate(leaves) if number != 2).chunk(4, 1)
    cell = f.sigmoid() * leaves[2] + i.sigmoid() * c.tanh()
    expected = o.sigmoid() * cell.tanh(), cell
    gradients = torch.autograd.grad(expected, leaves, [g, h])
    with torch.no_grad():
        *actual, workspace = by_formula(aten._thnn_fused_lstm_cell, *leaves)
        derivative = aten._thnn_fused_lstm_cell_backward_impl
        gates, of_cell, of_bias = by_formula(derivative, g, h, leaves[2], cell, workspace, biased)
    assert_all_same(actual, expected, strides=False)
    assert_all_same([gates, gates, of_cell, *[of_bias] * len(bias)], gradients, strides=False)


def test_rms_norm_of_other_devices():
    x, weight, g = numbers(4, 3).requires_grad_(), numbers(3).requires_grad_(), numbers(4, 3, seed=1)
    expected = torch.nn.functional.rms_norm(x, (3,), weight, 1e-5)
    gradients = torch.autograd.grad(expected, [x, weight], g)
    with torch.no_grad():
        actual, rstd = by_formula(aten._fused_rms_norm, x, [3], weight, 1e-5)
        derived = by_formula(aten._fused_rms_norm_backward, g, x, [3], rstd, weight, [True, True])
    assert_all_same((actual, derived), (expected, gradients))


def assert_all_same(actual, expected, *, strides=True):
    for one, other in zip(tensors(actual), tensors(expected), strict=True):
        if strides:
            assert_same(one, other, "")
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


# The failures of low precision that the paper names, in its format.

HALF = "e5m10"


def rounded(x):
    return roundoff.round(torch.as_tensor(x, dtype=torch.float32), HALF)


def gradient(function, *inputs, mode):
    leaves = [rounded(x).requires_grad_() for x in inputs]
    with mode:
        value = function(*leaves)
        value.sum().backward()
    return value.detach(), *[leaf.grad for leaf in leaves]


def at_kernel():
    return roundoff.simulate(HALF)


def at_primitive():
    return roundoff.simulate(HALF, granularity="primitive")


LARGEST = math.log(65504)


def test_softplus_overflows_between_its_largest_exponential_and_its_threshold():
    x = torch.tensor([LARGEST - 0.1, LARGEST + 0.1, 15.0, 19.9, 20.1, 100.0])
    value, slope = gradient(torch.nn.functional.softplus, x, mode=at_primitive())
    assert slope.isnan().tolist() == [False, True, True, True, False, False]
    assert value.isinf().tolist() == [False, True, True, True, False, False]
    for mode, function in ((at_kernel(), torch.nn.functional.softplus), (at_primitive(), softplus)):
        value, slope = gradient(function, x, mode=mode)  # hidden in the kernel; repaired by softplus-fix
        assert torch.equal(value, rounded(x))
        assert slope.tolist() == [1.0] * 6


def log_prob(mean, sigma):
    sample = mean.detach() + sigma.detach()
    return torch.distributions.Normal(mean, sigma, validate_args=False).log_prob(sample)


def fixed_log_prob(mean, sigma):
    return normal_log_prob(mean.detach() + sigma.detach(), mean, sigma, sigma.log())


@pytest.mark.parametrize("granularity", [at_kernel, at_primitive])
def test_the_square_of_a_small_sigma_vanishes(granularity):
    mean, sigma = torch.zeros(2), torch.tensor([2.0**-12, 2.0**-13])
    # It does at either granularity: the formula is written in PyTorch's Python, operation by operation.
    value, _, slope = gradient(log_prob, mean, sigma, mode=granularity())
    assert value.isfinite().tolist() == [True, False]
    assert slope.isfinite().tolist()[1] is False
    value, slope_of_mean, slope = gradient(fixed_log_prob, mean, sigma, mode=granularity())
    assert value.isfinite().all()
    assert slope.isfinite().all()
    assert slope_of_mean.isfinite().all()


def test_a_tanh_that_rounds_to_one_has_no_logarithm_left():
    u = torch.tensor([1.0, 4.0, 5.0, 8.0])
    for granularity in (at_kernel, at_primitive):  # written operation by operation, it fails at either
        value, slope = gradient(lambda u: torch.log(1 - torch.tanh(u) ** 2), u, mode=granularity())
        assert value.tolist()[2:] == [-math.inf, -math.inf]
        assert value[:2].isfinite().all()
        assert slope.isfinite().tolist() == [True, True, False, False]

    def torch_form(u):
        return torch.distributions.transforms.TanhTransform().log_abs_det_jacobian(u, None)

    # PyTorch's remedy hides behind the softplus kernel, and fails where its exponential overflows.
    assert gradient(torch_form, -u, mode=at_kernel())[1].isfinite().all()
    assert gradient(torch_form, -u, mode=at_primitive())[1].isfinite().tolist() == [True, True, True, False]


@pytest.mark.parametrize("granularity", [at_kernel, at_primitive])
def test_the_squashed_normal_repairs_it(granularity):
    policy = SquashedNormal(
        log_sigma_min=-5.0, log_sigma_max=2.0, normal_fix=True, softplus_fix=True, softplus_threshold=10.0
    )
    mean = torch.tensor([1.0, 4.0, 8.0, -1.0, -5.0, -8.0])

    def log_prob(mean):
        raw = torch.full((6, 1), 0.5)
        return policy.sample_with_log_prob(torch.cat([mean.unsqueeze(1), raw], 1), torch.ones(6, 1))[1]

    value, slope = gradient(log_prob, mean, mode=granularity())
    assert value.isfinite().all()
    assert slope.isfinite().all()
    with torch.no_grad():
        torch.testing.assert_close(value, log_prob(mean), rtol=2e-2, atol=2e-2)


def layer_norm(x):
    return torch.nn.functional.layer_norm(x, (8,))


@pytest.mark.parametrize("normalise", [layer_norm, lambda x: torch.nn.functional.group_norm(x, 1)])
def test_the_variance_of_a_layer_norm_overflows(normalise):
    pattern = torch.tensor([[-1.5, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 1.5]])
    for size, vanishes in ((50.0, False), (300.0, True), (1000.0, True)):
        value, slope = gradient(lambda x: normalise(x) ** 3, pattern * size, mode=at_primitive())
        assert bool((value == 0).all()) == vanishes
        assert bool((slope == 0).all()) == vanishes
        value, slope = gradient(lambda x: normalise(x) ** 3, pattern * size, mode=at_kernel())  # hidden in the kernel
        assert bool((value != 0).all())
        assert bool((slope != 0).any())
        value, _ = gradient(lambda x: normalise(x / 1024), pattern * size, mode=at_primitive())
        torch.testing.assert_close(value, normalise(pattern), rtol=1e-2, atol=1e-3)


def step_of(optimizer, mode, **options):
    start = rounded(torch.tensor([1.0, -0.5, 0.25, 2.0]))
    param = torch.nn.Parameter(start.clone())
    with mode:
        chosen = optimizer([param], lr=1e-2, eps=1e-8, **options)
        for _ in range(2):
            param.grad = rounded(torch.tensor([1e-3, -1e-3, 0.0, 1.0]))
            chosen.step()
    return param.detach() - start


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_the_second_moment_of_adam_vanishes(options):
    step = step_of(torch.optim.Adam, at_primitive(), **options)
    assert step.isfinite().tolist() == [False, False, False, True]
    # Both for-loop and foreach keep v in memory between kernels, so that it vanishes at either granularity.
    hidden = "fused" in options
    assert step_of(torch.optim.Adam, at_kernel(), **options).isfinite().tolist() == [hidden, hidden, hidden, True]


@pytest.mark.parametrize("granularity", [at_kernel, at_primitive])
@pytest.mark.parametrize("kahan", [True, False])
def test_hadam_keeps_it(granularity, kahan):
    step = step_of(HAdam, granularity(), eps_floor=2.0**-24, kahan=kahan)
    torch.testing.assert_close(step, torch.tensor([-0.02, 0.02, 0.0, -0.02]), rtol=0.1, atol=0)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=str)
def test_the_fast_path_of_transformers_is_taken_apart(options):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64, **options).eval()
    x, mode = numbers(2, 5, 8), Primitive()
    with torch.no_grad():
        with mode:
            result = layer(x)
        assert_same(result, layer(x), options)
        with roundoff.simulate(FORMAT, granularity="primitive"):
            assert_of_format(layer(x))
    assert aten._transformer_encoder_layer_fwd.default in mode.taken_apart
    assert {aten.exp.default, aten.rsqrt.default, aten.bmm.default} <= mode.ran
    reached.update(mode.taken_apart)


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, foreach=False, weight_decay=0.1, amsgrad=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "adam-fused": lambda p: torch.optim.Adam(p, fused=True, weight_decay=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adagrad-fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, fused=True, lr=1e-2, momentum=0.9, nesterov=True),
    "sgd-foreach": lambda p: torch.optim.SGD(p, foreach=True, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "adadelta": torch.optim.Adadelta,
    "nadam-foreach": lambda p: torch.optim.NAdam(p, foreach=True),
    "radam-foreach": lambda p: torch.optim.RAdam(p, foreach=True),
}


def trained(name, mode):
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        # No bias before batch norm: its gradient is rounding noise, which the optimizers would blow up.
        torch.nn.Conv1d(2, 4, 3, padding=1, bias=False), torch.nn.BatchNorm1d(4), torch.nn.GELU(),
        torch.nn.AvgPool1d(2), torch.nn.Flatten(), torch.nn.Linear(12, 16), torch.nn.LayerNorm(16),
        torch.nn.Softplus(), torch.nn.Linear(16, 3),
    ).double()  # fmt: skip
    optimizer = OPTIMIZERS[name](net.parameters())
    with mode:
        for step in range(4):
            optimizer.zero_grad()
            target = torch.arange(8) % 3
            loss = torch.nn.functional.cross_entropy(net(numbers(8, 2, 6, seed=step)), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    return list(net.state_dict().values()), loss.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_in_steps_is_the_same_in_double_precision_and_of_the_format_under_one(name):
    assert_all_same(trained(name, Primitive()), trained(name, nullcontext()))
    values = [
        x
        for x in tensors(trained(name, roundoff.simulate(FORMAT, granularity="primitive")))
        if x.dtype == torch.float64
    ]
    for x in values:
        assert_of_format(x)


def test_every_step_of_an_addition_is_rounded():
    x, y = rounded(torch.tensor([1.0, 2049.0])), rounded(torch.tensor([1 / 3, 1.0]))
    with at_primitive():
        result = torch.add(x, y, alpha=0.1)
        folded = torch.nn.functional.conv1d(x.view(1, 1, 2), x[:1].view(1, 1, 1), y[:1])
    assert torch.equal(result, rounded(x + rounded(y * 0.1)))
    assert torch.equal(folded.view(2), rounded(x + y[0]))


def test_inference_mode_hides_nothing():
    with torch.inference_mode():
        x = rounded(torch.linspace(-300, 300, 8)).view(1, 8)
        with at_primitive():
            assert torch.equal(layer_norm(x), torch.zeros(1, 8))
        with (mode := Primitive()):
            layer_norm(x)
            torch.nn.functional.linear(x, x, x[:, 0])
    assert {aten.rsqrt.default, aten.mm.default} <= mode.ran
    assert not {aten.layer_norm.default, aten.linear.default, aten.addmm.default} & mode.ran


def test_results_share_no_memory_with_arguments():
    x = numbers(4, 3)
    for call in (
        lambda: torch.nn.functional.celu(x), lambda: aten.native_dropout(x, 0.0, True),
        lambda: torch.nn.functional.layer_norm(x, (3,)), lambda: torch.addmm(x, x, SQUARE, beta=0),
        lambda: torch.mean(x, ()), lambda: torch.linalg.vector_norm(x, dim=()), lambda: x[:1].var(0, correction=0),
    ):  # fmt: skip
        with Primitive():
            results = tensors(call())
        assert all(result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() for result in results)


def test_what_is_primitive():
    for operation in (aten.exp, aten.sigmoid, aten.leaky_relu, aten.mm, aten.threshold_backward, aten._foreach_sqrt):
        assert decomposition(operation.default) is None
    assert decomposition(aten.mul.Tensor) is None
    assert decomposition(aten.sum.IntList_out) is None
    assert decomposition(aten.gelu.default) is decomposition(aten.gelu.default)
    assert decomposition(aten.gelu.default) is not None


SLOW = {
    test_results_lie_in_memory_as_those_of_the_kernel_whatever_the_layout.__name__,
    test_agrees_with_the_kernel_in_more_samples.__name__,
}


def test_every_formula_was_compared(request):
    here = {item.originalname for item in request.session.items if item.path == request.node.path}
    if {name for name in globals() if name.startswith("test_")} - SLOW - here:
        pytest.skip("the other tests of this file, which note what they compared, did not all run")
    assert names(reached) >= set(map(str, _FORMULAS)) - ELSEWHERE
