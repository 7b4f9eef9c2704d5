"""The converse of Statement 1: in e5m10 each fix is needed. Without it something fails, with it the same holds.

Two kinds of cases. Parts: what PyTorch offers, and what the paper writes, beside the part of ours; each with the
granularities that show its failure, for some of PyTorch's kernels hide it by computing inside in float32. And agents
with all six fixes but one, at both granularities, beside the agent of float64 that saw the same batches and noise.
"""

import pytest
import torch
from paired_agents import CPU, THE_SIX
from torch.nn import functional as F

from roundoff.agents import SAC, TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.agents.models.normal_fix import normal_log_prob, normal_log_prob_naive
from roundoff.agents.models.softplus_fix import softplus, softplus_naive
from roundoff.formats import Format, round
from roundoff.remedies import CompoundLossScaler, HAdam, KahanEMA, PlainEMA
from roundoff.simulate import simulate

HALF = "e5m10"
LARGEST = 65504.0
GRANULARITIES = ("kernel", "primitive")
EVERYWHERE, PRIMITIVE, NOWHERE = frozenset(GRANULARITIES), frozenset(["primitive"]), frozenset()


# What is computed: each function returns the numbers that have to be right, in the dtype it is given.


def softplus_and_slope(function, dtype):
    x = torch.tensor([-3.0, 1.0, 9.0, 12.0, 20.0], dtype=dtype, requires_grad=True)
    y = function(x)
    return torch.cat([y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]])


def log_density(function, dtype):
    sigma = torch.full((3,), 2.0**-14, dtype=dtype)
    return function(sigma * torch.tensor([0.5, 1.5, -2.0], dtype=dtype), 0 * sigma, sigma, sigma.log())


def torchs_normal(x, mean, sigma, log_sigma):
    return torch.distributions.Normal(mean, sigma, validate_args=False).log_prob(x)


def moved(make, dtype, *, start, gradient, steps, scale=1.0):
    """How far an optimizer carries two parameters, one of which has no gradient."""
    p = torch.tensor([start, start], dtype=dtype, requires_grad=True)
    before = p.detach().clone()
    optimizer = make([p])
    for _ in range(steps):
        p.grad = torch.tensor([gradient, 0.0], dtype=dtype) * scale
        optimizer.step()
    return p.detach() - before


def small_gradients(make, dtype):
    return moved(make, dtype, start=1.0, gradient=3e-3, steps=3)


def no_gradient(make, dtype):
    return moved(make, dtype, start=1.0, gradient=1.0, steps=3)


def no_gradient_scaled(make, dtype):
    return moved(make, dtype, start=1.0, gradient=1.0, steps=3, scale=2.0**13)


def tiny_gradients(make, dtype):
    return moved(make, dtype, start=1.0, gradient=1e-7, steps=3)


def tiny_gradients_scaled(make, dtype):
    return moved(make, dtype, start=1.0, gradient=1e-7, steps=3, scale=2.0**13)


def small_steps(make, dtype):
    return moved(make, dtype, start=-2.3125, gradient=1.0, steps=300)


def torchs_adam(eps, lr=1e-2, **options):
    return lambda params: torch.optim.Adam(params, lr=lr, eps=eps, **options)


def hadam(eps, lr=1e-2, **options):
    return lambda params: HAdam(params, lr=lr, eps=eps, **options)


def scaled_hadam(eps):
    return lambda params: CompoundLossScaler(HAdam(params, lr=1e-2, eps=eps), initial_scale=2.0**13, largest=LARGEST)


def averaged(update, dtype):
    average = torch.tensor([1.0, -0.5], dtype=dtype)
    update(average, torch.tensor([1.05, -0.525], dtype=dtype))
    return average - torch.tensor([1.0, -0.5], dtype=dtype)


def by(make):
    def update(average, source):
        moving = make(average)
        for _ in range(300):
            moving.update_(source)

    return update


