"""``roundoff export``: finished runs as files that act as they do, and what is refused."""

import json
import shutil
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch

from roundoff.agents import RunError, TrainConfig, train
from roundoff.agents.acting.engines import SimulatedEngine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.algorithms.learner import Learner
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.agents.run import checkpoint
from roundoff.agents.run.parts import open_environments
from roundoff.agents.run.restored import read_finished
from roundoff.agents.training.export import export_policy
from roundoff.agents.training.finished import finished_agent, looked_at
from roundoff.cli import main
from roundoff.formats import round
from roundoff.runs.folder import RunDirectory

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

TINY = {"hidden_units": 8, "eval_episodes": 1, "steps": 400, "eval_every": 400}
RUNS = {
    "ppo": {"task": "gym:CartPole-v1", "horizon": 32, "environments": 2, "batch_size": 16},
    "dqn": {"task": "gym:CartPole-v1", "seed_steps": 50, "batch_size": 8, "format": "e5m10"},
    "td3": {"task": "cartpole_swingup", "seed_steps": 10, "batch_size": 8, "action_repeat": 20, "steps": 2000,
            "eval_every": 2000},
}  # fmt: skip
SIZES = {"ppo": 4, "dqn": 4, "td3": 5}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for algorithm, keys in RUNS.items():
        config = TrainConfig(**{"format": "fp32", **TINY, **keys, "algorithm": algorithm})
        assert train(config, folder / algorithm).crash is None
    return folder


def finished_learner(run):
    files = RunDirectory(run)
    config, step, weights = read_finished(files)
    with finished_agent(looked_at(config, 1), step, weights, files.agent) as agent:
        return agent.learner


def session(path):
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("algorithm", RUNS)
def test_files_act_as_the_run_did(runs, algorithm, tmp_path):
    learner = finished_learner(runs / algorithm)
    x = np.random.default_rng(0).standard_normal((50, SIZES[algorithm])).astype(np.float32)
    x = round(torch.from_numpy(x), RUNS[algorithm].get("format", "fp32"))
    plain = SimulatedEngine(PackedPolicy.of(learner.policy_layers(), "fp32").to_bytes()).act(x.numpy())
    if algorithm != "dqn":  # which computes in e5m10
        np.testing.assert_allclose(plain, learner.act(x, deterministic=True), atol=1e-6)
    written = export_policy(runs / algorithm, "fp32", tmp_path / "plain.onnx")
    assert str(written) == f"{tmp_path / 'plain.onnx'}: {written.bytes} bytes, of weights {written.weight_bytes}"
    np.testing.assert_allclose(session(written.path).run(None, {"observations": x.numpy()})[0], plain, atol=1e-6)
    for fmt in ("int8", "int8_ax0"):
        written = export_policy(runs / algorithm, fmt, tmp_path / "new" / "folder" / "policy.onnx")
        engine = SimulatedEngine(PackedPolicy.of(learner.policy_layers(), fmt).to_bytes())
        theirs = session(written.path).run(["outputs"], {"observations": x.numpy()})[0]
        np.testing.assert_allclose(
            theirs, engine.outputs_and_actions(x.numpy())[0], atol=0 if algorithm != "ppo" else 0.02
        )
        operators = b"DynamicQuantizeLinear", b"MatMulInteger"
        assert all(operator in written.path.read_bytes() for operator in operators)
        assert b"com.microsoft" not in written.path.read_bytes()


def test_no_environment_is_made(runs, tmp_path, monkeypatch):
    """What there is to know of it lies with the weights; runs of older versions have none of that."""
    monkeypatch.setattr("roundoff.agents.training.finished.open_environments", opened := Opened())
    for algorithm in RUNS:
        assert export_policy(runs / algorithm, "int8", tmp_path / "policy.h").bytes
    assert opened.times == 0
    shutil.copytree(runs / "td3", tmp_path / "older")
    place = tmp_path / "older" / "agent.pt"
    weights = checkpoint.load(place)
    checkpoint.save(place, weights)
    assert export_policy(tmp_path / "older", "int8", tmp_path / "policy.h").bytes
    assert opened.times == 1
    sizes = checkpoint.load_about(runs / "td3" / "agent.pt")["sizes"]
    for wrong in ({"observation_size": 10**15}, {"observation_size": -1}, {"frames": "2"}, {"observation_dtype": "f"}):
        checkpoint.save(place, weights, {"sizes": sizes | wrong})
        with suppress(RunError):  # or the environment tells
            export_policy(tmp_path / "older", "int8", tmp_path / "policy.h")


class Opened:
    """Opens environments, and counts."""

    times = 0

    def __call__(self, *args):
        self.times += 1
        return open_environments(*args)


