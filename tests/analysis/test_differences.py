"""How far runs of different precision are apart, against the agents themselves."""

import json
import shutil
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch

from roundoff.agents import TrainConfig, train
from roundoff.agents.models.networks import forward
from roundoff.agents.run import checkpoint
from roundoff.analysis import plot, read_experiment
from roundoff.analysis.figures.differences import differences_table
from roundoff.formats import Format

SMALL = {
    "action_repeat": 50,
    "steps": 3000,
    "hidden_units": 8,
    "batch_size": 8,
    "lr": 1e-3,
    "seed_steps": 5,
    "eval_every": 1500,
    "eval_episodes": 1,
    "keep_networks": True,
}
FORMATS = {"fp32": {}, "e5m10": {}, "e8m7": {"native": True}, "fp32 again": {"checkpoint_every": 500}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, keys in FORMATS.items():
        train(TrainConfig(format=name.partition(" ")[0], **SMALL, **keys), root / name)
    train(TrainConfig(format="e5m10", seed=1, **SMALL), root / "without a partner")
    return root


def networks(folder, name):
    """The final weights in float64, as the run's own checkpoint format holds them."""
    weights = checkpoint.load(folder / name / "agent.pt")
    return {part: weights[part].double() for part in ("actor", "critic")}


def critic_layers(flat, inputs):
    sizes = [inputs, SMALL["hidden_units"], SMALL["hidden_units"], 1]
    shapes = [shape for a, b in pairwise(sizes) for shape in ((2, a, b), (2, 1, b))]
    parts = torch.split(flat, [int(np.prod(shape)) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def test_they_are_those_of_the_agents(folder):
    warnings = []
    table = differences_table(read_experiment(folder), warnings)
    assert not warnings
    assert sorted(table["id"]) == sorted(2 * ["e5m10", "e8m7", "fp32 again"])
    assert set(table["reference"]) == {"fp32"}
    assert sorted(set(table["step"])) == [1500, 3000]
    reference = networks(folder, "fp32")
    inputs = torch.from_numpy(np.load(folder / "fp32" / "snapshots" / "states.npz")["inputs"]).double()
    assert inputs.shape == (SMALL["steps"] / SMALL["action_repeat"], 6)
    for name in ("e5m10", "e8m7", "fp32 again"):
        row = table[(table["id"] == name) & (table["step"] == 3000)].iloc[0]
        here = networks(folder, name)
        for part in ("actor", "critic"):
            assert row[f"{part}_l1"] == pytest.approx(float((here[part] - reference[part]).abs().mean()), rel=1e-12)
        q, q_there = (forward(critic_layers(weights["critic"], 6), inputs) for weights in (here, reference))
        assert row["q_difference"] == pytest.approx(float((q - q_there).abs().mean()), rel=1e-9)
        assert (row["q_difference"] > 0) == (name != "fp32 again")


def test_states_are_what_the_run_met(folder):
    observations = np.load(folder / "e5m10" / "snapshots" / "states.npz")["inputs"]
    fmt = Format.parse("e5m10")
    assert np.array_equal(observations, fmt.decode(fmt.encode(torch.from_numpy(observations))).numpy())
    assert np.abs(observations[:, -1]).max() <= 1


def test_they_are_drawn_and_damage_is_named(folder):
    (folder / "e5m10" / "snapshots" / "1500.npz").write_bytes(b"PK\x03\x04 torn")
    written, warnings = plot(folder, figures=["training", "differences"])
    assert [path.name for path in written[-2:]] == ["differences.png", "differences.svg"]
    assert {"differences.csv", "training.png"} <= {path.name for path in written}
    assert len(warnings) == 1
    assert "1500.npz: cannot be read" in warnings[0]
    assert len((folder / "differences.csv").read_text().splitlines()) == 6
    svg = (folder / "training.svg").read_text()
    assert "loss scale of the critics" in svg


def test_small_files_take_little_memory(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    for run in ("fp32", "e5m10"):
        snapshots = tmp_path / "runs" / run / "snapshots"
        wide = {"critic_0": np.ones((1, 6, 20_000), np.float16), "critic_1": np.ones((1, 1, 20_000), np.float16)}
        np.savez(snapshots / "1500.npz", **wide)
        np.savez_compressed(snapshots / "3000.npz", critic_0=np.zeros((1, 6, 5_000_000)))
        np.savez(snapshots / "states.npz", inputs=np.ones((10_000, 6), np.float16))
    warnings = []
    tracemalloc.start()
    table = differences_table(read_experiment(tmp_path / "runs"), warnings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400e6
    assert table[table["id"] == "e5m10"]["q_difference"].tolist() == [0]
    assert sum("3000.npz: cannot be read (it is compressed, and snapshots are not)" in line for line in warnings) >= 2


def test_nothing_is_kept_unless_asked_for(tmp_path):
    config = TrainConfig(**SMALL | {"keep_networks": False, "steps": 500, "eval_every": 500})
    train(config, tmp_path)
    assert not (tmp_path / "snapshots").exists()
    assert json.loads((tmp_path / "config.json").read_text())["config"]["keep_networks"] is False
    assert differences_table(read_experiment(tmp_path), []).empty
