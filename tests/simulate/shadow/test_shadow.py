"""The shadow run: its twins are what an honest float64 run computes, and its errors point to who made them."""

import gc
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff.formats import FormatError
from roundoff.simulate.aten.outputs import outputs
from roundoff.simulate.shadow.shadow import Shadow
from roundoff.simulate.shadow.widening import create_wide, outcomes, run_wide
from roundoff.simulate.watching.watcher import Call, Place

CLOSE = {"rtol": 1e-12, "atol": 1e-300}


class Shadowed(TorchDispatchMode):
    """Rounds every result and calls a shadow around it, as a simulation does, and nothing more."""

    def __init__(self, fmt, shadow=None):
        super().__init__()
        self.format = fmt
        self.shadow = shadow or Shadow()
        self.module = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        place, given = Place("forward", self.module, func.overloadpacket.__name__), (args, kwargs or {})
        call = Call(place, roundoff.Format.parse(self.format), func, *given, given)
        token = self.shadow.before(call)
        result = func(*args, **(kwargs or {}))
        how = outputs(func)
        values = list(result) if isinstance(result, (list, tuple)) else [result]
        viewing = how.viewing if len(how.viewing) == len(values) else (False,) * len(values)
        computed = [value for value, views in zip(values, viewing, strict=True) if not views] if how.results else []
        computed += [args[at] if at < len(args) else (kwargs or {}).get(name) for at, name in how.written]
        if how.lifts:
            computed = [result]
        for x in torch.utils._pytree.tree_leaves(computed):
            if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()):
                numbers = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
                rounded = roundoff.round(numbers.clone(), self.format)
                x.copy_(torch.view_as_complex(rounded) if x.is_complex() else rounded)
        self.shadow.after(call, token, result)
        return result


def normal(*shape, seed=0, dtype=torch.float32):
    """Normal numbers from outside: also inside a simulation they are not rounded."""
    with _disable_current_modes():
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def net(dtype):
    layers = [
        torch.nn.Conv1d(2, 4, 3, padding=1),
        torch.nn.BatchNorm1d(4),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.Linear(24, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Softplus(),
        torch.nn.Linear(16, 3),
    ]
    made = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for k, parameter in enumerate(made.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=k) * 0.3)
    return made.to(dtype)


def train(made, optimizer):
    dtype = next(made.parameters()).dtype
    for step in range(4):
        x = normal(8, 2, 6, seed=step, dtype=dtype)
        loss = torch.nn.functional.cross_entropy(made(x), torch.arange(8) % 3)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
    return loss.detach()


