"""What a run may be told, and what it answers when told something else."""

import re
import subprocess
import sys
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from roundoff.agents.config.actor_keys import ActorKeys
from roundoff.agents.config.fixes import FIXES, parse_fixes
from roundoff.agents.config.registry import keys
from roundoff.agents.config.rules import RULES, KeyRule, check
from roundoff.agents.config.train_config import ALGORITHMS, LIBRARIES, TrainConfig, config_of
from roundoff.agents.environments.tasks import TASKS
from roundoff.formats import Format
from roundoff.sweeps.subjects.program_keys import ArithmeticKeys
from roundoff.sweeps.subjects.subject import adapter_of


def test_defaults_are_the_papers():
    config = TrainConfig()
    assert (config.discount, config.lr, config.tau, config.batch_size) == (0.99, 1e-4, 0.005, 1024)
    assert (config.initial_temperature, config.target_update_every, config.seed_steps) == (0.1, 2, 5000)
    assert (config.log_sigma_min, config.log_sigma_max) == (-5, 2)
    assert (config.initial_loss_scale, config.loss_scale_growth_interval) == (1e4, 10_000)
    assert config.fixes == FIXES


def test_everything_is_stored_in_canonical_form():
    config = TrainConfig(format=" FP16 ", fixes=["kahan_gradients", "hadam"], lr=1)
    assert config.format == "e5m10"
    assert config.fixes == ("hadam", "kahan_gradients")
    assert isinstance(config.lr, float)
    assert TrainConfig(**config.as_json()) == config
    assert list(config.as_json()) == sorted(config.as_json())


@given(st.sets(st.sampled_from(FIXES)).flatmap(lambda names: st.permutations(sorted(names))))
def test_any_subset_of_the_fixes_is_a_selection(names):
    assert set(parse_fixes(names)) == set(names)
    assert parse_fixes(names) == parse_fixes(list(reversed(names)))


def test_all_and_none():
    assert parse_fixes("all") == FIXES
    assert parse_fixes("none") == parse_fixes([]) == ()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"task": "cartpole_swingupp"}, ["unknown task", "cartpole_swingup"]),
        ({"task": "zzz"}, ["allowed are", "walker_walk"]),
        ({"format": "e5m99"}, ["e5m99"]),
        ({"format": "nonsense"}, ["nonsense"]),
        ({"policy": "everything"}, ["policy.preset must be every-op", "got 'everything'"]),
        ({"policy": {"rules": [{"operation": "mm", "format": "e5m1O"}]}}, ["policy.rules[0]", "e5m1O"]),
        ({"policy": {"format": "e5m10"}}, ["set the key format"]),
        ({"policy": 3}, ["policy must be a mapping"]),
        ({"fixes": ["hadm"]}, ["hadm", 'did you mean "hadam"']),
        ({"fixes": "hadam"}, ["must be a list", "[hadam]"]),
        ({"fixes": ["hadam", "hadam"]}, ["twice"]),
        ({"fixes": 3}, ["got 3"]),
        ({"lr": "3e-4"}, ["lr", "valid number"]),
        ({"lr": True}, ["valid number"]),
        ({"lr": 0}, ["greater than 0"]),
        ({"lr": float("nan")}, ["finite"]),
        ({"steps": 1.5}, ["steps", "integer"]),
        ({"steps": True}, ["integer"]),
        ({"steps": 0}, ["greater than or equal to 1"]),
        ({"seed": -1}, ["seed"]),
        ({"discount": 1.1}, ["less than or equal to 1"]),
        ({"adam_beta1": 1}, ["less than 1"]),
        ({"log_sigma_min": 2}, ["log_sigma_min must be below log_sigma_max"]),
        ({"device": "gpu"}, ['unknown device "gpu"', "cuda"]),
        ({"learning_rate": 1}, ["learning_rate", "not permitted"]),
    ],
)
def test_bad_values_are_refused_with_the_reason(keys, words):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(**keys)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "least"),
    [
        ({"algorithm": "sac"}, 5001),
        ({"algorithm": "drq", "observations": "pixels"}, 5001),
        ({"algorithm": "td3"}, 1001),
        ({"algorithm": "d4pg"}, 1001),
        ({"algorithm": "d4pg", "atoms": 1, "n_steps": 1}, 1001),
        ({"algorithm": "dqn", "task": "gym:CartPole-v1"}, 1004),  # one update for four transitions
        ({"algorithm": "dqn", "task": "gym:CartPole-v1", "atoms": 51, "prioritized": True}, 1004),
        ({"algorithm": "sac", "seed_steps": 0, "action_repeat": 2}, 1),
        ({"algorithm": "sac", "seed_steps": 7, "learners": 2, "environments": 2}, 9),
    ],
)
def test_runs_in_which_no_update_falls_due_are_refused(keys, least):
    own = keys.get("action_repeat", 1)
    assert TrainConfig(**keys, steps=least * own).steps == least * own
    short = keys | ({"seed_steps": 4} if least == 1 else {"steps": least - 1})
    with pytest.raises(ValidationError, match="nothing would be learned: with seed_steps"):
        TrainConfig(**({"steps": 4 * own} | short))


