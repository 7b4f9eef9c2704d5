"""The options of a simulation together, in every family of formats, on whole training loops."""

import threading
from contextlib import nullcontext

import pytest
import torch
from each import each

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.formats import Format, FormatError, RandomBits
from roundoff.simulate.presence.draws import Draws


def train(steps=4, optimizer=torch.optim.SGD, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3, padding=1, dtype=dtype),
        torch.nn.Softplus(),
        torch.nn.Flatten(),
        torch.nn.Linear(24, 8, dtype=dtype),
        torch.nn.LayerNorm(8, dtype=dtype),
        torch.nn.Linear(8, 1, dtype=dtype),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) * 0.3)
    optimizer = optimizer(net.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(8, 2, 6, generator=generator, dtype=dtype)
        optimizer.zero_grad()
        (net(x)[:, 0] - x.sum((1, 2))).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.mark.parametrize(
    "fmt",
    ["q5.8", "int8", "int4_g32", "mxfp8_e4m3", "mxint8", "bfp8_16", "nvfp4", "posit16", "posit8_1", "lns10_4", "e4m3fn",
     "qtorch_e5m2", "binary8p4", "e5m2_nosub", "fp8_e4m3_tensor", "fp8_e5m2_row", "int8_row"],
)  # fmt: skip
@each("rounding", ["nearest-even", "stochastic", "toward-zero"])
def test_every_family_can_stand_for_results_and_for_operands(fmt, rounding):
    if fmt.startswith("qtorch") and rounding != "nearest-even":
        pytest.skip("qtorch's own formats round to nearest only")
    dtype = Format.parse(fmt).carrier
    results = train_under(Policy(fmt, rounding=rounding), dtype)
    assert results.isfinite().all()
    rules = (Rule(["mm", "addmm", "convolution*"], operands=fmt),)
    operands = train_under(Policy("fp32", rounding=rounding, rules=rules), dtype)
    assert operands.isfinite().all()
    assert not torch.equal(results, operands)


def train_under(policy, dtype):
    with simulate(policy, seed=1):
        return train(dtype=dtype)


@pytest.mark.filterwarnings("ignore:rounding stochastic applies to results:roundoff.PolicyWarning")
@pytest.mark.filterwarnings("ignore:the accumulator of the policy does not reach:roundoff.PolicyWarning")
def test_all_options_at_once():
    options = {
        "rounding": "stochastic",
        "accumulate": "e5m6/4",
        "granularity": "primitive",
        "scalars": "rounded",
        "seed": 3,
    }
    with simulate("e5m6", **options) as simulation:
        plain = train(optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, eps=1e-2))
    with simulate("e5m6", **options, observe=True, shadow="fp64") as simulation:
        watched = train(optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, eps=1e-2))
    assert torch.equal(plain, watched)  # watching changes nothing
    assert torch.equal(roundoff.round(plain, "e5m6"), plain)
    treatments = set(simulation.audit().table["treatment"])
    assert {"rounded", "rounded, and accumulated to nearest-even", "exact move", "unrounded: a view"} <= treatments
    assert any(treatment.startswith("decomposed") for treatment in treatments)
    assert simulation.report().table["results"].sum() > 1000
    assert len(simulation.shadow_report().table) > 10


@pytest.mark.filterwarnings("ignore:the accumulator of the policy does not reach:roundoff.PolicyWarning")
def test_each_option_matters():
    base = {"rounding": "nearest-even"}
    outcomes = []
    for options in (
        base,
        {"rounding": "stochastic"},
        {"accumulate": "e5m3"},
        {"accumulate": "e5m3/4"},
        {"granularity": "primitive"},
        {"scalars": "rounded"},
    ):
        with simulate("e5m6", **options):
            outcomes.append(train())
    for i, one in enumerate(outcomes):
        for other in outcomes[:i]:
            assert not torch.equal(one, other)


def test_the_shadow_of_a_simulation_is_the_float64_program():
    with simulate("e5m6", shadow="fp64") as simulation:
        net = torch.nn.Linear(3, 2)
        with torch.no_grad():
            net.weight.copy_(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]))
            net.bias.zero_()
        y = net(torch.tensor([[1.0, 2.0, 3.0]])).exp()
    table = simulation.shadow_report().table
    row = table[table["operation"] == "exp"].iloc[0]
    assert row["module"] == ""
    assert 0 < row["added_max"] <= 2.0**-7
    assert table[table["operation"] == "addmm"].iloc[0]["module"] == "Linear"
    torch.testing.assert_close(simulation.twin(y), torch.tensor([[1.4, 3.2]]).double().exp(), rtol=2**-5, atol=0)
    assert not torch.equal(simulation.twin(y), y.double())