def test_formats_that_onnx_does_not_multiply_are_numbers_of_float32_and_it_says_so(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys,
        "argv",
        ["roundoff", "export", str(runs / "ppo"), "--format", "int4", "--out", str(tmp_path / "policy.onnx")],
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "ONNX has no products of int4: its numbers are stored and multiplied as float32" in capsys.readouterr().out
    import onnx

    weights = [
        onnx.numpy_helper.to_array(one)
        for one in onnx.load(tmp_path / "policy.onnx").graph.initializer
        if len(one.dims) == 2
    ]
    layers = list(finished_learner(runs / "ppo").policy_layers())
    for weight, layer in zip(weights, layers, strict=True):
        np.testing.assert_array_equal(weight, round(layer.weight, "int4"))


def test_a_c_header_says_what_it_is(runs, tmp_path):
    export_policy(runs / "dqn", "int8", tmp_path / "policy.h")
    text = (tmp_path / "policy.h").read_text()
    assert text.startswith("/* A policy for gym:CartPole-v1, learned by dqn; weights in int8, ")
    assert "static int policy_act(const float *observation)" in text
    assert str(tmp_path) not in text


def test_a_policy_that_others_acted_with_is_exported(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "dqn", run)
    content = json.loads((run / "config.json").read_text())
    content["config"]["actors"] = {"count": 1, "format": "int8"}
    (run / "config.json").write_text(json.dumps(content))
    alone = export_policy(runs / "dqn", "int8", tmp_path / "alone.h")
    assert export_policy(run, "int8", tmp_path / "others.h").path.read_bytes() == alone.path.read_bytes()


def unfinished(runs, folder):
    shutil.copytree(runs / "ppo", folder)
    (folder / "result.json").unlink()
    return folder


def of_another_library(runs, folder):
    shutil.copytree(runs / "ppo", folder)
    config = {"task": "gym:CartPole-v1", "algorithm": "sb3:PPO"}
    (folder / "config.json").write_text(json.dumps({"config": config}))
    return folder


def of_another_agent(runs, folder):
    shutil.copytree(runs / "ppo", folder)
    shutil.copy(runs / "td3" / "agent.pt", folder / "agent.pt")
    return folder


def damaged(runs, folder):
    shutil.copytree(runs / "ppo", folder)
    (folder / "config.json").write_text('{"config": {"algorithm": "ppo", "task": "gym:CartPole-v1", "lr": "much"}}')
    return folder


@pytest.mark.parametrize(
    ("run", "fmt", "target", "message"),
    [
        (lambda runs, _: runs, "int8", "p.onnx", "holds no run (there is no config.json)"),
        (lambda runs, _: runs / "none", "int8", "p.onnx", "holds no run (there is no config.json)"),
        (unfinished, "int8", "p.onnx", "has not ended (there is no result.json)"),
        (of_another_library, "int8", "p.onnx", "the policy of sb3:PPO is another library's"),
        (of_another_agent, "int8", "p.onnx", "holds the weights of another algorithm, task or size"),
        (damaged, "int8", "p.onnx", "config.json: lr: "),
        (lambda runs, _: runs / "ppo", "int77", "p.onnx", "int77"),
        (lambda runs, _: runs / "ppo", "fp64", "p.onnx", "cannot represent all values of fp64"),
        (lambda runs, _: runs / "ppo", "int8", "p.tflite", "a policy is exported as *.onnx or *.h"),
        (lambda runs, _: runs / "ppo", "int8", "p", "a policy is exported as *.onnx or *.h"),
        (lambda runs, _: runs / "ppo", "mxfp4", "p.h", "a C header holds weights of fp32"),
        (lambda runs, _: runs / "ppo", "int8", "/dev/null/p.h", "/dev/null"),
    ],
)
def test_bad_input_is_told_in_one_message(run, fmt, target, message, runs, tmp_path, monkeypatch, capsys):
    arguments = ["export", str(run(runs, tmp_path / "run")), "--format", fmt, "-o", str(tmp_path / target)]
    monkeypatch.setattr(sys, "argv", ["roundoff", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / target).exists()


def test_what_onnx_writes_needs_the_extra(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'this needs onnx: pip install "\.\[deploy\]"'):
        export_policy(runs / "ppo", "int8", tmp_path / "policy.onnx")
    export_policy(runs / "ppo", "int8", tmp_path / "policy.h")


def test_policies_from_images_are_refused(tmp_path, runs, monkeypatch):
    monkeypatch.setattr(TD3, "policy_layers", Learner.policy_layers)
    with pytest.raises(RunError, match="the policy of td3 is more than linear layers"):
        export_policy(runs / "td3", "int8", tmp_path / "policy.onnx")
