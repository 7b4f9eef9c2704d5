"""Algorithms are found by their folders; a key that comes later changes no run that exists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from roundoff.agents import FIXES, RunError, TrainConfig, train
from roundoff.agents.config import registry, train_config
from roundoff.agents.config.fields import KeyRole, key, role_of
from roundoff.agents.config.registry import keys
from roundoff.agents.config.train_config import ALGORITHMS, config_class, config_of
from roundoff.sweeps.subjects.subject import run_id

ROOT = Path(__file__).parents[2]


def later(role):
    """SAC's configs with one key more."""

    class LaterConfig(config_of("sac")):
        novelty: float = key(0.5, "What nobody had before.", role)

    return LaterConfig


@pytest.fixture
def with_later_key(monkeypatch):
    def add(role=KeyRole.LATER):
        found = later(role)
        monkeypatch.setattr(train_config, "config_of", lambda name: found if name == "sac" else config_of(name))

    return add


def test_a_key_that_comes_later_changes_no_identity_at_its_default(with_later_key):
    before = TrainConfig(format="e5m6", seed=3, lr=1e-3)
    with_later_key()
    after = TrainConfig(format="e5m6", seed=3, lr=1e-3)
    assert after.novelty == 0.5
    assert run_id(after) == run_id(before)
    assert after.as_json() == before.as_json()
    assert TrainConfig(**after.as_json()) == after
    other = TrainConfig(format="e5m6", seed=3, lr=1e-3, novelty=0.7)
    assert run_id(other) != run_id(before)
    assert other.as_json()["novelty"] == 0.7


def test_without_the_role_it_would(with_later_key):
    before = run_id(TrainConfig())
    with_later_key(KeyRole.TIMELESS)
    assert run_id(TrainConfig()) != before


TINY = {
    "task": "cartpole_swingup", "hidden_units": 8, "batch_size": 8, "steps": 400, "action_repeat": 8, "seed_steps": 10,
    "eval_every": 200, "eval_episodes": 1,
}  # fmt: skip


def test_a_folder_made_before_the_key_is_continued_and_guarded(tmp_path, with_later_key):
    config = TrainConfig(**TINY)
    result = train(config, tmp_path / "run")
    kept = (tmp_path / "run" / "config.json").read_bytes()
    with_later_key()
    assert train(TrainConfig(**TINY), tmp_path / "run") == result
    assert (tmp_path / "run" / "config.json").read_bytes() == kept
    with pytest.raises(RunError, match=r"novelty is 0\.5 there and 0\.7 here"):
        train(TrainConfig(**TINY, novelty=0.7), tmp_path / "run")


def test_every_algorithm_is_a_folder_with_keys_panels_and_a_learner():
    assert {"sac", "drq", "td3", "d4pg", "ppo", "a2c"} <= set(ALGORITHMS)
    for name in ALGORITHMS:
        config = TrainConfig(algorithm=name)
        assert type(config) is config_of(name)
        assert config.algorithm == name
        assert TrainConfig(**config.as_json()) == config
        assert registry.leading(config.as_json()) == ("actor" if name in ("ppo", "a2c") else "critic")
    assert "q" in registry.panels()


def test_keys_of_one_name_are_of_one_kind_in_all_algorithms():
    for name in keys():
        fields = list(registry.fields_of(name).values())
        assert all(field.description for field in fields), name
        kinds = {(str(field.annotation), str(field.metadata), role_of(field) & ~KeyRole.LATER) for field in fields}
        assert len(kinds) == 1, (name, kinds)


