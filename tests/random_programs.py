"""Random programs of tensors: operations whose bits may depend on how their operands lie in memory.

A program is a seed. It draws operations on a pool of tensors, which begins with the program's arguments; intermediate
results are transposed, expanded, sliced, written to in part, and then given to functions, sums, products and losses.
"""

from random import Random

import torch
from torch.nn import functional as F

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 48, 64)
LARGEST = 6000
"""Numbers in a tensor of a program, at most."""


def positive(x):
    return x.abs() + 0.125


FUNCTIONS = (
    torch.exp, torch.sigmoid, torch.tanh, torch.expm1, torch.sin, torch.cos, torch.erf, torch.atan, torch.sinh,
    torch.asinh, torch.exp2, torch.reciprocal, torch.square, torch.abs, torch.neg, torch.floor, torch.sign, torch.frac,
    torch.relu, F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.softplus, F.softsign, F.leaky_relu, F.hardtanh,
    F.hardswish, F.hardsigmoid, F.logsigmoid, F.tanhshrink, F.softshrink, F.relu6, torch.cosh, torch.round, torch.trunc,
    lambda x: F.gelu(x, approximate="tanh"), lambda x: positive(x).log(), lambda x: positive(x).log1p(),
    lambda x: positive(x).rsqrt(), lambda x: positive(x).sqrt(), lambda x: positive(x).log2(),
    lambda x: positive(x) ** 0.3, lambda x: x**3, lambda x: x**2, lambda x: x**-1, lambda x: x * 1.1, lambda x: x / 3,
    lambda x: x + 0.3, lambda x: 0.7 - x, lambda x: 2 / x, lambda x: x.clamp(-0.5, 1.5), lambda x: x.lgamma(),
    lambda x: x.remainder(0.7), lambda x: x.fmod(0.7), lambda x: x.nan_to_num(0.0), lambda x: 2.0**x,
    lambda x: x.clone(), lambda x: x.contiguous(), lambda x: positive(x).log10(), lambda x: torch.logit(x.sigmoid()),
    lambda x: F.threshold(x, 0.1, 0.3), lambda x: x.digamma(), lambda x: x.sinc(), lambda x: x.erfinv(),
)  # fmt: skip
"""Functions of one tensor, number by number."""

PAIRS = (
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.hypot, torch.atan2, torch.logaddexp,
    lambda x, y: torch.add(x, y, alpha=0.3), lambda x, y: torch.sub(x, y, alpha=0.3), lambda x, y: positive(x) ** y,
    lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.addcmul(x, y, x, value=0.3),
    lambda x, y: torch.addcdiv(x, y, positive(x), value=0.3), lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, y: x.remainder(positive(y)), lambda x, y: x.fmod(positive(y)), lambda x, y: x.copysign(y),
    lambda x, y: torch.xlogy(x, positive(y)), lambda x, y: torch.lerp(x, y, x), torch.fmax, torch.logaddexp2,
    lambda x, y: x.masked_fill(y > 0.5, 0.25), lambda x, y: (x - y).square(),
)  # fmt: skip
"""Functions of two tensors that broadcast."""

LOSSES = (
    F.binary_cross_entropy_with_logits, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss,
    lambda x, y, reduction: F.binary_cross_entropy(x.sigmoid(), y, reduction=reduction),
    lambda x, y, reduction: F.binary_cross_entropy_with_logits(x, y, pos_weight=positive(x[..., :1].detach()),
                                                               reduction=reduction),
    lambda x, y, reduction: F.poisson_nll_loss(x, y, reduction=reduction),
    lambda x, y, reduction: F.kl_div(x, y, reduction=reduction),
    lambda x, y, reduction: F.multilabel_soft_margin_loss(x, y, reduction="mean" if reduction == "sum" else reduction),
)  # fmt: skip
"""Losses of two tensors of the same shape, of which the second lies between 0 and 1."""

WHOLE = (
    torch.sum, torch.mean, torch.var, torch.std, torch.norm, torch.amax, torch.amin, torch.prod, torch.nansum,
    lambda x: x.norm(p=1), lambda x: x.abs().max(), lambda x: x.logsumexp(tuple(range(x.dim()))),
    lambda x: torch.linalg.vector_norm(x, 3), lambda x: x.flatten().median(), lambda x: x.argmax().float(),
)  # fmt: skip
"""Reductions of all of a tensor."""