def by_lerp(average, source):
    for _ in range(300):
        average.lerp_(source, 0.005)


# The fix it is about: what is computed, by what, and at which granularities that fails.
PARTS = [
    ("softplus_fix", softplus_and_slope, F.softplus, PRIMITIVE),
    ("softplus_fix", softplus_and_slope, softplus_naive, EVERYWHERE),
    ("softplus_fix", softplus_and_slope, softplus, NOWHERE),
    ("normal_fix", log_density, torchs_normal, EVERYWHERE),
    ("normal_fix", log_density, normal_log_prob_naive, EVERYWHERE),
    ("normal_fix", log_density, normal_log_prob, NOWHERE),
    ("hadam", small_gradients, torchs_adam(1e-3), EVERYWHERE),
    ("hadam", small_gradients, torchs_adam(1e-3, fused=True), EVERYWHERE),
    ("hadam", small_gradients, hadam(1e-3), NOWHERE),
    ("compound_loss_scaling", no_gradient, torchs_adam(1e-8), EVERYWHERE),
    ("compound_loss_scaling", no_gradient, torchs_adam(1e-8, fused=True), PRIMITIVE),
    ("compound_loss_scaling", no_gradient, hadam(1e-8), EVERYWHERE),
    ("compound_loss_scaling", no_gradient_scaled, scaled_hadam(1e-8), NOWHERE),
    ("compound_loss_scaling", tiny_gradients, hadam(2.0**-24), EVERYWHERE),
    ("compound_loss_scaling", tiny_gradients_scaled, scaled_hadam(2.0**-24), NOWHERE),
    ("kahan_momentum", averaged, by_lerp, EVERYWHERE),
    ("kahan_momentum", averaged, by(lambda a: PlainEMA(a, 0.005)), EVERYWHERE),
    ("kahan_momentum", averaged, by(lambda a: KahanEMA(a, 0.005, scale=1e4, largest=LARGEST)), NOWHERE),
    ("kahan_gradients", small_steps, torchs_adam(1e-3, lr=1e-4), EVERYWHERE),
    ("kahan_gradients", small_steps, torchs_adam(1e-3, lr=1e-4, fused=True), EVERYWHERE),
    ("kahan_gradients", small_steps, hadam(1e-3, lr=1e-4), EVERYWHERE),
    ("kahan_gradients", small_steps, hadam(1e-3, lr=1e-4, kahan=True), NOWHERE),
]


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(("fix", "compute", "by_what", "fails_at"), PARTS)
def test_parts_fail_without_their_fix_and_hold_with_it(fix, compute, by_what, fails_at, granularity):
    exact = compute(by_what, torch.float64)
    assert exact.isfinite().all()
    with simulate(HALF, granularity=granularity):
        half = compute(by_what, torch.float32)
    # Right is within a tenth of the largest; where it is right, it is far nearer, and where not, far off.
    error = float((half - exact).abs().max() / exact.abs().max())
    assert (not error < 0.1) == (granularity in fails_at), error


def test_every_fix_has_parts_that_fail_without_it():
    for name in THE_SIX:
        rows = [fails_at for fix, _, _, fails_at in PARTS if fix == name]
        assert EVERYWHERE in rows
        assert NOWHERE in rows


# Agents: all six fixes, and all but one


OBSERVATION, ACTION, BATCH = 4, 2, 8


def agent_of(format, fixes, granularity, **keys):
    usual = {
        "hidden_units": 16, "hidden_layers": 2, "batch_size": BATCH, "lr": 1e-3, "initial_loss_scale": 2.0**13,
        "kahan_momentum_scale": 1e4, "seed": 3,
    }  # fmt: skip
    policy = {} if format == "fp64" else {"policy": {"granularity": granularity}}
    return SAC(OBSERVATION, ACTION, TrainConfig(format=format, fixes=fixes, **usual | keys, **policy), CPU)


