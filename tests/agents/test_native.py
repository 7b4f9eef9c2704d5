"""Native half precision: the same code on real float16 and bfloat16 tensors, and what the simulation has to do with it.

docs/fidelity.md states what is measured here.
"""

import copy
import json
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from roundoff.agents import BASELINES, SAC, TrainConfig, train
from roundoff.agents.experience.replay import Replay
from roundoff.agents.run import checkpoint
from roundoff.formats import Format, round
from roundoff.simulate import Policy, Simulation

pytestmark = pytest.mark.usefixtures("short_episodes")

OBSERVATION, ACTION = 5, 2
CPU = torch.device("cpu")
DTYPES = {"e5m10": torch.float16, "e8m7": torch.bfloat16}

# What PyTorch's CPU kernels for half precision do with Python numbers, and its CUDA kernels do not.
CPU_SCALARS = {"rules": [{"operation": ["_foreach_mul_", "_foreach_add_", "add", "sub"], "scalars": "rounded"}]}

CONTRACTIONS = {"aten.baddbmm.default", "aten.bmm.default"}
SCALED_SUMS = {"aten._foreach_add_.List", "aten.add.Tensor", "aten.sub.Tensor"}


def make(format, *, native, device=CPU, **keys):
    defaults = {"hidden_units": 16, "batch_size": 8, "lr": 1e-3}
    return SAC(OBSERVATION, ACTION, TrainConfig(format=format, native=native, **(defaults | keys)), device)


def make_replay(agent, rows=200):
    format, device = agent.config.format, agent.actor.flat.device
    replay = Replay(rows, OBSERVATION, ACTION, dtype=agent.dtype, device=device)
    values = torch.randn(replay.rows.shape, generator=torch.Generator().manual_seed(0))
    values[:, OBSERVATION : OBSERVATION + ACTION].tanh_()
    values[:, -1] = torch.rand(rows, generator=torch.Generator().manual_seed(1)) > 0.2
    replay.rows.copy_(round(values, format))
    replay.added = rows
    return replay


def steps(agent, updates):
    replay, generator = make_replay(agent), torch.Generator(agent.actor.flat.device).manual_seed(1)
    for _ in range(updates):
        agent.update(replay.sample(agent.config.batch_size, generator))
        yield


def leaves(agent):
    return [x for x in tree_leaves(agent.state_dict()) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def alike(x, y):
    return (x.double() == y.double()) | (x.isnan() & y.isnan())


class KernelsOfFloat32(TorchDispatchMode):
    """Computes some operations of a native agent in float32, and rounds what they give.

    ``alpha`` is rounded first, as the kernels for half precision on the CPU do.
    """

    def __init__(self, operations):
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
        if str(func) not in self.operations or tensors[0].dtype not in DTYPES.values():
            return func(*args, **kwargs)
        dtype = tensors[0].dtype
        if "alpha" in kwargs:
            kwargs["alpha"] = torch.tensor(kwargs["alpha"], dtype=dtype).item()
        args = tree_map(lambda x: torch.tensor(x, dtype=dtype).item() if isinstance(x, float) else x, args)
        wide = tree_map(lambda x: x.float() if isinstance(x, torch.Tensor) else x, args)
        result = func(*wide, **kwargs)
        if func._schema.is_mutable:
            for narrow, x in zip(args[0], wide[0], strict=True):
                narrow.copy_(x)
            return None
        return result.to(dtype)


class EachOperationSimulated(TorchDispatchMode):
    """Beside each operation of a native agent, simulates it on the same operands; keeps the worst differences.

    Attributes:
        worst: by operation: the largest difference in units in the last place, and over the largest result.
    """

    def __init__(self, policy):
        super().__init__()
        self.simulation = Simulation(policy, warn_unused=False)
        self.worst = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # Noise, which is drawn in float32, and memory that nobody has written to (the replay buffer's).
        aten = torch.ops.aten
        if "generator" in kwargs or func in (aten._to_copy.default, aten.empty.memory_format):
            return func(*args, **kwargs)
        copies = {}  # an operand may also be where the result goes

        def widen(x):
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) not in copies:
                copies[id(x)] = x.detach().clone() if x.dtype not in DTYPES.values() else x.detach().float()
            return copies[id(x)]

        wide = tree_map(widen, (args, kwargs))
        with self.simulation:
            expected = func(*wide[0], **wide[1])
        result = func(*args, **kwargs)
        pairs = zip(tree_leaves((result, args, kwargs)), tree_leaves((expected, *wide)), strict=True)
        for x, y in pairs:
            if isinstance(x, torch.Tensor) and x.dtype in DTYPES.values():
                self.compare(str(func), x.detach(), y.detach())
        return result

    def compare(self, name, x, y):
        ulps, relative = self.worst.get(name, (0, 0.0))
        unlike = ~alike(x, y)
        if unlike.any():
            places = [z.to(x.dtype).view(torch.int16).int() for z in (x, y)]
            ulps = max(ulps, int((places[0] - places[1])[unlike].abs().max()))
            relative = max(relative, float((x - y)[unlike].abs().max() / y[y.isfinite()].abs().max()))
        self.worst[name] = ulps, relative


