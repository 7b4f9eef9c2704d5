"""Compiled steps where callers do unusual things: what is accepted has the bits of the eager simulation."""

import errno
import subprocess
import threading

import pytest
import torch
from torch import manual_seed
from torch._inductor.exc import CppCompileError, InductorError
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff import CompileWarning, FormatError, simulate
from roundoff.simulate.compiling import step as compiled_module
from roundoff.simulate.compiling.graphs import tracing as graphs
from roundoff.simulate.compiling.graphs import written_operations


def line(n=6):
    return torch.linspace(-1, 1.3, n)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_arguments_and_results_of_all_kinds():
    def step(empty, scalar, expanded, strided, integers, special):
        scalar.mul_(1.1)
        strided[1:].add_(expanded[0, 0])
        results = [empty * 1.1, empty.sum(), expanded * 1.1, integers * 2, special / 3, special.clamp(-1, 1), strided]
        return {"new": results, "views": (strided[1:], strided.t()), "one": scalar, "none": ()}

    def arguments():
        special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
        expanded, strided = line(4).view(4, 1).expand(4, 3), line(12)[::2].view(2, 3).t()
        return torch.zeros(0, 3), torch.tensor(0.3), expanded, strided, torch.arange(4), special

    eager, program = simulate("e5m4"), roundoff.compile(step, simulate("e5m4"))
    mine, theirs = arguments(), arguments()
    for _ in range(2):
        found = program(*mine)
        with eager:
            expected = step(*theirs)
        assert_same((found, mine), (expected, theirs))
    assert found["one"] is mine[1]
    mine[3].zero_()
    assert not any(view.any() for view in found["views"])
    # Gradients of arguments are no inputs, and autocast is another program.
    x = line().requires_grad_()
    x.grad = line()
    with pytest.raises(FormatError, match="uses a tensor"):
        roundoff.compile(lambda x: torch.nn.utils.clip_grad_norm_([x], 1.0), None)(x)
    program = roundoff.compile(lambda x: torch.mm(x, x), simulate("e5m4"))
    program(line(9).view(3, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(FormatError, match=r"leave out .*autocast"):
        program(line(9).view(3, 3))
    # So is another kernel of attention.
    q = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(0))
    program = roundoff.compile(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), simulate("e5m4"))
    program(q)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with eager:
            expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        assert_same(program(q), expected)


class Scale:
    factor = other = 1.0

    def __mul__(self, x):
        return x * self.other

    @classmethod
    def of(cls, x):
        return x * cls.factor


def test_numbers_that_are_equal_but_not_the_same():
    program = roundoff.compile(lambda x, factor: x * factor, None)
    assert [program(torch.ones(1), factor).signbit().item() for factor in (0.0, -0.0)] == [False, True]
    # An object is the same one, and its attributes are not.
    program, found = roundoff.compile(lambda x, holder: x * holder.factor, None), []
    holder = Scale()
    for holder.factor in (2.0, 3.0):
        found.append(program(torch.ones(1), holder).item())
    assert found == [2, 3]
    # So are attributes of classes, which objects have without a dict of their own.
    program, found = roundoff.compile(lambda x: holder * Scale().of(x), None), []
    for Scale.factor, Scale.other in ((2.0, 3.0), (2.0, 4.0), (5.0, 4.0)):
        found.append(program(torch.ones(1)).item())
    assert found == [6, 8, 20]


def gives_other_memory(x):
    x.data = x * 2


def draws_elsewhere(x):
    with simulate("e5m4", rounding="stochastic"):
        return x * 2


@pytest.mark.parametrize(
    ("step", "make", "message"),
    [
        (lambda x: x.resize_(2), line, "another shape or other memory"),
        (lambda x: x.unsqueeze_(0), line, "another shape or other memory"),
        (gives_other_memory, line, "another shape or other memory"),
        (lambda x: x.mul_(2), lambda: line(1).expand(3), "tensor 0 .* is expanded"),
        (lambda x: x * 2, lambda: torch.tensor([1 + 2j]).conj().imag, "resolve_neg"),
        (lambda x: x.sigmoid().bernoulli() + torch.rand(6), line, "random numbers 2 times.*bernoulli"),
        (draws_elsewhere, line, "same in every call"),
        (lambda x: x * 2, lambda: line().bfloat16(), r"leave out .half\(\)"),
        (lambda x: x * 2, lambda: line().to_sparse(), "must be dense"),
        (lambda x: [x, None], line, "got NoneType"),
    ],
)
def test_what_is_refused(step, make, message):
    program = roundoff.compile(step, simulate("e5m4"))
    if message == "resolve_neg":
        program(torch.tensor([1 + 2j]).imag)  # a program for the same layout is there
    with pytest.raises(FormatError, match=message):
        program(make())


