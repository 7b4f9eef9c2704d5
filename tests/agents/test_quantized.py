"""Policies quantized after training: what is rounded, against NumPy; runs that evaluate so; finished runs."""

import json
import shutil

import numpy as np
import odd_environments  # noqa: F401  registers the tasks
import pytest
import torch
from comparing import same_bits
from pydantic import ValidationError
from runs import outcome
from scipy import stats
from torch.nn import functional
from typer.testing import CliRunner

import roundoff
from roundoff.agents import Quantization, RunError, TrainConfig, quantize, train
from roundoff.agents.algorithms.dqn.agent import DQN as DQNAgent
from roundoff.agents.algorithms.drq.agent import DrQ
from roundoff.agents.quantization.products import QuantizedProducts
from roundoff.agents.run import checkpoint
from roundoff.agents.run.loop import Run
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.analysis.tables.quantized import of_run, over_runs, paired_interval
from roundoff.cli import app
from roundoff.formats import FormatError

IN = ["fp16", "quarl4", "int8_ax0", "int4", "mxfp4", {"format": "e4m3", "rounding": "stochastic"}]
SMALL = {"steps": 600, "eval_every": 200, "eval_episodes": 3, "hidden_units": 8, "checkpoint_every": 150}
PPO = {"algorithm": "ppo", "task": "gym:CartPole-v1", "horizon": 64, "batch_size": 32, **SMALL}
DQN = {"algorithm": "dqn", "task": "gym:CartPole-v1", "seed_steps": 50, "batch_size": 8, **SMALL}
SAC = {"algorithm": "sac", "task": "gym:Pendulum-v1", "seed_steps": 20, "batch_size": 8, "action_repeat": 10, **SMALL}


def records(directory, *kinds):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


@pytest.fixture(scope="module")
def ppo(tmp_path_factory):
    """A run of PPO, with all of ``IN``."""
    folder = tmp_path_factory.mktemp("ppo") / "run"
    train(TrainConfig(**PPO, evaluate_in=IN), folder)
    return folder


class TestGrammar:
    @pytest.mark.parametrize("given", [*IN, "posit8", "nvfp4", {"weights": "int4_ax0"}, {"preset": "fp8-rowwise"}])
    def test_goes_back_and_forth(self, given):
        parsed = Quantization.parse(given)
        assert Quantization.parse(str(parsed)) == Quantization.parse(parsed.as_json()) == parsed
        assert json.loads(json.dumps(parsed.as_json())) == parsed.as_json()

    def test_says_what_is_rounded(self):
        weights_alone, both, everything = map(Quantization.parse, ("quarl8", "int8", "fp16"))
        assert (str(weights_alone.weights), weights_alone.activations, weights_alone.policy) == ("quarl8", None, None)
        assert str(both.weights) == str(both.activations) == "int8"
        assert everything.weights is everything.activations is None
        assert str(everything.policy.format) == "e5m10"

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("int8_ax1", "_ax0"), ("mxfp4_ax0", "a product sums over"), ("nonsense", "unknown format"),
            ({}, "mapping"), (8, "such as fp16"), ({"rounding": "up"}, "format"), ("{weights", "JSON"),
        ],
    )  # fmt: skip
    def test_mistakes_are_told(self, given, why):
        with pytest.raises(FormatError, match=why):
            Quantization.parse(given)