ALONG = (
    torch.sum, torch.mean, torch.var, torch.std, torch.logsumexp, torch.amax, torch.amin, torch.prod, torch.nansum,
    torch.softmax, torch.log_softmax, torch.cumsum, torch.logcumsumexp, F.normalize, F.glu,
    lambda x, d: x.norm(dim=d), lambda x, d: x.sum(d, keepdim=True), lambda x, d: x.max(d)[0], torch.cumprod,
    lambda x, d: x.sort(d)[0], lambda x, d: x.argmin(d).float(), lambda x, d: torch.linalg.vector_norm(x, 1, d),
    lambda x, d: x - x.mean(d, keepdim=True), lambda x, d: x.topk(1, d)[0], lambda x, d: x.cummax(d)[0],
    lambda x, d: F.cosine_similarity(x, x + 1, d), lambda x, d: x.median(d)[0], F.softmin,
)  # fmt: skip
"""Reductions, and what reduces on the way, along one axis."""


def transposed(x, r):
    a, b = r.randrange(x.dim()), r.randrange(x.dim())
    return x.transpose(a, b)


def permuted(x, r):
    return x.permute(r.sample(range(x.dim()), x.dim()))


def sliced(x, r):
    d = r.randrange(x.dim())
    start, step = r.randrange(min(3, x.shape[d])), r.choice((1, 1, 2, 3))
    return x[(slice(None),) * d + (slice(start, None, step),)]


def expanded(x, r):
    d = r.randrange(x.dim() + 1)
    if x.dim() > 3 or x.numel() * 3 > LARGEST:
        return x
    return x.unsqueeze(d).expand(*x.shape[:d], r.choice((2, 3)), *x.shape[d:])


def selected(x, r):
    d = r.randrange(x.dim())
    return x.select(d, r.randrange(x.shape[d]))


def flattened(x, r):
    d = r.randrange(x.dim())
    return x.flatten(d)


def diagonal(x, r):
    return x.diagonal(dim1=0, dim2=1) if x.dim() > 1 else x


def windows(x, r):
    d = r.randrange(x.dim())
    size = r.randint(1, min(3, x.shape[d]))
    return x.unfold(d, size, 1) if x.dim() < 4 and x.numel() * size < LARGEST else x


def flipped(x, r):
    return x.flip(r.randrange(x.dim()))


def halves(x, r):
    return x.chunk(2, r.randrange(x.dim()))[-1]


VIEWS = (transposed, transposed, permuted, sliced, sliced, expanded, selected, flattened, diagonal, windows, flipped,
         halves)  # fmt: skip


def written(x, r):
    """A copy that is written to in part, in place."""
    y = x.clone(memory_format=torch.preserve_format) * 1.0
    part = r.choice((transposed, sliced, selected, permuted))(y, r)
    change = r.choice((
        lambda v: v.mul_(1.1), lambda v: v.exp_(), lambda v: v.add_(v.mean()), lambda v: v.sigmoid_(),
        lambda v: v.copy_(v.detach().tanh()), lambda v: v.clamp_(min=0.1), lambda v: v.zero_(), lambda v: v.neg_(),
        lambda v: v.sub_(0.3, alpha=2), lambda v: v.addcmul_(v.detach(), v.detach(), value=0.3),
    ))  # fmt: skip
    change(part)
    return y


def joined(x, r):
    d = r.randrange(x.dim())
    return r.choice((torch.cat, torch.stack))([x, x * 0.5], d) if x.dim() < 4 and x.numel() * 2 < LARGEST else x


def gathered(x, r):
    d = r.randrange(x.dim())
    index = torch.tensor([r.randrange(x.shape[d]) for _ in range(4)])
    return r.choice((
        lambda: x.index_select(d, index), lambda: x.roll(1, d), lambda: x.index_add(d, index, x.index_select(d, index)),
        lambda: x.tril() if x.dim() > 1 else x, lambda: x.repeat_interleave(2, d)[..., :3],
        lambda: F.pad(x, (1, 2)), lambda: x.index_fill(d, index[:1], 0.3),
    ))()  # fmt: skip


def layer(x, r):
    """A normalisation over the last axis or so."""
    n = x.shape[-1]
    weight = torch.linspace(0.5, 1.5, n)
    return r.choice((
        lambda: F.layer_norm(x, (n,), weight, weight), lambda: F.rms_norm(x, (n,), weight),
        lambda: F.batch_norm(x, None, None, training=True) if x.dim() in (2, 3) and x.shape[0] > 1 else x,
        lambda: F.group_norm(x, 1) if x.dim() > 1 and x.numel() > x.shape[0] else x,
        lambda: F.avg_pool1d(x, 2) if x.dim() == 3 and n > 1 else x,
        lambda: F.adaptive_avg_pool1d(x, 1) if x.dim() == 3 else x,
        lambda: F.max_pool1d(x, 2) if x.dim() == 3 and n > 1 else x,
        lambda: F.interpolate(x, scale_factor=2.0, mode="linear") if x.dim() == 3 and x.numel() * 2 < LARGEST else x,
    ))()  # fmt: skip


