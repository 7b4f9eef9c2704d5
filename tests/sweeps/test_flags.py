"""Programs that read flags: what argparse says are the keys of a sweep."""

import sys

import pytest

from roundoff.sweeps import SweepError, SweepFileError, plan_text
from roundoff.sweeps.programs.run import run_program

PARSER = """
import argparse
import torch
import roundoff

def {maker}:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="here")
    parser.add_argument("--lr", "--learning-rate", type=float, default="0.5")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4])
    parser.add_argument("--tag", action="append")
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--no-bias", action="store_false", dest="bias")
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("-v", action="count", default=0)
    parser.add_argument("--scale", type=lambda text: 2 * float(text), default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--resume")
"""
AFTER = {
    "takes them": ("parser()", "    return parser\n", "def main(args):"),
    "is annotated": ("parser()", "    return parser\n", "def main(given: argparse.Namespace):\n    args = given"),
    "beside a reader": ("get_args()", "    return parser.parse_args()\n", "def main(args):"),
    "reads": ("main()", "    args = parser.parse_args()", ""),
    "reads by another": ("get_args()", "    return parser.parse_args()\n", "def main():\n    args = get_args()"),
}
BODY = """
    third = torch.tensor(1.0) / 3
    roundoff.log(1, loss=third * args.lr)
    roundoff.log(2, loss=third * args.lr + vars(args)["epochs"])
    main.seen = args
"""


def written(folder, how):
    maker, middle, head = AFTER[how]
    (folder / "train.py").write_text(PARSER.format(maker=maker) + middle + "\n" + head + BODY)


def planned(folder, keys="", program="train.py:main"):
    return plan_text(f"program: {program}\nmetric: {{name: loss, goal: minimize}}\n{keys}", str(folder / "sweep.yaml"))


@pytest.mark.parametrize("how", AFTER)
def test_flags_are_keys(how, tmp_path):
    written(tmp_path, how)
    keys = (
        "base: {lr: 0.25, optimizer: adam, sizes: [1, 2], tag: [a, -b], nesterov: true, bias: false, amp: false,"
        " v: 2, scale: 3, data: there, seed: 5}\ngrid: {epochs: [1, 2], format: [fp32, e5m2]}"
    )
    plan = planned(tmp_path, keys)
    assert len(plan.runs) == 4
    result = run_program(plan.runs[-1].config, plan.metric, tmp_path / "run")
    assert result["return"] == 2.0  # 1/3 in e5m2 is 0.3125, a quarter of it is no multiple of 1/2 beside 2


@pytest.mark.parametrize("how", AFTER)
def test_what_is_not_given_is_the_parsers_default(how, tmp_path):
    written(tmp_path, how)
    plan = planned(tmp_path, "base: {tag: [a, -b], scale: 3, sizes: [1, 2], data: there}")
    before = list(sys.argv)
    result = run_program(plan.runs[0].config, plan.metric, tmp_path / "run")
    assert sys.argv == before
    assert result["return"] == pytest.approx(1 / 6 + 3)
    module = next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(tmp_path / "train.py"))
    assert vars(module.main.seen) == {
        "data": "there", "lr": 0.5, "epochs": 3, "optimizer": "sgd", "sizes": [1, 2], "tag": ["a", "-b"],
        "nesterov": False, "bias": True, "amp": True, "v": 0, "scale": 6.0, "seed": 0, "resume": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("base: {learning: 1}", "learning"),
        ("base: {lr: fast}", "lr.*number"),
        ("base: {epochs: 1.5}", "epochs"),
        ("base: {optimizer: lion}", "sgd"),
        ("base: {nesterov: 1}", "nesterov"),
        ("base: {sizes: 3}", "sizes"),
    ],
)
def test_wrong_values_are_told_by_the_plan(keys, message, tmp_path):
    written(tmp_path, "takes them")
    with pytest.raises(SweepFileError, match=message):
        planned(tmp_path, keys)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def main(args): pass", "no parser is found beside it.*def parser"),
        ("a = argparse.ArgumentParser()\nb = argparse.ArgumentParser()\ndef main(args): pass", "several parsers.*a, b"),
        (
            "a = argparse.ArgumentParser()\na.add_argument('--policy')\ndef main(args): pass",
            "--policy has the name of a",
        ),
        ("a = argparse.ArgumentParser()\na.add_argument('--x', type=bool)\ndef main(args): pass", "--x has type=bool"),
        (
            "a = argparse.ArgumentParser()\na.add_argument('in-file')\ndef main(args): pass",
            "in-file cannot be the name",
        ),
        ("a = argparse.ArgumentParser()\na.add_subparsers().add_parser('b')\ndef main(args): pass", "sub-commands"),
        (
            "def main():\n    p = argparse.ArgumentParser()\n    if 0: p.parse_args()",
            "main makes a parser, but neither",
        ),
        (
            "def main():\n    1 / 0\n    argparse.ArgumentParser().parse_args()",
            "before it reads its flags, ZeroDivisionError: .*train.py:3",
        ),
        (
            "def main():\n    raise SystemExit('no data')\n    argparse.ArgumentParser().parse_args()",
            "before it reads its flags, it called sys.exit..no data",
        ),
    ],
)
def test_what_cannot_be_keys_is_told_by_the_plan(code, message, tmp_path):
    (tmp_path / "train.py").write_text(f"import argparse\n{code}\n")
    with pytest.raises(SweepError, match=message):
        planned(tmp_path)


def test_functions_of_other_programs_stay_what_they_are(tmp_path):
    """A parameter called args of a program without argparse is a key like any other; so is one with a default."""
    (tmp_path / "train.py").write_text("def main(args):\n    return {'loss': args}\n")
    (tmp_path / "other.py").write_text("import argparse\ndef main(args=3):\n    return {'loss': args}\n")
    plan = planned(tmp_path, "base: {args: 2}")
    assert run_program(plan.runs[0].config, plan.metric, tmp_path / "run")["return"] == 2
    plan = planned(tmp_path, program="other.py:main")
    assert run_program(plan.runs[0].config, plan.metric, tmp_path / "other")["return"] == 3