class TestProducts:
    """What products are given, against operands that NumPy has rounded."""

    X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    W = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 0.1, 3.0, 0.01])
    IMAGES = torch.rand(3, 2, 6, 6, generator=torch.Generator().manual_seed(2))
    FILTERS = torch.randn(7, 2, 3, 3, generator=torch.Generator().manual_seed(3))

    @staticmethod
    def symmetric(x, axes, largest):
        x = x.numpy().astype(np.float64)
        scale = (np.abs(x).max(axis=axes, keepdims=True) / largest).astype(np.float32)
        x = x.astype(np.float32)
        return torch.from_numpy(np.rint(x * (np.float32(1) / scale)).clip(-largest, largest) * scale)

    @pytest.mark.parametrize(
        ("name", "largest", "of_weight", "of_filters"),
        [("int8", 127, None, None), ("int4_ax0", 7, 0, (1, 2, 3)), ("int8_row", 127, 0, 1)],
    )
    def test_of_integers(self, name, largest, of_weight, of_filters):
        x, w = self.symmetric(self.X, 1, largest), self.symmetric(self.W, of_weight, largest)
        images = self.symmetric(self.IMAGES, 1 if "row" in name else (1, 2, 3), largest)
        filters = self.symmetric(self.FILTERS, of_filters, largest)
        bias = torch.ones(4)
        with QuantizedProducts(Quantization.parse(name), [self.W]):
            found = (
                self.X @ self.W,
                functional.linear(self.X, self.W.T, bias),
                functional.conv2d(self.IMAGES, self.FILTERS),
            )
        assert same_bits(found[0], x @ w)
        assert same_bits(found[1], torch.addmm(bias, x, w))
        assert torch.allclose(found[2], functional.conv2d(images, filters), atol=1e-5)

    def test_of_transposed_filters_by_output_channel(self):
        filters = torch.randn(2, 7, 3, 3, generator=torch.Generator().manual_seed(4))
        filters *= torch.logspace(0, -3, 7)[:, None, None]
        images, seen = self.symmetric(self.IMAGES, (1, 2, 3), 7), self.symmetric(filters, (0, 2, 3), 7)
        with QuantizedProducts(Quantization.parse("int4_ax0"), [filters]):
            found = functional.conv_transpose2d(self.IMAGES, filters)
        assert torch.allclose(found, functional.conv_transpose2d(images, seen), atol=1e-5)

    def test_of_quarl_weights_alone_and_filters_by_output_channel(self):
        def by_formula(w, axes):
            w = w.numpy()
            d = (np.abs(w.min(axes, keepdims=True)) + np.abs(w.max(axes, keepdims=True))) / np.float32(16)
            return torch.from_numpy(np.rint(w / d) * d)

        with QuantizedProducts(Quantization.parse("quarl4")):
            found = self.X @ self.W, functional.conv2d(self.IMAGES, self.FILTERS)
        assert same_bits(found[0], self.X @ by_formula(self.W, None))
        assert same_bits(found[1], functional.conv2d(self.IMAGES, by_formula(self.FILTERS, (1, 2, 3))))

    @pytest.mark.parametrize("name", ["int8", "uint8", "int4_ax0", "mxfp4", "nvfp4", "fp8_e4m3_tensor", "posit8"])
    def test_no_observation_depends_on_those_beside_it(self, name):
        quantization = Quantization.parse(name)
        for x, convolution in ((self.X, None), (self.X[None], None), (self.IMAGES, (False, 1))):
            axis = 1 if x.dim() == 3 else 0
            together = quantization.activation(x, convolution=convolution)
            alone = [quantization.activation(one, convolution=convolution) for one in x.split(1, axis)]
            assert same_bits(together, torch.cat(alone, axis))
            assert not same_bits(together, x)

    def test_members_of_an_ensemble_are_networks_of_their_own(self):
        pair = torch.stack([self.W, 100 * self.W])
        for name in ("int8", "quarl4", "nvfp4", "int8_ax0"):
            quantization = Quantization.parse(name)
            assert same_bits(quantization.weight(pair), torch.stack([quantization.weight(one) for one in pair]))

    def test_watched_ranges_make_fixed_scales(self):
        quantization = Quantization.parse("int8_ax0")
        with QuantizedProducts(quantization, watch=True) as products:
            self.X @ self.W
        for factor in (2, 1):
            with products:
                factor * self.X @ self.W
        (low, high) = products.ranges[0]
        assert (low, high) == (2 * self.X.min().item(), 2 * self.X.max().item())
        fixed = quantization.calibrated(products.ranges)
        scale = np.float32(max(-low, high) / 127)
        x = (self.X * (1 / torch.tensor(scale))).round() * scale
        with QuantizedProducts(fixed, [self.W]):
            found = self.X @ self.W
        assert same_bits(found, x @ self.symmetric(self.W, 0, 127))
        unsigned = Quantization.parse("uint8").calibrated([(-1.0, 3.0)]).layers[0]
        assert (unsigned.scale, unsigned.zero_point) == (pytest.approx(4 / 255), 64)
        assert Quantization.parse("quarl8").calibrated([]) == Quantization.parse("quarl8")
        with pytest.raises(FormatError, match="cannot be calibrated"):
            Quantization.parse("mxfp4").calibrated([])

    def test_what_hides_its_products_is_refused(self):
        with (
            torch.no_grad(),
            QuantizedProducts(Quantization.parse("int8")),
            pytest.raises(RunError, match="float format"),
        ):
            functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8))


