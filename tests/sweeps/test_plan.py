"""Planning: the product of the grid, and every mistake with its place."""

import pytest

from roundoff.agents import FIXES
from roundoff.sweeps import SweepError, SweepFileError, plan_file, plan_text
from roundoff.sweeps.language.plan import plan_run

SMALL = """
name: small
base: {task: cartpole_swingup, steps: 6000, lr: 3e-4}
grid:
  format: [fp32, e5m10]
  seed: [0, 1, 2]
"""


def test_the_plan_is_the_product_in_file_order():
    plan = plan_text(SMALL, "f.yaml")
    assert plan.name == "small"
    assert plan.varying == ("format", "seed")
    assert [(run.config.format, run.config.seed) for run in plan.runs] == [
        ("fp32", 0), ("fp32", 1), ("fp32", 2), ("e5m10", 0), ("e5m10", 1), ("e5m10", 2),
    ]  # fmt: skip
    assert all(run.config.lr == 3e-4 and run.config.steps == 6000 for run in plan.runs)
    assert len({run.id for run in plan.runs}) == 6


def test_a_run_is_known_by_its_config_alone():
    here = plan_text(SMALL, "f").runs[4]
    there = plan_text("grid: {lr: [3e-4], steps: [6000]}\nbase: {seed: 1, format: FP16}", "g").runs[0]
    assert here == there
    assert here.id.startswith("cartpole_swingup-e5m10-s1-")


def test_fp32_under_several_policies_that_leave_it_alone_is_planned_once():
    policies = "policy: [every-op, mixed-precision, fp8-tensorwise, {rules: [{role: optimizer, format: e5m2}]}]"
    plan = plan_text(f"grid: {{{policies}, format: [fp32, e5m10], seed: [0, 1]}}", "f")
    plain = [run.config.policy.get("preset", "") for run in plan.runs if run.config.format == "fp32"]
    assert plain == ["every-op", "every-op", "fp8-tensorwise", "fp8-tensorwise", "", ""]
    assert len(plan.runs) == 6 + 8
    alone = plan_text("base: {policy: every-op}\ngrid: {format: [fp32, e5m10], seed: [0, 1]}", "f")
    assert {run.id for run in alone.runs} <= {run.id for run in plan.runs}


def test_equal_runs_are_planned_once():
    plan = plan_text("name: x\ngrid: {format: [e5m10, fp16], seed: [0]}", "f")
    assert len(plan.runs) == 1


def test_policies_are_swept_like_any_key():
    plan = plan_text(
        "base: {format: e5m10}\n"
        "grid: {policy: [every-op, {granularity: primitive, rules: [{role: optimizer, format: fp32}]}]}",
        "f",
        ["policy=[storage, every-op]"],
    )
    assert [run.config.policy for run in plan.runs] == [{"preset": "storage"}, {"preset": "every-op"}]
    assert len({run.id for run in plan.runs}) == 2


def test_overrides():
    plan = plan_text(
        SMALL, "f", ["seed=7", "steps=[10, 20]", "seed_steps=5", "fixes=[all, none, [hadam, normal_fix]]", "lr=1"]
    )
    assert len(plan.runs) == 2 * 2 * 3
    assert {run.config.seed for run in plan.runs} == {7}
    assert {run.config.lr for run in plan.runs} == {1.0}
    assert {run.config.fixes for run in plan.runs} == {FIXES, (), ("hadam", "normal_fix")}