def product(x, r):
    """A product of matrices."""
    n = x.shape[-1]
    if x.dim() == 1:
        return r.choice((lambda: x @ x.cos(), lambda: torch.outer(x, x.cos())[:5]))()
    return r.choice((
        lambda: x @ x.cos().transpose(-1, -2), lambda: x.transpose(-1, -2) @ x,
        lambda: F.linear(x, torch.linspace(-1, 1, 3 * n).view(3, n), torch.ones(3)), lambda: x @ x[..., 0, :],
        lambda: torch.einsum("...ij,...kj->...ik", x, x * 0.5)[..., :3],
        lambda: F.conv1d(x, torch.linspace(-1, 1, 2 * x.shape[1]).view(2, x.shape[1], 1)) if x.dim() == 3 else x,
        lambda: torch.addmm(x[:1], x, torch.linspace(-1, 1, n * n).view(n, n).t()) if x.dim() == 2 else x,
        lambda: torch.baddbmm(x, x, torch.eye(n).expand(len(x), n, n), beta=0.5) if x.dim() == 3 else x,
    ))()  # fmt: skip


KINDS = {
    "function": 5, "pair": 6, "view": 8, "along": 4, "whole": 1, "loss": 2, "written": 1, "joined": 1, "gathered": 1,
    "layer": 1, "product": 2,
}  # fmt: skip
"""Kinds of operations, and how often each is drawn."""


class Program:
    """A random program.

    Args:
        seed: of what it does.
        calls: how many operations it draws.

    Attributes:
        given: its arguments.
        differentiates: whether it computes gradients with respect to them.
    """

    def __init__(self, seed, calls=9):
        self.seed, self.calls = seed, calls
        r = Random(seed)
        generator = torch.Generator().manual_seed(seed)
        dims = r.choice((1, 2, 2, 2, 3, 3, 4))
        shape = [r.choice(SIZES[: 16 - 4 * (dims - 1)] if dims > 2 else SIZES) for _ in range(dims)]
        self.given = [self._argument(r, shape, generator) for _ in range(3)]
        self.differentiates = r.random() < 0.5

    def _argument(self, r, shape, generator):
        """Numbers that lie one behind another, in another order, or with gaps."""
        kind = r.choice(("plain", "plain", "permuted", "gaps", "row"))
        if kind == "row":
            return torch.randn([1] * (len(shape) - 1) + shape[-1:], generator=generator)
        order = r.sample(range(len(shape)), len(shape)) if kind != "plain" else list(range(len(shape)))
        laid = [shape[i] for i in order]
        if kind == "gaps":
            laid[-1] *= 2
        x = torch.randn(laid, generator=generator)
        x = x[..., ::2] if kind == "gaps" else x
        return x.permute([order.index(i) for i in range(len(shape))])

    def __call__(self, tensors):
        """The last results, and gradients of their sum."""
        r = Random(self.seed)
        leaves = [x.detach().requires_grad_(self.differentiates) for x in tensors]
        pool = list(leaves)
        for _ in range(self.calls):
            y = self._call(r, pool)
            if y is not None and 0 < y.numel() <= LARGEST:
                pool.append(y)
        results = pool[-3:]
        results.append(torch.stack([x.sum() for x in pool[3:] if x.numel() > 1] or [pool[-1].sum()]).sum())
        gradients = ()
        if self.differentiates and results[-1].requires_grad:
            gradients = torch.autograd.grad(results[-1], leaves, allow_unused=True)
        return [x.detach() for x in results] + [x for x in gradients if x is not None]

    def _call(self, r, pool):
        """The result of one operation on some of the pool; None if what was drawn cannot be applied."""
        (kind,) = r.choices(list(KINDS), list(KINDS.values()))
        x, r = r.choice(pool[-4:]), Random(r.random())  # most of what was computed is computed with
        if kind == "pair":
            return r.choice(PAIRS)(x, r.choice([y for y in pool if _broadcast(x, y)]))
        apply = OF_NUMBERS.get(kind) or (OF_AXES[kind] if x.dim() else None)
        return apply and apply(x, r)


def loss(x, r):
    target = torch.sigmoid(x.detach().flip(0))
    return r.choice(LOSSES)(x, target, reduction=r.choice(("none", "mean", "sum")))


def along(x, r):
    d = r.randrange(x.dim())
    return r.choice(ALONG)(x, d) if x.shape[d] > 1 and x.shape[d] % 2 == 0 else None


OF_NUMBERS = {
    "function": lambda x, r: r.choice(FUNCTIONS)(x),
    "whole": lambda x, r: r.choice(WHOLE)(x) if x.numel() > 1 else None,
}
OF_AXES = {
    "view": lambda x, r: r.choice(VIEWS)(x, r), "along": along, "loss": loss, "written": written, "joined": joined,
    "gathered": gathered, "layer": layer, "product": product,
}  # fmt: skip


def _broadcast(x, y):
    sizes = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in sizes)