class TestRuns:
    def test_each_evaluation_runs_again_in_the_same_episodes(self, ppo):
        evaluations, again = records(ppo, "eval"), records(ppo, "eval_in")
        names = [str(Quantization.parse(one)) for one in IN]
        assert [(r["step"], r["in"]) for r in again] == [(e["step"], name) for e in evaluations for name in names]
        assert all(len(r["returns"]) == 3 and r["return_mean"] == pytest.approx(np.mean(r["returns"])) for r in again)
        written = json.loads((ppo / "result.json").read_text())
        assert written["in"] == {r["in"]: r["return_mean"] for r in again[-len(IN) :]}
        assert written["return"] == evaluations[-1]["return_mean"]

    def test_fp32_is_the_policy_itself(self, tmp_path):
        train(TrainConfig(**DQN, evaluate_in=["fp32"]), tmp_path)
        for one, again in zip(records(tmp_path, "eval"), records(tmp_path, "eval_in"), strict=True):
            assert one["returns"] == again["returns"]

    @pytest.mark.parametrize("keys", [PPO, DQN | {"format": "e5m10", "observe": True}, SAC | {"format": "e5m7"}])
    def test_training_and_its_evaluations_are_as_without(self, keys, tmp_path):
        keys = keys | {"steps": 240, "eval_every": 120}
        train(TrainConfig(**keys), tmp_path / "without")
        train(TrainConfig(**keys, evaluate_in=["quarl4", "int8_ax0", "e4m3"]), tmp_path / "with")
        without, with_it = outcome(tmp_path / "without"), outcome(tmp_path / "with")
        assert without["weights"] == with_it["weights"]
        assert without.get("numerics.csv") == with_it.get("numerics.csv")
        lines = [line for line in with_it["metrics.jsonl"].splitlines() if b'"eval_in"' not in line]
        assert lines == without["metrics.jsonl"].splitlines()
        result = json.loads(with_it["result.json"])
        assert result.pop("in").keys() == {"quarl4", "int8_ax0", "e4m3"}
        assert result == json.loads(without["result.json"])

    def test_a_run_without_has_the_config_it_ever_had(self):
        assert "evaluate_in" not in TrainConfig(**PPO).as_json()
        assert TrainConfig(**PPO, evaluate_in=["fp16"]).as_json()["evaluate_in"] == ["e5m10"]

    @pytest.mark.parametrize("keys", [PPO | {"format": "e5m7"}, DQN], ids=["ppo", "dqn"])
    def test_stopped_anywhere_it_goes_on_to_the_same_bytes(self, keys, tmp_path, monkeypatch):
        config = TrainConfig(**keys, evaluate_in=[IN[1], IN[2], IN[-1]])
        train(config, tmp_path / "whole")
        stop, evaluate = StopRequest(), Run._evaluate

        def then_stop(self):
            crash = evaluate(self)
            stop.make()
            return crash

        with monkeypatch.context() as patched, pytest.raises(Stopped):
            patched.setattr(Run, "_evaluate", then_stop)
            train(config, tmp_path / "stopped", stop=stop)
        saved = tmp_path / "stopped" / "checkpoint.pt"
        assert checkpoint.load(saved)["step"] < 600
        train(config, tmp_path / "stopped")
        assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")

    @pytest.mark.usefixtures("forked_interpreters")
    def test_the_leader_of_several_learners_evaluates(self, tmp_path):
        train(TrainConfig(**PPO, environments=2, learners=2, evaluate_in=["int8"]), tmp_path)
        assert len(records(tmp_path, "eval")) == len(records(tmp_path, "eval_in")) > 0

    def test_a_non_finite_action_scores_nothing_and_is_no_crash_of_the_run(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Quantization, "weight", lambda _, w, **__: w * torch.nan)
        result = train(TrainConfig(**SAC, evaluate_in=["int8"]), tmp_path)
        assert (result.status, result.quantized) == ("done", {"int8": 0.0})
        for record in records(tmp_path, "eval_in"):
            assert (record["returns"], record["return_mean"], record["crashed"]) == ([], 0.0, True)

    @pytest.mark.parametrize(
        ("keys", "why"),
        [
            ({"evaluate_in": "int8"}, "must be a list"),
            ({"evaluate_in": ["int8", "int8"]}, "is given twice"),
            ({"evaluate_in": ["fp16", "e5m10"]}, "is given twice"),
            ({"evaluate_in": ["int8_ax1"]}, "_ax0"),
            ({"evaluate_in": ["e11m40"]}, "does not fit in torch.float32"),
            ({"evaluate_in": ["int8"], "native": True, "format": "fp16"}, "native: true runs without"),
        ],
    )
    def test_mistakes_are_told(self, keys, why):
        with pytest.raises(ValidationError, match=why):
            TrainConfig(**PPO | keys)