@pytest.mark.parametrize(
    ("text", "overrides", "messages"),
    [
        ("grid: {formt: [fp32]}", [], ["f:1:8: unknown key in grid 'formt'; did you mean 'format'?"]),
        ("grid: {format: [e5m1O]}", [], ["f:1:17: format: unknown format 'e5m1O'"]),
        ("grid: {format: [e5m77]}", [], ["f:1:17: format:", "significand"]),
        ("grid: {policy: [storag]}", [], ["f:1:17: policy: policy.preset must be every-op", "got 'storag'"]),
        ("base:\n  policy:\n    rules: [{role: fwd, format: e5m2}]", [], ["f:3:5: policy: policy.rules[0]: role of a"]),
        ("base: {task: cartpole_swingupp}", [], ["f:1:14: task: unknown task", "cartpole_swingup"]),
        ("base: {fixes: [hadamm]}", [], ["f:1:15: fixes: unknown fix 'hadamm' (did you mean"]),
        ("base: {fixes: hadam}", [], ["write [hadam]"]),
        ("grid: {fixes: [hadam, normal_fix]}", [], ["f:1:15: fixes: a list holds", "fixes=[[hadam, normal_fix]];"]),
        ("{}", ["fixes=[all, hadam]"], ["is fixes=[[all, hadam]]; a run for each is fixes=[all, [hadam]]"]),
        ("{}", ["fixes=[hadam, hadamm]"], ["write [hadam]", "unknown fixes"]),
        ("base: {hadam: true}", [], ["f:1:8: unknown key in base 'hadam'; fixes are chosen with fixes: [hadam"]),
        ('base: {lr: "3e-4"}', [], ["f:1:12: lr:", "number", "'3e-4'", "without quotes"]),
        ("base: {lr: -1}", [], ["f:1:12: lr: must be greater than 0, got -1"]),
        ("base: {lr: .nan}", [], ["f:1:12: lr:"]),
        ("base: {seed: 1.5}", [], ["f:1:14: seed:"]),
        ("base: {steps: true}", [], ["f:1:15: steps:"]),
        ("base: {seed: 1}\ngrid: {seed: [1, 2]}", [], ["f:2:14: seed is in grid and in base (f:1:14)"]),
        ("grid: {seed: []}", [], ["f:1:14: grid.seed must be a list of at least one value, got []"]),
        ("grid: {seed: 3}", [], ["f:1:14: grid.seed must be a list of at least one value, got 3"]),
        ("grid: {seed: [1, 1]}", [], ["f:1:18: seed: the value 1 is given twice (f:1:15)"]),
        ("grid: [1]", [], ["f:1:7: grid must be a mapping"]),
        ("seed: 3", [], ["f:1:1: unknown key in a sweep 'seed'", "in base or grid"]),
        ("[1, 2]", [], ["f:1:1: a sweep must be a mapping"]),
        ("name: 3", [], ["f:1:7: name must be text of letters, ", "got 3"]),
        ("name: a/b", [], ["f:1:7: name must be text of letters, ", "got 'a/b'"]),
        ("base: {device: gpu}", [], ['f:1:16: device: unknown device "gpu"']),
        ("base: {log_sigma_min: 3, log_sigma_max: 2}", [], ["log_sigma_min must be below log_sigma_max"]),
        ("base: {seed: 1}", ["sede=3"], ["argument 'sede=3': unknown key 'sede'; did you mean 'seed'?"]),
        ("base: {seed: 1}", ["seed"], ["argument 'seed': must have the form key=value"]),
        ("base: {seed: 1}", ["seed=[1, x]"], ["argument 'seed=[1, x]': seed:"]),
        ("base: {seed: 1}", ["seed=[1"], ["argument 'seed=[1': is not YAML"]),
        ("base: {seed: 1}", ["seed=[]"], ["argument 'seed=[]': grid.seed must be a list of at least one value"]),
        ("base: {lr: 0, seed: -1, x: 1}\ngrid: {format: [a, b]}", [], ["1:12", "1:21", "1:25", "2:17", "2:20"]),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(text, overrides, messages):
    with pytest.raises(SweepFileError) as caught:
        plan_text(text, "f", overrides)
    for message in messages:
        assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == len(caught.value.problems)


def test_a_grid_too_large_is_refused_at_once():
    text = f"grid: {{seed: {list(range(1000))}, steps: {list(range(1, 1000))}}}"
    with pytest.raises(SweepFileError, match="999000 runs; at most 100000"):
        plan_text(text, "f")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SweepError, match="No such file"):
        plan_file(tmp_path / "missing.yaml")
    with pytest.raises(SweepError, match="directory"):
        plan_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(SweepError, match="not UTF-8"):
        plan_file(tmp_path / "latin.yaml")


def test_a_single_run(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("lr: 1e-3\nfixes: [hadam]\n")
    config = plan_run(file, ["seed=3", "format=bf16", "fixes=[normal_fix, hadam]"])
    assert (config.lr, config.seed, config.format, config.fixes) == (1e-3, 3, "e8m7", ("hadam", "normal_fix"))
    assert plan_run(None).steps == 500_000
    file.write_text('{"config": {"seed": 4}, "version": "0"}')
    assert plan_run(file).seed == 4
    with pytest.raises(SweepFileError, match=r"run\.yaml:1:1: a run must be a mapping"):
        file.write_text("7")
        plan_run(file)