OPTIMIZERS = {
    "for-loop Adam": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "foreach Adam": lambda p: torch.optim.Adam(p, 0.01, foreach=True, amsgrad=True),
    "fused Adam": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "foreach AdamW": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.001, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twins_of_a_training_loop_are_an_honest_float64_run(name):
    simulated, honest = net(torch.float32), net(torch.float64)
    optimizer = OPTIMIZERS[name](simulated.parameters())
    with Shadowed("e5m10") as mode:
        loss = train(simulated, optimizer)
    honest_optimizer = OPTIMIZERS[name](honest.parameters())
    honest_loss = train(honest, honest_optimizer)
    twin = mode.shadow.twin
    torch.testing.assert_close(twin(loss), honest_loss, **CLOSE)
    changed = 0
    pairs = [*zip(simulated.parameters(), honest.parameters(), strict=True)]
    pairs += zip(simulated.buffers(), honest.buffers(), strict=True)
    for a, b in zip(optimizer.state.values(), honest_optimizer.state.values(), strict=True):
        pairs += [(a[key], b[key]) for key in a if isinstance(a[key], torch.Tensor)]
    for a, b in pairs:
        if a.is_floating_point():
            torch.testing.assert_close(twin(a), b.detach().double(), rtol=1e-9, atol=1e-14)
            changed += not torch.equal(a.double(), b.double())
    assert changed > 10  # rounding did take place
    report = mode.shadow.report()
    assert not report.unfollowed
    assert not report.unseen
    assert not report.float64_program


def test_cancellation_adds_nothing_and_amplifies_most():
    """x + 1e4 loses x's digits within half a unit of 1e4; the subtraction is exact, and shows what was lost."""
    x = normal(500)
    with Shadowed("e5m10") as mode:
        y = torch.tanh(x) * 0.5
        y = (y + 1e4) - 1e4
        y.exp()
    table = mode.shadow.report().table.set_index("operation")
    assert table.loc["sub", "added_max"] == 0
    assert table.loc["sub", "inherited_rms"] > 0.5
    assert table.loc["add", "added_rms"] < 2.0**-11
    amplified = mode.shadow.report().by_amplification()
    assert amplified["operation"][0] == "sub"
    assert amplified["amplified"][0] > 1000
    assert not amplified["operation"].eq("exp").any() or amplified.set_index("operation").loc["exp", "amplified"] < 1
    assert "sub" in str(mode.shadow.report())


def test_the_operation_that_adds_most_ranks_first():
    """Squares below half of the smallest subnormal, 2^-24, become zero: all of them is lost, and added there."""
    x = normal(500).clamp(-4, 4) * 2.0**-16
    with Shadowed("e5m10") as mode:
        y = torch.tanh(x)
        z = y * y
        z = z.sqrt()
    table = mode.shadow.report().table
    assert table["operation"][0] == "mul"
    assert table["added_rms"][0] > 0.9
    assert table.set_index("operation").loc["sqrt", "added_max"] == 0
    assert table.set_index("operation").loc["sqrt", "inherited_rms"] > 0.9
    torch.testing.assert_close(mode.shadow.twin(z), x.double().tanh().abs(), **CLOSE)


def test_errors_are_the_definitions():
    x = normal(100)
    with Shadowed("e5m10") as mode:
        y = x.exp()
        z = y * y
    row = mode.shadow.report().table.set_index("operation").loc["mul"]
    exact, twin = y.double() ** 2, x.double().exp() ** 2
    magnitude = torch.stack([z.double(), exact, twin]).amax(0)
    scale = magnitude.clamp(min=magnitude.max().item() / 1024)
    for column, error in (
        ("added", z.double() - exact),
        ("inherited", exact - twin),
        ("total", z.double() - twin),
    ):
        relative = error.abs() / scale
        assert row[f"{column}_max"] == pytest.approx(relative.max().item(), rel=1e-12)
        assert row[f"{column}_rms"] == pytest.approx(relative.square().mean().sqrt().item(), rel=1e-12)
    magnitude = torch.maximum(y.double(), x.double().exp())
    given = (y.double() - x.double().exp()) / magnitude.clamp(min=magnitude.max().item() / 1024)
    assert row["given_rms"] == pytest.approx(given.square().mean().sqrt().item(), rel=1e-12)
    assert (row["calls"], row["elements"]) == (1, 100)
    assert 2.0**-13 < row["added_max"] <= 2.0**-11


def test_what_is_given_is_the_worst_operand():
    with Shadowed("e5m10") as mode:
        y = normal(100).exp()
        normal(100) - y
        y / normal(100)
    table = mode.shadow.report().table.set_index("operation")
    assert table.loc["sub", "given_rms"] == table.loc["div", "given_rms"] == table.loc["exp", "total_rms"] > 0


def test_a_gradient_that_vanishes_by_mathematics_does_not_drown_the_rest():
    """A bias in front of batch normalisation has gradient zero, of which each float64 run computes another 1e-17."""
    x, bias = normal(8, 4), torch.zeros(4, requires_grad=True)
    with Shadowed("e5m10") as mode:
        normalised = torch.nn.functional.batch_norm(x + bias, None, None, training=True)
        (gradient,) = torch.autograd.grad(normalised.pow(3).sum(), bias)
    assert mode.shadow.twin(gradient).abs().max() < 1e-12 < gradient.abs().max()
    assert mode.shadow.report().table["total_max"].max() <= 2


def test_twins_below_all_formats_are_measured():
    x = torch.full((4,), 1e-40)
    with Shadowed("e5m10") as mode:
        y = x.pow(8) + 0.0
    assert torch.equal(mode.shadow.twin(y), x.double().pow(8))  # 1e-320
    table = mode.shadow.report().table
    assert 0 < table["added_max"].max() < 1e-15  # relative to 2^-1000, the smallest magnitude that counts
    x = torch.full((4,), 1e-30)
    with Shadowed("e5m10") as mode:
        x.pow(8) + 0.0
    table = mode.shadow.report().table.set_index("operation")
    assert table.loc["pow", "added_max"] == table.loc["add", "inherited_max"] == 1


def test_overflow_counts_where_it_happens_and_is_lost_after():
    with Shadowed("e5m10") as mode:
        y = torch.tensor([1.0, 300.0, float("inf")]) * torch.tensor([1.0, 300.0, 1.0])
        y.add(1)
    table = mode.shadow.report().table
    assert table["operation"][0] == "mul"
    table = table.set_index("operation")
    assert tuple(table.loc["mul", ["overflowed", "lost", "undefined", "elements"]]) == (1, 1, 1, 1)
    assert tuple(table.loc["add", ["overflowed", "lost", "undefined", "elements"]]) == (0, 1, 1, 1)
    assert torch.equal(mode.shadow.twin(y), torch.tensor([1, 9e4, float("inf")], dtype=torch.float64))


def test_values_from_outside_are_their_own_twins():
    shadow = Shadow()
    x = normal(5)
    assert torch.equal(shadow.twin(x), x.double())
    assert torch.equal(shadow.twin(torch.arange(3)), torch.arange(3))
    assert shadow.twin(x).dtype is torch.float64
    assert shadow.twin(normal(3, dtype=torch.complex64)).dtype is torch.complex128


def views_and_writes(x):
    y = x.sin()
    y[1:3] = y[2:4] * 3  # copy_ into a view
    y.t()[0].mul_(7)
    y[:, ::2] += 0.1
    z = y.view(-1)[3:].detach()
    z.data.div_(3)
    w = torch.empty(0, dtype=x.dtype)
    torch.add(y, z[0], out=w)
    torch.mul(w, w, out=w)
    parts = w.split(2)
    torch._foreach_mul_(list(parts), 0.3)
    s = torch.stack(torch._foreach_exp(list(parts[:2])))
    w.index_put_((torch.tensor([0]),), s[0, 0])
    u = torch.full((4,), 0.1, dtype=x.dtype)
    u.unsqueeze(0).expand(4, 4).clone().addmm_(w, w)
    v = torch.where(w > 0, w, u).reshape(2, 8).flip(0)
    v.zero_().add_(w.view(2, 8), alpha=0.7)
    return y, z, w, s, u, v, torch.linspace(0, 1, 7, dtype=x.dtype) / 3, w.cumsum(0).softmax(1), w.max(dim=1)[0]


def autograd(x):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * gradient

    x = x.clone().requires_grad_()

    def block(x):
        return torch.nn.functional.gelu(Cube.apply(x) @ x) * 0.1

    y = checkpoint(block, x, use_reentrant=False) + checkpoint(block, x.detach().requires_grad_(), use_reentrant=True)
    (gradient,) = torch.autograd.grad(y.logsumexp(0).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    return y.detach(), gradient.detach(), second


def transforms(x):
    def loss(x):
        return torch.tanh(x @ x).square().sum()

    return torch.func.grad(loss)(x), torch.func.vmap(torch.linalg.vector_norm)(x), torch.func.jvp(loss, (x,), (x,))[1]


def attention(x):
    q = x.view(1, 1, 4, 4).expand(1, 2, 4, 4).contiguous()
    y = torch.nn.functional.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)
    return y, torch.nn.functional.layer_norm(y, (4,)), torch.nn.functional.group_norm(y, 2)


def complex_numbers(x):
    z = torch.fft.rfft(x)
    w = z.conj() * z
    imaginary = z.conj().imag  # a negated view
    z.mul_(1j)
    z.conj().add_(0.3)
    return z, w.real, imaginary * 3, torch.fft.irfft(z)


def solving(x):
    a = x @ x.t() + torch.eye(4, dtype=x.dtype)
    return torch.linalg.solve(a, x), torch.linalg.cholesky(a), torch.linalg.inv(a), a.logdet()


def integers(x):
    n = torch.arange(1, 5)
    return n / 3, n.sqrt(), torch.sigmoid(n), x[n - 1] * n, (x > 0).to(x.dtype) / 7, n.to(x.dtype) / 3


def inference(x):
    with torch.inference_mode():
        y = torch.nn.functional.linear(x, x).relu()
    return (y * 3,)


@pytest.mark.parametrize(
    "program",
    [views_and_writes, autograd, transforms, attention, complex_numbers, solving, integers, inference],
)
def test_twins_are_what_float64_computes(program):
    x = normal(4, 4)
    with Shadowed("e5m10") as mode:
        results = program(x)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        honest = program(x.double())
    finally:
        torch.set_default_dtype(default)
    assert any(not torch.equal(a.to(b.dtype), b) for a, b in zip(results, honest, strict=True))
    for a, b in zip(results, honest, strict=True):
        torch.testing.assert_close(mode.shadow.twin(a), b.detach(), rtol=1e-12, atol=1e-15)
    assert not mode.shadow.report().unfollowed
    assert not mode.shadow.report().unseen


def test_dropout_keeps_the_mask_that_was_drawn():
    x = normal(1000)
    with Shadowed("e5m10") as mode:
        y = x.exp()
        native, mask = torch.native_dropout(y, 0.25, train=True)
        z = torch.nn.functional.dropout(y, 0.25)
    twin = x.double().exp()
    torch.testing.assert_close(mode.shadow.twin(native), twin * mask / 0.75, **CLOSE)
    torch.testing.assert_close(mode.shadow.twin(z), twin * (z != 0) / 0.75, rtol=2.0**-11, atol=0)  # 1/0.75 was drawn
    assert "bernoulli_" in " ".join(mode.shadow.report().unfollowed)


def test_random_numbers_are_what_was_drawn():
    with Shadowed("e5m10") as mode:
        x = torch.randn(100)
        x.exp_()
        x.normal_()
    assert torch.equal(mode.shadow.twin(x), x.double())
    assert "random" in mode.shadow.report().unfollowed["aten::randn"]
    assert mode.shadow.report().table.set_index("operation").loc["randn", "added_max"] == 0


def test_an_operation_that_fails_in_float64_is_named_and_starts_again():
    with torch.library._scoped_library("roundoff_test_shadow", "FRAGMENT") as library:
        library.define("single(Tensor x) -> Tensor")
        library.define("single_(Tensor(a!) x) -> ()")

        def single(x):
            assert x.dtype is torch.float32, "only single precision"
            return x * 3

        library.impl("single", single, "CPU")
        library.impl("single_", lambda x: (x.copy_(single(x)), None)[1], "CPU")
        with Shadowed("e5m10") as mode:
            x = normal(10).exp()
            y = torch.ops.roundoff_test_shadow.single(x)
            torch.ops.roundoff_test_shadow.single_(x)
    for result in (x, y):
        assert torch.equal(mode.shadow.twin(result), result.double())
    unfollowed = mode.shadow.report().unfollowed
    assert "only single precision" in unfollowed["roundoff_test_shadow::single"]
    assert "only single precision" in unfollowed["roundoff_test_shadow::single_"]
    assert "only single precision" in str(mode.shadow.report())


def test_changes_from_outside_start_the_twin_again():
    with Shadowed("e5m10") as mode:
        x = normal(10).exp()
        before = mode.shadow.twin(x)
    x[3] = 5.0
    x.numpy()[7] = 6.0
    twin = mode.shadow.twin(x)
    assert (twin[3], twin[7]) == (5, 6)
    assert mode.shadow.report().unseen == 2
    rest = [k for k in range(10) if k not in (3, 7)]
    assert torch.equal(twin[rest], before[rest])
    assert not torch.equal(twin[rest], x[rest].double())


def test_a_float64_program_is_told_so():
    with Shadowed("e8m20") as mode:
        y = normal(10, dtype=torch.float64).exp()
    assert torch.equal(mode.shadow.twin(y), normal(10).double().exp())
    report = mode.shadow.report()
    assert report.float64_program
    assert "no more bits" in str(report)
    assert 0 < report.table["added_max"][0] < 2.0**-21


def test_memory_does_not_grow():
    made = net(torch.float32)
    optimizer = torch.optim.Adam(made.parameters())
    with Shadowed("e5m10") as mode:
        train(made, optimizer)
        gc.collect()
        mode.shadow._twins.clear_away()
        alive = len(mode.shadow._twins)
        most = 0
        for _ in range(10):
            train(made, optimizer)
            most = max(most, len(mode.shadow._twins))
        mode.shadow._twins.clear_away()
    assert 0 < len(mode.shadow._twins) <= alive
    assert most < alive + 400  # without clearing away, several thousand
    del made, optimizer
    gc.collect()
    mode.shadow._twins.clear_away()
    assert len(mode.shadow._twins) == 0


def test_large_twins_are_cleared_away_sooner():
    with Shadowed("e5m10") as mode:
        x = normal(1 << 18)
        for _ in range(100):
            x.exp()
            assert len(mode.shadow._twins) < 20


def test_a_freed_address_hands_nothing_on():
    """The allocator gives the memory of a dead tensor to the next of its size."""
    with Shadowed("e5m10") as mode:
        for _ in range(50):
            normal(4).exp().mul_(3)
            with _disable_current_modes():
                unseen = torch.ones(4)
            assert torch.equal(mode.shadow.twin(unseen), torch.ones(4, dtype=torch.float64))


def test_resized_memory_keeps_its_twins():
    with Shadowed("e5m10") as mode:
        x = normal(4).exp()
        x.resize_(8)
        x[4:] = 1
    twin = mode.shadow.twin(x)
    torch.testing.assert_close(twin[:4], normal(4).double().exp(), **CLOSE)
    assert twin[4:].eq(1).all()


def test_bits_written_as_integers_are_seen():
    with Shadowed("e5m10") as mode:
        x = normal(4).exp()
        x.view(torch.int32)[0] = 0
    assert mode.shadow.twin(x)[0] == 0
    assert mode.shadow.twin(x)[1] == normal(4).double().exp()[1]


def test_one_shadow_follows_several_threads():
    shadow = Shadow()
    failures = []

    def work(seed):
        x = normal(50, seed=seed)
        with Shadowed("e5m10", shadow):
            y = x
            for _ in range(30):
                y = torch.tanh(y * 1.1)
        honest = x.double()
        for _ in range(30):
            honest = torch.tanh(honest * 1.1)
        if not torch.allclose(shadow.twin(y), honest, rtol=1e-12):
            failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    # PyTorch's flags for modes are the process's. Modes of several threads leave them set unless one is around them.
    with Shadowed("e5m10", shadow):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert shadow.report().table.set_index("operation").loc["tanh", "calls"] == 120


def test_places_are_kept_apart():
    with Shadowed("e5m10") as mode:
        normal(3).exp()
        mode.module = "Net.layer"
        normal(3).exp()
    table = mode.shadow.report().table
    assert set(table[table["operation"] == "exp"]["module"]) == {"", "Net.layer"}


def test_other_precisions_are_refused():
    with pytest.raises(FormatError, match="float64"):
        Shadow(torch.float32)


def test_an_empty_report_can_be_read():
    assert "0 operations" in str(Shadow().report())


def test_an_operation_in_float64_leaves_the_twins_of_its_operands_alone():
    x, twin = normal(4), normal(4, dtype=torch.float64)
    (found,) = run_wide(torch.ops.aten.mul_.Tensor, (x, 2.0), {}, lambda _: twin)
    assert torch.equal(found, 2 * twin)
    assert torch.equal(twin, normal(4, dtype=torch.float64))


def test_what_is_float64_beside_floats():
    whole, pair = torch.tensor([1, 2]), torch.tensor([1 + 2j, 3j], dtype=torch.complex64)
    aten = torch.ops.aten
    (quotient,) = run_wide(aten.div.Tensor, (whole, torch.tensor([3, 7])), {}, lambda x: x)
    assert torch.equal(quotient, torch.tensor([1 / 3, 2 / 7], dtype=torch.float64))
    (total,) = run_wide(aten.add.out, (pair, pair), {"out": pair.clone()}, lambda x: x.to(torch.complex128))
    assert total.dtype == torch.complex128
    (made,) = create_wide(aten.full.default, ([2], 0.1), {"dtype": torch.complex64}, torch.full((2,), 0.1) + 0j)
    assert torch.equal(made, torch.full((2,), 0.1, dtype=torch.complex128))


def test_of_what_an_operation_returns_views_are_not_its_outcomes():
    x, tangent = normal(2), normal(2, seed=1)
    assert outcomes(torch.ops.aten._unpack_dual.default, (x, 0), {}, (x, tangent)) == [tangent]