class TestLearners:
    IMAGES = torch.rand(4, 9, 15, 15, generator=torch.Generator().manual_seed(0))

    @pytest.fixture
    def drq(self):
        keys = {"image_size": 15, "filters": 2, "feature_size": 5, "hidden_units": 8, "weight_standardization": "units"}
        return DrQ(2, TrainConfig(algorithm="drq", **keys), torch.device("cpu"))

    def test_a_float_format_is_the_whole_inference_on_rounded_parameters(self, drq):
        before = drq.weights()["critic"].clone()
        quantization = Quantization.parse("e5m4")
        images = quantization.number(self.IMAGES)
        found = drq.quantized(quantization).act(images, deterministic=True)
        assert same_bits(drq.weights()["critic"], before)
        for network in drq.networks.values():
            network.flat.copy_(roundoff.round(network.flat, "e5m4"))
        with torch.no_grad(), roundoff.simulate("e5m4"):
            assert same_bits(found, drq.best_actions(images))

    def test_in_a_float_format_atoms_are_numbers_of_it(self):
        keys = {"algorithm": "dqn", "atoms": 7, "v_min": -1.0, "v_max": 1.0, "hidden_units": 8}
        learner = DQNAgent((4,), 2, TrainConfig(**keys), torch.device("cpu"))
        atoms = learner.quantized(Quantization.parse("e4m1")).atoms
        assert same_bits(atoms, roundoff.round(learner.atoms, "e4m1"))
        assert not same_bits(atoms, learner.atoms)

    def test_weights_are_rounded_as_their_products_get_them(self, drq, monkeypatch):
        """Weights of the linear layer are standardized before they are rounded."""
        seen, weight = [], Quantization.weight
        monkeypatch.setattr(Quantization, "weight", lambda self, w, **how: seen.append(w) or weight(self, w, **how))
        acting = drq.quantized(Quantization.parse("quarl3"))
        assert not same_bits(acting.act(self.IMAGES, deterministic=True), drq.act(self.IMAGES, deterministic=True))
        acting.act(self.IMAGES, deterministic=True)
        assert [w.dim() for w in seen[:4]] == [4, 4, 4, 4]
        linear = [w for w in seen if w.shape[-1] == 5]
        assert len(linear) == 2  # computed anew by each inference, the others are rounded once
        assert torch.allclose(linear[0].norm(dim=0), linear[0].norm(dim=0)[0].expand(5), rtol=1e-3)
        assert len(seen) == 4 + 2 + 3 * 2  # perceptrons, each an ensemble of one