def test_roles_are_those_of_the_keys():
    execution = {"device", "threads", "checkpoint_every", "environment_workers", "evaluate_in"}
    assert registry.keys_with(KeyRole.EXECUTION) == execution
    assert registry.keys_with(KeyRole.ARITHMETIC) == {
        "format", "policy", "native", "observe", "qat", "reward_scale", "rollouts", "storage",
    }  # fmt: skip
    assert registry.keys_with(KeyRole.DATA) == {"lr", "discount", "tau", "initial_temperature"}
    assert {"seed", "task", "steps"} <= registry.keys_with(KeyRole.OUTSIDE_UPDATES)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithm": "tdd3"}, ['unknown algorithm "tdd3"', 'did you mean "td3"']),
        ({"algorithm": "td3", "initial_temperature": 0.1}, ["initial_temperature is a key of", "sac", "not of td3"]),
        ({"policy_noise": 0.1}, ["policy_noise is a key of td3", "set algorithm: td3"]),
        ({"algorithm": "sac", "observations": "pixels"}, ["observations: pixels and algorithm: drq go together"]),
        ({"algorithm": "drq", "observations": "states"}, ["go together"]),
        ({"algorithm": 3}, ["algorithm", "valid string"]),
    ],
)
def test_what_does_not_go_together_is_refused(keys, words):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(**keys)
    assert all(word in str(caught.value) for word in words)


def test_configs_without_an_algorithm_are_those_of_before():
    assert TrainConfig().algorithm == "sac"
    assert TrainConfig(observations="pixels").algorithm == "drq"
    assert TrainConfig(algorithm="drq") == TrainConfig(observations="pixels")
    for config in (TrainConfig(), TrainConfig(observations="pixels")):
        assert "algorithm" not in config.as_json()
    assert TrainConfig(algorithm="td3").as_json()["algorithm"] == "td3"


def test_the_registry_imports_no_pytorch():
    program = "import sys; from roundoff.agents.config import registry as r; r.keys(), r.panels(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "roundoff.agents.algorithms.td3.settings" in modules
    assert not {"torch", "dm_control", "roundoff.agents.algorithms.td3.agent"} & set(modules)


def test_no_fix_and_no_metric_of_an_algorithm_is_named_elsewhere():
    """Outside of the algorithms' folders, of the fixes themselves and of what the paper is reproduced with."""
    words = [*FIXES, "log_temperature", "td_error", "critic_loss", "actor_loss", "entropy_loss", "target_entropy"]
    pattern = re.compile(r"[\"'](" + "|".join(words) + r")(_loss_scale)?[\"']")
    allowed = {"agents/config/fixes.py", "agents/optimizers/network_optimizer.py", "agents/algorithms/learner.py"}
    found = []
    for folder in ("agents", "sweeps", "analysis"):
        for path in (ROOT / folder).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            own = place.startswith("agents/algorithms/") and place != "agents/algorithms/learner.py"
            if not own and place not in allowed and not place.startswith("analysis/paper/"):
                found += [f"{place}: {match[0]}" for match in pattern.finditer(path.read_text(encoding="utf-8"))]
    assert [entry for entry in found if "twin_critics" not in entry] == []


def test_a_config_in_a_file_says_the_algorithm(tmp_path):
    config = TrainConfig(algorithm="td3", **{name: value for name, value in TINY.items() if name != "task"})
    train(config, tmp_path)
    kept = json.loads((tmp_path / "config.json").read_text())["config"]
    assert TrainConfig(**kept) == config


LATER = {
    "learners": 1, "asynchronous": False, "communicate_every": 1, "communicate": None, "optimizer": "adam",
    "training_intensity": None, "random_start": 0, "clip_rewards": False,
    "evaluate_in": (), "qat": None, "storage": None, "reward_scale": 1.0, "perturb": 0, "evaluation": "deterministic",
}  # fmt: skip


def test_what_a_config_leaves_unsaid(with_later_key):
    with_later_key()
    off_policy = {"sampler_learner": None, **LATER}
    assert config_class({"task": "walker_walk"}).unsaid() == {"algorithm": "sac", "novelty": 0.5, **off_policy}
    assert config_class({"observations": "pixels"}).unsaid()["algorithm"] == "drq"
    assert config_class({"algorithm": "td3"}).unsaid() == {"actors": None, **off_policy}