def test_derivatives_forwards_are_shadowed_too():
    with simulate("e5m6", shadow="fp64") as simulation, torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.tensor([0.3, 0.7]), torch.ones(2))
        tangent = torch.autograd.forward_ad.unpack_dual((dual.exp() * dual).sum()).tangent
    assert roundoff.round(tangent, "e5m6") == tangent
    assert len(simulation.shadow_report().table)


def test_what_was_not_asked_for_is_refused():
    simulation = simulate("e5m10")
    with pytest.raises(FormatError, match="observe=True"):
        simulation.report()
    with pytest.raises(FormatError, match='shadow="fp64"'):
        simulation.shadow_report()
    with pytest.raises(FormatError, match='shadow must be "fp64"'):
        simulate("e5m10", shadow="fp32")
    with pytest.raises(FormatError, match="step of a simulation"):
        simulation.step = -1
    with (
        pytest.raises(FormatError, match=r"run the program in float64"),
        simulate("e5m10", accumulate="e11m20"),
    ):
        torch.ones(2, 2) @ torch.ones(2, 2)


def test_one_simulation_in_several_threads():
    simulation = simulate("e5m4", rounding="stochastic", seed=5)
    results, start = {}, threading.Barrier(3)

    def work(name):
        start.wait()
        with simulation:
            results[name] = torch.full((100,), 1.0) * 1.01

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each thread counts its own roundings.
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    with simulation:
        pass
    assert torch.equal(torch.ones(1) * 1.001, torch.full((1,), 1.001))


def test_threads_that_work_for_a_simulation_draw_in_its_order():
    """Autograd's threads on a GPU draw bits for a simulation that they never entered."""
    draws = Draws(5)
    draws.enter()
    drawn = [draws.bits()]
    thread = threading.Thread(target=lambda: drawn.append(draws.bits()))
    thread.start()
    thread.join()
    drawn.append(draws.bits())
    assert [bits.step for bits in drawn] == [0, 1, 2]
    draws.begin(2)
    draws.enter()
    assert draws.bits() == RandomBits(5, 2 << 32)


def test_float64_programs():
    with simulate("e8m20", accumulate="e8m20/8", granularity="primitive"):
        weights = train(dtype=torch.float64)
    assert torch.equal(roundoff.round(weights, "e8m20"), weights)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_draws_the_random_bits_of_the_first_time(use_reentrant):
    """What it computes again is what it computed, and behind it no bit is drawn twice."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(), torch.nn.Linear(8, 8))
    seen = []
    layers[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach().clone()))
    x = torch.randn(4, 8, requires_grad=True)
    simulation = simulate("e5m3", rounding="stochastic", seed=1)
    with simulation:
        first = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=use_reentrant)
        second = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=use_reentrant)
        before = simulation.draws
        (first + second).sum().backward()
        assert simulation.draws > before
        after = simulation.draws
        torch.set_rng_state(torch.get_rng_state())
        assert simulation.draws == after
    assert len(seen) == 4
    assert torch.equal(seen[2], seen[1])  # computed again from the end
    assert torch.equal(seen[3], seen[0])
    assert not torch.equal(seen[0], seen[1])
    assert torch.get_rng_state.__module__ == "torch.random"


def test_a_checkpoint_changes_no_gradient_under_stochastic_rounding():
    """Gradients are those without a checkpoint where the forward pass alone is rounded."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    x = torch.randn(4, 8)
    policy = Policy("fp32", rules=[Rule(role="forward", format="e5m3", rounding="stochastic")])
    found = []
    for computed_again in (False, True):
        layers.zero_grad()
        with simulate(policy, seed=1):
            y = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=False) if computed_again else layers(x)
            y.square().sum().backward()
        found.append([p.grad.clone() for p in layers.parameters()])
    assert all(map(torch.equal, *found))


def test_a_backward_pass_outside_of_a_simulation_leaves_its_random_bits_alone():
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    simulation = simulate("e5m3", rounding="stochastic", seed=1)
    for around in (None, simulate("e5m2", rounding="stochastic")):
        with simulation:
            y = torch.utils.checkpoint.checkpoint(layers, torch.randn(4, 8, requires_grad=True), use_reentrant=False)
            drawn = simulation.draws
        with around or nullcontext():
            y.sum().backward()
        assert simulation.draws == drawn