class TestAdapters:
    def test_evaluate_quantized_and_learn_as_without(self, tmp_path):
        pytest.importorskip("stable_baselines3")
        keys = {"algorithm": "sb3:PPO", "task": "gym:CartPole-v1", "steps": 200, "eval_every": 100, "eval_episodes": 2}
        keys["options"] = {"n_steps": 50, "n_epochs": 1, "batch_size": 25}
        train(TrainConfig(**keys), tmp_path / "without")
        train(TrainConfig(**keys, evaluate_in=["fp32", "e4m3", "int8_ax0"]), tmp_path / "with")
        without, with_it = outcome(tmp_path / "without"), outcome(tmp_path / "with")
        assert without["weights"] == with_it["weights"]
        lines = [line for line in with_it["metrics.jsonl"].splitlines() if b'"eval_in"' not in line]
        assert lines == without["metrics.jsonl"].splitlines()
        again = records(tmp_path / "with", "eval_in")
        one = records(tmp_path / "with", "eval")
        assert [r["returns"] for r in again if r["in"] == "fp32"] == [r["returns"] for r in one]
        found = quantize(tmp_path / "with", [Quantization.parse("e4m3"), Quantization.parse("int8_ax0")])
        assert list(found.original.returns) == one[-1]["returns"]
        for name in ("e4m3", "int8_ax0"):
            assert list(found.quantized[name].returns) == [r["returns"] for r in again if r["in"] == name][-1]
        fixed = quantize(tmp_path / "with", [Quantization.parse("int2_ax0")], calibrate=1)
        assert len(fixed.quantized["int2_ax0"].returns) == 2