@pytest.mark.parametrize("fixes", ["none", "all"])
@pytest.mark.parametrize("format", DTYPES)
def test_each_operation_of_an_update_is_that_of_the_simulation(format, fixes):
    agent = make(format, native=True, fixes=fixes, hidden_units=48, batch_size=48)
    with EachOperationSimulated(Policy.parse(CPU_SCALARS, format)) as compared:
        for _ in steps(agent, 4):
            pass
    assert len(compared.worst) > 35
    epsilon = torch.finfo(DTYPES[format]).eps
    for name, (ulps, relative) in compared.worst.items():
        if name in CONTRACTIONS:  # sums in another order, which cancellation magnifies
            assert relative <= epsilon, name
        elif name in SCALED_SUMS:  # a + alpha b is rounded to float32 once or twice
            assert ulps <= 1, name
        else:
            assert ulps == 0, name


@pytest.mark.parametrize("format", DTYPES)
def test_numbers_that_the_half_kernels_round_are_the_only_other_difference(format):
    agent = make(format, native=True, hidden_units=48, batch_size=48)
    with EachOperationSimulated(Policy.parse({}, format)) as compared:
        for _ in steps(agent, 4):
            pass
    unlike = {name for name, (ulps, _) in compared.worst.items() if ulps}
    assert "aten._foreach_add_.List" in unlike  # beta1 = 0.9 is no half
    assert unlike <= CONTRACTIONS | SCALED_SUMS | {"aten._foreach_mul_.Scalar", "aten._foreach_add_.Scalar"}


def assert_bit_identical(updates, **keys):
    """A native agent, but for the known kernels, and its simulation have the same state at every update."""
    native = make(**keys, native=True)
    simulated = make(**keys, native=False, policy=CPU_SCALARS)
    assert all(map(torch.equal, (x.float() for x in leaves(native)), leaves(simulated)))
    together = zip(steps(native, updates), steps(simulated, updates), strict=True)
    with KernelsOfFloat32(CONTRACTIONS | SCALED_SUMS):
        while next(together, 0) != 0:
            assert all(bool(alike(x, y).all()) for x, y in zip(leaves(native), leaves(simulated), strict=True))
    return native


@pytest.mark.parametrize("fixes", ["none", "all"])
@pytest.mark.parametrize("format", DTYPES)
def test_the_simulated_agent_is_the_native_one_bit_for_bit_but_for_known_kernels(format, fixes):
    native = assert_bit_identical(50, format=format, fixes=fixes)
    assert bool(leaves(native)[0].isfinite().all()) == (fixes == "all" or format == "e8m7")


@pytest.mark.parametrize("baseline", [name for name in BASELINES if name != "none"])
def test_so_are_the_baselines(baseline):
    assert_bit_identical(12, format="e5m10", baseline=baseline)


@pytest.mark.parametrize("format", DTYPES)
def test_the_simulated_agent_stays_near_the_native_one(format):
    native, simulated, other = (make(format, native=n, seed=s) for n, s in ((True, 0), (False, 0), (False, 1)))
    start = native.critic.flat.float()
    for _ in zip(steps(native, 60), steps(simulated, 60), steps(other, 60), strict=True):
        pass
    apart = (native.critic.flat.float() - simulated.critic.flat).norm()
    assert 0 < apart < 0.1 * (simulated.critic.flat - start).norm()
    assert apart < 0.01 * (simulated.critic.flat - other.critic.flat).norm()