def test_a_layer_that_renews_its_references_to_weights(uncompiled):
    def train(make):
        torch.manual_seed(0)
        layer = torch.nn.GRU(3, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            layer(x)[0].square().mean().backward()
            optimizer.step()

        references = list(layer._flat_weight_refs)
        program = make(step)
        for _ in range(3):
            program(line(12).view(2, 2, 3))
        assert layer._flat_weight_refs == references
        return [x.detach() for x in layer.parameters()]

    assert_same(
        train(lambda step: roundoff.compile(step, simulate("e5m4"))),
        train(simulate("e5m4")),
    )


def test_errors_of_the_step_itself_are_its_own():
    with pytest.raises(ZeroDivisionError):
        roundoff.compile(lambda x: x / (1 // 0), simulate("e5m4"))(line())


def test_a_step_in_forward_mode_that_cannot_be_traced_leaves_autograd_at_work():
    network = torch.nn.Linear(6, 2)
    jacobian = torch.autograd.functional.jacobian
    with pytest.raises(FormatError, match="cannot be traced"):
        roundoff.compile(lambda x: jacobian(network, x, vectorize=True, strategy="forward-mode"), simulate("e5m4"))(
            line()
        )
    assert network(line()).requires_grad


def test_arguments_that_share_memory_in_a_later_call(uncompiled):
    program = roundoff.compile(lambda x, y: x.add_(y), simulate("e5m4"))
    x, y = line(), line()
    program(x, y)
    with pytest.raises(FormatError, match="tensors 0 and 1 of the arguments"):
        program(x, x)
    assert_same(y, line())
    # One tensor in two places has one gradient.
    program = roundoff.compile(lambda x, y: torch.autograd.grad((x * y).sum(), x), None)
    x.requires_grad_()
    assert_same((program(x, line()), program(x, x)), ((line(),), (2 * x,)))
    assert_same(program(x, line().requires_grad_()), (line(),))
    with pytest.raises(FormatError, match="one is a view of the other"):
        program(x, x.view(6))
    # Windows share elements, and no axis is expanded.
    with pytest.raises(FormatError, match=r"tensor 0 .* several of its elements are one number"):
        roundoff.compile(lambda x: x.add_(1), None)(line().unfold(0, 2, 1))
    assert_same(roundoff.compile(lambda x: x.add_(1), None)(line().unfold(0, 2, 2)), line().view(3, 2) + 1)


def test_random_numbers_of_the_program_itself(uncompiled):
    def noisy(x):
        return torch.nn.functional.dropout(x * torch.rand(6), 0.5) + torch.randn(6)

    x, eager, program = line(), simulate("e5m4"), roundoff.compile(noisy, simulate("e5m4"))
    torch.manual_seed(3)
    with eager:
        expected = [noisy(x), noisy(x)]
    torch.manual_seed(3)
    assert_same([program(x), program(x)], expected)


def seeded(x):
    torch.manual_seed(3)
    return x * torch.rand(6)


def seeded_by_a_name_of_its_own(x):
    manual_seed(torch.initial_seed())
    return x * torch.rand(6)


def seeded_itself(x):
    torch.default_generator.manual_seed(torch.initial_seed() + 1)
    return x * torch.rand(6)


def forked(x):
    with torch.random.fork_rng():
        noise = torch.rand(6)
    return x * noise + torch.rand(6)


def computed_again(x):
    """The backward pass computes the dropout again, from the state in which the generator was."""
    leaf = x.detach().requires_grad_()
    y = checkpoint(lambda h: torch.nn.functional.dropout(h.tanh(), 0.5), leaf, use_reentrant=False)
    return torch.autograd.grad(y.square().sum(), leaf)


def seeded_for_others(x):
    torch.manual_seed(3)
    return x * 1.1


@pytest.mark.parametrize(
    ("step", "told"),
    [
        *((step, "sets the seed") for step in (seeded, seeded_by_a_name_of_its_own, seeded_itself, seeded_for_others)),
        *((step, "draws random numbers and sets the state") for step in (forked, computed_again)),
    ],
)
def test_a_step_that_sets_the_state_of_the_generator_is_refused(step, told, uncompiled):
    with pytest.raises(FormatError, match=f"the step {told} of PyTorch's generator"):
        roundoff.compile(step, simulate("e5m4"))(line())
    assert torch.random.default_generator is torch.default_generator


def test_seeds_that_other_threads_set_are_not_the_steps_and_nothing_is_left_behind(uncompiled):
    """Several threads trace at once, and one goes on setting seeds."""
    ends, failed = threading.Event(), []

    def seeds():
        while not ends.is_set():
            torch.set_rng_state(torch.get_rng_state())

    def traces():
        try:
            for n in range(1, 4):
                roundoff.compile(lambda x, n=n: x * torch.rand(6) * n, simulate("e5m4"))(line())
        except FormatError as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for run in (seeds, traces, traces)]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    ends.set()
    threads[0].join()
    assert not failed
    assert torch.random.default_generator is torch.default_generator


def test_what_is_computed_again_without_random_numbers(uncompiled):
    def step(x):
        leaf = x.detach().requires_grad_()
        y = checkpoint(lambda h: (h * 1.1).tanh(), leaf, use_reentrant=False)
        return torch.autograd.grad(y.square().sum(), leaf)[0]

    x = line()
    with simulate("e5m4"):
        expected = step(x)
    assert_same(roundoff.compile(step, simulate("e5m4"))(x), expected)


def on_the_diagonal(x, y):
    x = x * 1.5
    x.diagonal().add_(0.1)
    return x, x.diagonal() * 2, x @ y


def along_a_diagonal(x, y):
    x = x.detach().requires_grad_()
    z = x * 1.5
    z.diagonal().mul_(y)
    return z.detach(), torch.autograd.grad((z * z).sum(), x)[0]


def with_shapes_that_change_in_place(x, y):
    x = x * 1.5
    first = x[0]
    x.t_().mul_(2)
    return x, first * 3, y.sum(0, keepdim=True).mul_(0.7).squeeze_(), (y / 3).unsqueeze_(-1) * x


def of_parts_that_no_schema_calls_views(x, y):
    x, y = x * 1.5, y / 3
    first, second = x.unsafe_chunk(2)
    first.mul_(y)
    short, _ = y.unsafe_split_with_sizes((3, 5))
    x[5].neg_()
    return x, second, short.add_(0.7), x @ y


def of_complex_numbers(x, y):
    x = x.detach().requires_grad_()
    z = torch.fft.ifft(x)
    return torch.view_as_real(z.detach().conj() * y), torch.autograd.grad(z.abs().sum(), x)[0]


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex:UserWarning")
@pytest.mark.parametrize(
    "step",
    [
        on_the_diagonal,
        along_a_diagonal,
        with_shapes_that_change_in_place,
        of_parts_that_no_schema_calls_views,
        of_complex_numbers,
    ],
)
def test_views_that_are_written_to_or_change_their_shape(step):
    x, y = line(64).view(8, 8), line(8)
    with simulate("e5m6"):
        expected = step(x, y)
    program = roundoff.compile(step, simulate("e5m6"))
    found = program(x, y)
    assert_same(found, expected)
    assert [z.stride() for z in found] == [z.stride() for z in expected]
    assert program.reason is None


def test_a_view_of_a_kernel_that_is_written_to_is_not_compiled(monkeypatch):
    """Inductor would not see that the memory behind it changes."""
    monkeypatch.setattr(written_operations, "WRITTEN_ON_CPU", written_operations.WRITTEN_ON_CPU - {"diagonal"})
    program = roundoff.compile(on_the_diagonal, simulate("e5m7"))
    x, y = line(121).view(11, 11), line(11)
    with simulate("e5m7"):
        expected = on_the_diagonal(x, y)
    with pytest.warns(CompileWarning, match="a view that a kernel gives is written to"):
        found = program(x, y)
    assert_same(found, expected)


def test_a_compiled_step_inside_another_and_first_calls_in_several_threads():
    inner = roundoff.compile(lambda x: x * 1.1, simulate("e5m4"))
    outer = roundoff.compile(lambda x: inner(x) + x / 3, simulate("e5m7"))
    x, found = line(), {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: outer(x)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with simulate("e5m7"):
        with simulate("e5m4"):
            part = x * 1.1
        expected = part + x / 3
    assert_same(found, dict.fromkeys(range(3), expected))


TOLD_TO_STOP = CppCompileError(["g++"], "g++: fatal error: Terminated signal terminated program cc1plus")
TOLD_TO_STOP.__cause__ = subprocess.CalledProcessError(-15, ["g++"])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/cache"), "failed .No space left on device: /tmp/cache"),
        (InductorError(RuntimeError("an error of inductor's"), None), "an error of inductor's"),
        (InductorError(TOLD_TO_STOP, None), "compiler failed .SIGTERM has ended it"),
    ],
)
def test_a_compiler_that_fails_is_done_without(error, reason, monkeypatch):
    def step(x):
        return x.mul_(1.1).sum()

    def fail(_):
        raise error

    assert compiled_module.reason_against_compiling() is None
    monkeypatch.setattr(graphs, "compile_graph", fail)
    eager, mine = (simulate("e5m4", rounding="stochastic") for _ in range(2))
    eager.step = mine.step = 7
    program = roundoff.compile(step, mine)
    ours, theirs = line(), line()
    with pytest.warns(CompileWarning, match=reason) as warned:
        found = [program(ours), program(ours)]
    with eager:
        expected = [step(theirs), step(theirs)]
    assert_same((found, ours), (expected, theirs))
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert (mine.step, mine.draws) == (eager.step, eager.draws)


@pytest.mark.parametrize("given", ["e5m10", torch.nn.Identity()])
def test_what_is_no_simulation_is_refused(given):
    with pytest.raises(FormatError, match=r"compile takes a simulation, such as .*, got ('e5m10'|Identity)"):
        roundoff.compile(lambda x: x, given)
    with pytest.raises(FormatError, match=r"compile takes a list or tuple of Modules, got "):
        roundoff.compile(lambda x: x, roundoff.simulate("e5m10"), modules=given)