def batch_of(agent, generator):
    fmt = Format.parse(agent.config.format)
    replay = Replay(1, OBSERVATION, ACTION, dtype=fmt.carrier, device=CPU)
    rows = torch.randn(BATCH, replay.rows.shape[1], generator=generator)
    rows[:, OBSERVATION : OBSERVATION + ACTION].tanh_()
    rows[:, -1] = 1
    rows, noise = (round(x, HALF).to(fmt.carrier) for x in (rows, torch.randn(2, BATCH, ACTION, generator=generator)))
    return replay.as_batch(rows), noise


def journey(agent, of, updates):
    """How far one tensor of an agent goes by updates of batches and noise that are the same for every format."""
    start = agent.weights()[of].double().clone()
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        batch, noise = batch_of(agent, generator)
        with agent.constructing():
            agent.update_critic(batch, noise[0])
            agent.update_actor_and_temperature(batch, noise[1])
            agent.update_target()
    return agent.weights()[of].double() - start


def unlikely_actions(format, fixes, granularity):
    """The mean of u is -6, as happens in training: exp(-2u) is exp(12)."""
    agent = agent_of(format, fixes, granularity)
    agent.actor.layers[-1][..., :ACTION] = -6
    return journey(agent, "actor", 5)


def certain_actions(format, fixes, granularity):
    """sigma is exp(-9), within the bounds that the paper uses for pixels: sigma^2 is 1.5e-8."""
    agent = agent_of(format, fixes, granularity, log_sigma_min=-10.0, log_sigma_max=2.0, initial_loss_scale=4.0)
    agent.actor.layers[-2][..., :ACTION] = 0
    agent.actor.layers[-1][..., ACTION:] = -1.1875  # -4 + 6 tanh(-1.1875) = -8.97
    agent.actor.layers[-2][..., ACTION:] /= 16
    for layer in agent.actor.layers:
        layer.copy_(round(layer, HALF))
    return journey(agent, "actor", 5)


def unsuitable_scale(format, fixes, granularity):
    """A loss scale of 16, as after larger gradients: Adam's squares of these vanish, and it divides by eps alone."""
    return journey(agent_of(format, fixes, granularity, initial_loss_scale=16.0), "critic", 5)


def critics_ahead(format, fixes, granularity):
    """The target critics have to go a fiftieth of their size."""
    agent = agent_of(format, fixes, granularity)
    agent.critic.flat.copy_(round(agent.critic.flat * 1.02, HALF))
    start = agent.weights()["target"].double().clone()
    for _ in range(300):
        with agent.constructing():
            agent.update_target()
    return agent.weights()["target"].double() - start


def first_updates(format, fixes, granularity):
    """Adam's usual eps, 1e-8, and units that are off: 0 / 0."""
    return journey(agent_of(format, fixes, granularity), "critic", 5)


def small_rate(format, fixes, granularity):
    """The logarithm of the temperature is -2.3; half an ulp of it is ten steps of the paper's rate."""
    return journey(agent_of(format, fixes, granularity, lr=1e-4), "log_temperature", 40)


SITUATIONS = {
    "softplus_fix": unlikely_actions,
    "normal_fix": certain_actions,
    "hadam": unsuitable_scale,
    "kahan_momentum": critics_ahead,
    "compound_loss_scaling": first_updates,
    "kahan_gradients": small_rate,
}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("fix", THE_SIX)
def test_an_agent_needs_each_fix(fix, granularity):
    exact = SITUATIONS[fix]("fp64", [], granularity)
    assert exact.norm() > 0
    errors = {}
    for fixes in (THE_SIX, [name for name in THE_SIX if name != fix]):
        half = SITUATIONS[fix](HALF, list(fixes), granularity)
        errors[len(fixes)] = float((half - exact).norm() / exact.norm())
    assert errors[6] < 0.3
    assert not errors[5] < 0.9  # as wrong as not moving at all, or not a number