SMALL = {
    "steps": 3000,
    "action_repeat": 20,
    "hidden_units": 8,
    "batch_size": 8,
    "lr": 1e-3,
    "seed_steps": 20,
    "eval_every": 1500,
    "eval_episodes": 2,
    "checkpoint_every": 500,
}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_naive_agent_crashes_where_the_simulated_one_does(tmp_path, seed):
    results = [
        train(TrainConfig(format="fp16", fixes="none", native=native, seed=seed, **SMALL), tmp_path / str(native))
        for native in (True, False)
    ]
    assert results[0] == results[1]
    assert results[0].status == "crashed"


@pytest.mark.parametrize("format", DTYPES)
def test_an_interrupted_native_run_continues_to_the_same_bytes(tmp_path, monkeypatch, format):
    config = TrainConfig(format=format, native=True, **SMALL)
    result = train(config, tmp_path / "straight")
    assert result.status == "done"
    update, calls = SAC.update, []

    def interrupted(agent, batch):
        calls.append(batch.rows.dtype)
        if len(calls) == 100:
            raise KeyboardInterrupt
        return update(agent, batch)

    monkeypatch.setattr(SAC, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "broken")
    state = checkpoint.load(tmp_path / "broken" / "checkpoint.pt")
    assert state["agent"]["critic"].dtype == state["replay"]["rows"].dtype == DTYPES[format]
    assert train(config, tmp_path / "broken") == result
    assert set(calls) == {DTYPES[format]}
    for name in ("metrics.jsonl", "result.json", "config.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    weights = [checkpoint.load(tmp_path / run / "agent.pt") for run in ("broken", "straight")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(weight.dtype == DTYPES[format] for weight in weights[0].values())
    evaluations = [json.loads(line) for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite([r["return_mean"] for r in evaluations if r["kind"] == "eval"]).all()


@pytest.mark.parametrize("fixes", ["none", "all"])
@pytest.mark.parametrize("format", DTYPES)
def test_everything_it_holds_is_of_the_native_type(format, fixes):
    agent = make(format, native=True, fixes=fixes)
    assert agent.simulation is None
    assert agent.dtype == DTYPES[format]
    for _ in steps(agent, 2):
        pass
    assert {x.dtype for x in leaves(agent)} == {DTYPES[format]}
    again = make(format, native=True, fixes=fixes, seed=7)
    again.load_state_dict(copy.deepcopy(agent.state_dict()))
    assert all(bool(alike(x, y).all()) for x, y in zip(leaves(agent), leaves(again), strict=True))
    action = agent.act(make_replay(agent).rows[:3, :OBSERVATION], deterministic=False)
    assert action.dtype == DTYPES[format]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"format": "fp32"}, ["e5m10 (torch.float16)", "e8m7 (torch.bfloat16)", "got format fp32"]),
        ({"format": "e5m9"}, ["got format e5m9", "native: false"]),
        ({"format": "bf16", "policy": "storage"}, ["policy", "leave policy out"]),
        ({"format": "fp16", "observe": True}, ["observe", "native: false"]),
        ({"format": "fp16", "native": "yes"}, ["boolean"]),
    ],
)
def test_what_cannot_run_natively_is_refused(keys, words):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(**({"native": True} | keys))
    for word in words:
        assert word in str(caught.value)


def test_a_native_config_goes_through_json():
    config = TrainConfig(format=" BF16 ", native=True)
    assert TrainConfig(**config.as_json()) == config
    assert Format.parse(config.format).carrier == torch.float32


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("format", DTYPES)
def test_it_runs_on_a_gpu_near_the_simulation(format):
    device = torch.device("cuda")
    native, simulated = (make(format, native=n, device=device) for n in (True, False))
    start = simulated.critic.flat.clone()
    for _ in zip(steps(native, 20), steps(simulated, 20), strict=True):
        pass
    assert native.critic.flat.dtype == DTYPES[format]
    apart = (native.critic.flat.float() - simulated.critic.flat).norm()
    assert apart < 0.3 * (simulated.critic.flat - start).norm()
    assert math.isfinite(float(apart))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fixes", ["none", "all"])
def test_a_native_run_on_a_gpu_ends_as_the_simulated_one(tmp_path, fixes):
    status = {}
    for native in (True, False):
        config = TrainConfig(format="fp16", native=native, fixes=fixes, device="cuda", **SMALL)
        status[native] = train(config, tmp_path / str(native)).status
    assert status[True] == status[False] == ("done" if fixes == "all" else "crashed")
