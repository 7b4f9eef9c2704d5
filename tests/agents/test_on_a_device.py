"""Updates of agents on a GPU, by stand-ins for its tensors: nothing waits, all stays there, the bits are the CPU's."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from comparing import same_bits
from devices import is_stand_in, stand_ins

from roundoff.agents import TrainConfig
from roundoff.agents.run.parts import make_learner
from roundoff.formats import Format, round

OBSERVATION, ACTION, BATCH, UPDATES = 5, 2, 8, 2
STATES = {"hidden_units": 16, "batch_size": BATCH, "lr": 1e-3, "loss_scale_growth_interval": 2, "adam_beta2": 0.9}
PIXELS = {
    "observations": "pixels", "image_size": 16, "frames": 2, "filters": 3, "feature_size": 5, "image_shift": 2,
    "hidden_units": 8, "batch_size": 4, "lr": 1e-3, "loss_scale_growth_interval": 2,
    "adam_beta2": 0.9,
}  # fmt: skip
SAC, TD3, DRQ = STATES, STATES | {"algorithm": "td3", "last_hidden_units": 16}, PIXELS
D4PG = STATES | {"algorithm": "d4pg", "hidden_layers": 2, "atoms": 11, "target_every": 1}


@dataclass
class Sizes:
    observation_size: int = OBSERVATION
    observation_shape: tuple[int, ...] = (OBSERVATION,)
    observation_dtype: type = np.float64
    frames: int = 1
    action_size: int = ACTION
    discrete: bool = False


CONFIGS = {
    "fp32": {"format": "fp32"},
    "e5m10": {"format": "e5m10"},
    "e4m3": {"format": "e4m3"},
    "observe": {"format": "e5m7", "observe": True},
    "stochastic": {"format": "e5m7", "policy": {"rounding": "stochastic"}},
}
MORE = {
    "primitive": {"format": "e5m10", "policy": {"granularity": "primitive"}},
    "primitive, stochastic": {"format": "e5m7", "policy": {"granularity": "primitive", "rounding": "stochastic"}},
    "exact": {"format": "e5m10", "policy": {"rounding": "toward-zero"}},
    "accumulate": {"format": "e5m10", "policy": {"accumulate": "fp16"}},
    "mx": {"format": "e5m10", "policy": {"operands": "mxfp8_e4m3"}},
    "no fix": {"format": "e5m10", "fixes": "none"},
    "amp": {"format": "e5m10", "baseline": "amp"},
    "mixed": {"format": "e5m10", "baseline": "master_weights"},
    "coercion": {"format": "e5m5", "baseline": "coercion"},
    "native": {"format": "bf16", "native": True},
    "half": {"format": "fp16", "native": True},
}
AGENTS = {"sac": SAC, "td3": TD3, "d4pg": D4PG, "drq": DRQ}


def case(agent, name):
    """Every agent in fp32 and e5m10, every config of sac, and more of td3, which is short, on every day."""
    daily = agent == "td3" if name in MORE else agent == "sac" or name in ("fp32", "e5m10")
    keys = AGENTS[agent] | (CONFIGS | MORE)[name]
    return pytest.param(keys, id=f"{agent}-{name}", marks=[] if daily else pytest.mark.slow)


CASES = [case(agent, name) for agent in AGENTS for name in CONFIGS]
CASES += [case(agent, name) for agent in ("sac", "td3") for name in MORE]


class Steps:
    """What two environments gave."""

    actions = np.zeros((2, ACTION))
    next_observations = np.ones((2, OBSERVATION))
    images = np.zeros((2, 6, 16, 16), np.uint8)
    rewards = discounts = np.ones(2)


class Sample(NamedTuple):
    """What was done in them."""

    actions: np.ndarray
    steps: Steps


def made_with_recorder(keys, device):
    config = TrainConfig(**keys)
    if config.world():  # images
        size, frames = config.image_size, config.frames
        return make_learner(config, Sizes(3 * frames * size**2, (3 * frames, size, size), np.uint8, frames), device)
    return make_learner(config, Sizes(), device)


def made(keys, device):
    learner, recorder = made_with_recorder(keys, device)
    return learner, recorder.intake.replay


def fill(replay, fmt, dtype, device):
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        row = round(torch.randn(replay.rows.shape[1], generator=generator).tanh().double(), fmt).to(dtype).to(device)
        if not hasattr(replay, "images"):
            replay.add(row)
            continue
        image = torch.randint(256, replay.images.shape[1:], generator=generator, dtype=torch.uint8)
        replay.begin(image) if number == 0 else replay.add(row, image)


def trained(keys, device, waiting):
    learner, replay = made(keys, device)
    fill(replay, Format.parse(keys["format"]), learner.dtype, device)
    generator = torch.Generator(device).manual_seed(1)
    with waiting():
        for _ in range(UPDATES):
            metrics = learner.update(replay.sample(learner.config.batch_size, generator))
    return learner, metrics


@pytest.mark.parametrize("keys", CASES)
def test_an_update_waits_for_nothing_and_gives_the_bits_of_the_cpu(keys, monkeypatch):
    expected, _ = trained(keys, torch.device("cpu"), nullcontext)
    with stand_ins(monkeypatch) as device:
        learner, metrics = trained(keys, torch.device("cuda"), device.nothing_waits)
        for name, x in {**learner.weights(), **metrics}.items():
            assert x.is_cuda, name
        found = learner.state_dict()
    if learner.config.native or "granularity" in str(learner.config.policy) or "operands" in str(learner.config.policy):
        return
    for name, x in expected.weights().items():
        assert same_bits(x, found[name]), name


@pytest.mark.parametrize("keys", [SAC, DRQ], ids=["states", "pixels"])
def test_experience_goes_to_the_device_without_waiting(keys, monkeypatch):
    steps = Steps()
    with stand_ins(monkeypatch) as device:
        _, recorder = made_with_recorder(keys | {"format": "e5m10"}, torch.device("cuda"))
        intake = recorder.intake
        seen = steps.images if keys is DRQ else steps.next_observations
        with device.nothing_waits():
            observations = intake.perceive(seen)
            intake.begin(seen[0])
            rows = intake.rows(observations, Sample(steps.actions, steps))
        assert is_stand_in(observations)
        assert is_stand_in(rows)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("keys", CASES)
def test_an_update_waits_for_nothing_on_a_gpu(keys):
    learner, replay = made(keys, torch.device("cuda"))
    fill(replay, Format.parse(keys["format"]), learner.dtype, torch.device("cuda"))
    generator = torch.Generator("cuda").manual_seed(1)
    learner.update(replay.sample(learner.config.batch_size, generator))  # compiles kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(UPDATES):
            metrics = learner.update(replay.sample(learner.config.batch_size, generator))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, x in {**learner.weights(), **metrics}.items():
        assert x.is_cuda, name