def test_every_rule_is_about_a_key_and_speaks_of_keys_that_there_are():
    rows = [*RULES, *(rule for name in (*ALGORITHMS, *LIBRARIES) for rule in config_of(name).rules)]
    assert {rule.key for rule in rows} <= {*keys(), *ActorKeys.model_fields}
    for rule in rows:
        owners = [config_of(name) for name in (*ALGORITHMS, *LIBRARIES)] + [ActorKeys]
        places = {place for _, place, _, _ in Formatter().parse(rule.message) if place is not None}
        assert {re.split(r"[.\[]", place)[0] for place in places} <= {"c", "found"}, rule.message
        for name in {place.split(".")[1].split("[")[0] for place in places if place.startswith("c.")}:
            own = [owner for owner in owners if rule.key in owner.model_fields]
            assert any(name in owner.model_fields or hasattr(owner, name) for owner in own), (rule.message, name)


def test_a_row_that_is_met_speaks_and_others_do_not():
    config = TrainConfig()
    check(config, KeyRule(lambda c: c.lr > 1, "lr", "no"), KeyRule(lambda c: True, "horizon", "sac has no such key"))
    with pytest.raises(ValueError, match=r"^lr is 0\.0001, and 3 was found$"):
        check(
            config,
            KeyRule(lambda c: 3, "lr", "lr is {c.lr}, and {found} was found"),
            KeyRule(lambda c: True, "lr", "late"),
        )


def test_no_number_of_things_is_larger_than_tensors_and_threads_can_be():
    for fields in (*(config_of(name).model_fields for name in ALGORITHMS), ArithmeticKeys.model_fields):
        for name, field in fields.items():
            if field.annotation is int:
                with pytest.raises(ValidationError, match="less than"):
                    print(name, adapter_of(field).validate_python(2**63))


def test_a_config_does_not_change_and_takes_no_objects():
    of_mappings = {
        "policy": {"rules": [{"operation": "mm", "format": Format.parse("e5m2")}]},
        "sampler_learner": {"lr": object()},
        "options": {"gamma": object()},
    }
    for name, value in of_mappings.items():
        with pytest.raises(ValidationError, match=f"{name} takes finite numbers, text"):
            TrainConfig(algorithm="sb3:PPO" if name == "options" else "sac", **{name: value})
    with pytest.raises(ValidationError):
        TrainConfig().lr = 1.0


def test_tasks_are_those_of_the_suite():
    from dm_control import suite

    suite_tasks = {f"{domain}_{task}" for domain, task in suite.ALL_TASKS}
    assert suite_tasks - set(TASKS) == {"lqr_lqr_2_1", "lqr_lqr_6_2", "quadruped_escape"}
    assert set(TASKS) <= suite_tasks


def test_checking_a_config_needs_no_simulator():
    program = "import sys; from roundoff.agents import TrainConfig; TrainConfig(format='fp16'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "roundoff.agents.config.train_config" in modules
    assert not {"dm_control", "mujoco", "tensorboard", "roundoff.agents.algorithms.sac.agent"} & set(modules)