class TestFinishedRuns:
    def test_gives_what_the_run_has_evaluated(self, ppo):
        """Weights and episodes are the run's; random bits of stochastic rounding depend on how much was learned."""
        found = quantize(ppo, [Quantization.parse(one) for one in IN])
        assert list(found.original.returns) == records(ppo, "eval")[-1]["returns"]
        by_name = {r["in"]: r["returns"] for r in records(ppo, "eval_in")[-len(IN) :]}
        for name, evaluation in list(found.quantized.items())[:-1]:
            assert list(evaluation.returns) == by_name[name]

    def test_more_episodes_begin_with_the_same_ones(self, ppo):
        few, many = (quantize(ppo, [Quantization.parse("quarl2")], episodes=n) for n in (3, 5))
        assert many.original.returns[:3] == few.original.returns
        assert many.quantized["quarl2"].returns[:3] == few.quantized["quarl2"].returns

    def test_of_planes(self, tmp_path):
        pytest.importorskip("minatar")
        keys = DQN | {"task": "minatar:breakout", "steps": 60}
        train(TrainConfig(**keys, evaluate_in=["quarl4", "int8_ax0"]), tmp_path)
        found = quantize(tmp_path, [Quantization.parse("int8_ax0"), Quantization.parse("fp16")], calibrate=2)
        assert list(found.original.returns) == records(tmp_path, "eval")[-1]["returns"]
        assert len(found.quantized["int8_ax0"].returns) == 3

    def test_calibration_fixes_scales_by_other_episodes(self, ppo, monkeypatch):
        given, calibrated = [], Quantization.calibrated
        monkeypatch.setattr(Quantization, "calibrated", lambda one, of: given.append(of) or calibrated(one, of))
        watched, used = [], QuantizedProducts.__init__
        monkeypatch.setattr(
            QuantizedProducts, "__init__", lambda own, q, *a, **k: watched.append(q.layers) or used(own, q, *a, **k)
        )
        quantize(ppo, [Quantization.parse("int3_ax0")], calibrate=2)
        ranges = given[-1]
        assert len(ranges) == 3  # two hidden layers and the output
        assert all(-1 <= low < high <= 1 for low, high in ranges[1:])  # behind tanh
        assert watched == [(), calibrated(Quantization.parse("int3_ax0"), ranges).layers]

    def test_the_command_writes_a_table(self, ppo, tmp_path):
        folder = tmp_path / "sweep"
        for name in ("one", "two"):
            shutil.copytree(ppo, folder / name)
        (folder / "two" / "result.json").rename(tmp_path / "result.json")
        done = CliRunner().invoke(app, ["quantize", str(folder), "--in", "int8", "--in", "quarl2", "--episodes", "4"])
        assert done.exit_code == 0, done.output
        lines = (folder / "quantized.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in lines] == ["run", "one", "one"]
        assert "1 runs are not done" in done.output
        shutil.move(tmp_path / "result.json", folder / "two" / "result.json")
        done = CliRunner().invoke(app, ["quantize", str(folder), "--in", "quarl2"])
        assert done.exit_code == 0, done.output
        row = done.output.splitlines()[-2]
        assert row.split("|")[1].strip() == "quarl2"
        assert "| 2 " in row

    @pytest.mark.parametrize(
        ("damage", "arguments", "why"),
        [
            ("config.json", ["--in", "int8"], "holds no run"),
            ("result.json", ["--in", "int8"], "has not ended"),
            (None, ["--in", "int99"], "out of range"),
            (None, ["--in", "e11m40"], "does not fit"),
            (None, ["--in", "mxfp4", "--calibrate", "2"], "cannot be calibrated"),
            ("algorithm", ["--in", "int8"], "another algorithm"),
            ("crashed", ["--in", "int8"], "crashed at step 5"),
        ],
    )
    def test_mistakes_are_one_message(self, ppo, tmp_path, damage, arguments, why):
        folder = tmp_path / "run"
        shutil.copytree(ppo, folder)
        if damage == "algorithm":
            content = json.loads((folder / "config.json").read_text())
            content["config"] = TrainConfig(**DQN).as_json()
            (folder / "config.json").write_text(json.dumps(content))
        elif damage == "crashed":
            result = {"status": "crashed", "return": 0, "return_std": 0, "step": 5, "crash": {"step": 5, "reason": "x"}}
            (folder / "result.json").write_text(json.dumps(result))
        elif damage:
            (folder / damage).unlink()
        with pytest.raises(roundoff.RoundoffError, match=why) as caught:
            CliRunner().invoke(app, ["quantize", str(folder), *arguments], catch_exceptions=False)
        assert "\n" not in str(caught.value)
        assert not (folder / "quantized.csv").exists()


class TestIntervals:
    def test_are_students_of_the_differences(self):
        before, after = [1.0, 5.0, 2.0, 8.0], [0.0, 5.0, 1.0, 4.0]
        numbers = of_run(before, after)
        test = stats.ttest_rel(after, before).confidence_interval(0.95)
        assert (numbers["difference"], numbers["low"], numbers["high"]) == pytest.approx((-1.5, test.low, test.high))
        assert of_run(before, (), crashed=True)["return"] == 0
        assert np.isnan(paired_interval([1.0])).all()

    def test_over_runs_of_several_seeds_are_of_their_means(self):
        about = {"algorithm": "ppo", "task": "t", "format": "fp32", "condition": "", "in": "int8"}
        rows = [{**about, **of_run([0.0, 2.0], after)} for after in ([1.0, 2.0], [1.0, 4.0], [0.0, 2.0])]
        (row,) = over_runs(rows).to_dict("records")
        test = stats.ttest_1samp([0.5, 1.5, 0.0], 0).confidence_interval(0.95)
        assert (row["low"], row["high"], row["runs"]) == (pytest.approx(test.low), pytest.approx(test.high), 3)
        other = {**about, "condition": "atoms 51", **of_run([5.0], [4.0])}
        assert over_runs([*rows, other])["runs"].tolist() == [3, 1]
