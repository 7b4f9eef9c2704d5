"""Programs that read flags: what argparse says are the keys of a sweep."""

import itertools
import sys

import pytest
from each import each

from roundoff.sweeps import SweepError, SweepFileError, plan_text
from roundoff.sweeps.language.located_yaml import parse
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


@pytest.fixture
def fresh(tmp_path):
    """Makes another folder each time, since a process imports a file once."""
    number = itertools.count()

    def made():
        folder = tmp_path / f"folder{next(number)}"
        folder.mkdir()
        return folder

    return made


@each("how", AFTER)
def test_flags_are_keys(how, fresh):
    tmp_path = fresh()
    written(tmp_path, how)
    keys = (
        "base: {lr: 0.25, optimizer: adam, sizes: [1, 2], tag: [a, -b], nesterov: true, bias: false, amp: false,"
        " v: 2, scale: 3, data: there, seed: 5}\ngrid: {epochs: [1, 2], format: [fp32, e5m2]}"
    )
    plan = planned(tmp_path, keys)
    assert len(plan.runs) == 4
    result = run_program(plan.runs[-1].config, plan.metric, tmp_path / "run")
    assert result["return"] == 2.0  # 1/3 in e5m2 is 0.3125, a quarter of it is no multiple of 1/2 beside 2


@each("how", AFTER)
def test_what_is_not_given_is_the_parsers_default(how, fresh):
    tmp_path = fresh()
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


@each(
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
def test_wrong_values_are_told_by_the_plan(keys, message, fresh):
    tmp_path = fresh()
    written(tmp_path, "takes them")
    with pytest.raises(SweepFileError, match=message):
        planned(tmp_path, keys)


@each(
    ("code", "message"),
    [
        ("def main(args): pass", "its file has no parser.*def parser"),
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
def test_what_cannot_be_keys_is_told_by_the_plan(code, message, fresh):
    tmp_path = fresh()
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


FLAGS = """
import argparse, enum, json, pathlib
import roundoff

class Optimizer(enum.Enum):
    adam = "adam"
    sgd = "sgd"

class Upper(argparse.Action):
    def __call__(self, parser, namespace, values, option=None):
        namespace.touched, namespace.x = True, values.upper()

class Pairs(argparse.Action):
    def __call__(self, parser, namespace, values, option=None):
        namespace.x = dict(pair.split("=") for pair in values)

class Switch(argparse.Action):
    def __init__(self, **settings):
        super().__init__(nargs=0, **settings)
    def __call__(self, parser, namespace, values, option=None):
        namespace.x = not option.startswith("--no")

class Never(argparse.Action):
    def __call__(self, parser, namespace, values, option=None):
        parser.error("never " + values)

calls = []
def doubled(text):
    calls.append(text)
    return 2 * float(text)

def switch(text):
    return {"true": True, "false": False}[text]

def parser():
    p = argparse.ArgumentParser(fromfile_prefix_chars="@")
    %s
    return p

def main():
    main.seen = parser().parse_args()
    roundoff.log(0, loss=0.0)
"""
PAIRED = "'--x', action='store_true', default={0}", "'--no-x', dest='x', action='store_false', default={0}"
CONSTANTS = (
    "'--a', dest='x', action='store_const', const='a', default='c'",
    "'--b', dest='x', action='store_const', const='b'",
)
IN_LIST = (
    "'--a', dest='x', action='append_const', const='a', default=['c']",
    "'--b', dest='x', action='append_const', const=2",
)
EXCLUSIVE = (
    "'--z'); g = p.add_mutually_exclusive_group(); g.add_argument('--x', action='store_true'); g.add_argument('--y'"
)
THERE_AND_BACK = [
    *[(flag, value, value) for value in ("true", "false") for flag in (
        "'--x', action='store_true'", "'--x', action='store_false'", "'--x', action='store_true', default=True",
        "'--x', action='store_true', default=argparse.SUPPRESS", "'--x', action=argparse.BooleanOptionalAction",
        "'--x', action=argparse.BooleanOptionalAction, default=True", "'--x', nargs='?', const=True, type=switch",
        "'--x', type=switch, default=True", "'--x', type=lambda text: text == 'True'", "'--x', type=json.loads",
        "'--x', '--no-x', action=Switch, default=False", "'--x', '--no-x', action=Switch, default=True",
        *([one.format(default) for one in PAIRED] for default in (True, False, None)),
    )],
    *[(flag, value, value) for value in ("[]", "['-a', b, '@c']") for flag in (
        "'--x', nargs='*'", "'--x', nargs='*', default=['d']", "'x', nargs='*'", "'x', nargs='*', default=['d']",
        "'x', nargs=argparse.REMAINDER", "'--x', action='append'", "'--x', action='append', default=['d']",
        "'--x', action='extend', nargs='+'", "'--x', action='extend', nargs='+', default=['d']",
    )],
    *[(flag, value, value) for value in ("0", "3") for flag in (
        "'--x', action='count'", "'--x', action='count', default=2", "'--x', type=int, default=5", "'x', type=int",
        "'--x', type=int, nargs='?', const=3", "'x', type=int, nargs='?', default=5", "'--x', type=int, default='auto'",
    )],
    *[(flag, value, value) for value in ("-0.00001", "-2.0", "0.5") for flag in (
        "'--x', type=float, default=0.1", "'--y', '--z', dest='x', type=float, required=True", "'x', type=float",
    )],
    *[(CONSTANTS, value, value) for value in "abc"],
    *[("'--x', action='store_const', const=64, default=256", value, value) for value in ("64", "256")],
    *[(IN_LIST, value, value) for value in ("[]", "[a]", "[2, a, 2]")],
    ("'--x', nargs=2, type=float", "[-0.00001, 1]", "[-1e-5, 1.0]"),
    ("'x', nargs='+', type=int", "[-1, -2]", "[-1, -2]"),
    ("'--x', nargs='+', type=switch", "[true, false]", "[true, false]"),
    ("'--x', action='append', nargs=2, type=int, default=[[1, 2]]", "[[3, 4]]", "[[3, 4]]"),
    ("'--x', nargs='?', const='k', default='d'", "k", "k"),
    ("'--x', choices=[0.1, 0.2], type=float, default=0.1", "0.2", "0.2"),
    ("'--x', choices=range(1000), type=int", "345", "345"),
    ("'--x', choices=['sgd', 'adam'], type=str.lower", "adam", "adam"),
    ("'--x', default='y'", "'--z'", "'--z'"),
    ("'--x', type=int", "null", "null"),
    ("'--x', type=doubled, default=1.0", "null", "null"),
    ("'--x', type=doubled, default=1.0", "3", "6.0"),
    ("'--x', type=doubled, default='nothing'", "3", "6.0"),
    ("'--x', type=lambda text: Optimizer(text).value, choices=['adam']", "adam", "adam"),
    ("'--x', type=json.loads", "{a: [1, null]}", "{a: [1, null]}"),
    ("'--x', type=lambda text: text.split(',')", "'1,2'", "['1', '2']"),
    ("'--x', action=Upper", "abc", "ABC"),
    (["'--x', action=Upper", "'--touched', type=int"], "abc", "ABC"),
    ("'--x', action=Pairs, nargs='+'", "[a=1, b=2]", "{a: '1', b: '2'}"),
]  # fmt: skip


def namespace_of(folder, flags, values):
    flags = [flags] if isinstance(flags, str) else flags
    folder.mkdir()
    (folder / "train.py").write_text(FLAGS % "\n    ".join(f"p.add_argument({flag})" for flag in flags))
    plan = planned(folder, f"base: {values}")
    run_program(plan.runs[0].config, plan.metric, folder / "run")
    return next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(folder / "train.py"))


def test_each_kind_of_flag_gives_the_program_the_value_of_the_sweep(tmp_path):
    def arrives(flags, value, expected):
        module = namespace_of(tmp_path / str(next(number)), flags, f"{{x: {value}}}")
        wanted = parse(expected, "expected").plain()
        assert (module.main.seen.x, type(module.main.seen.x)) == (wanted, type(wanted))
        assert len(module.calls) == (expected == "6.0")

    number = itertools.count()
    each(("flags", "value", "expected"), THERE_AND_BACK)(arrives)()


def test_a_flag_that_would_make_something_else_of_a_value_is_refused(tmp_path):
    def refused(flags, values, message):
        with pytest.raises(SweepError, match=message):
            namespace_of(tmp_path / str(next(number)), flags, values)

    number = itertools.count()
    each(
        ("flags", "values", "message"),
        [
            ("'--x', type=lambda text: text != 'no'", "{x: false}", "--x cannot be False.*makes True"),
            ("'--x', type=lambda text: text.split(',')", "{x: [1, 2]}", r"--x cannot be \[1, 2\]"),
            ("'--x', type=lambda text: 2 * int(text), choices=[2, 4]", "{x: 2}", "--x cannot be 2, since .*makes 4"),
            ("'--x', type=Optimizer", "{x: lion}", "--x cannot be 'lion'.*invalid Optimizer"),
            ("'--x', action=Switch", "{x: 7}", "--x cannot be 7, since its action makes True"),
            ("'--x', action='store_const', const=64, default=256", "{x: true}", "x: must be 64 or 256"),
            ("'--x', action='append_const', const=int", "{x: [int]}", "unknown key"),
            ("'--x', nargs=2, type=int", "{x: [1, 2, 3]}", "x: .*at most 2"),
            ("'--x', nargs='+', type=int", "{x: []}", "x: .*at least 1"),
            ("'--x', choices=[0.1, 0.2], type=float", "{x: 0.3}", "x: must be 0.1 or 0.2"),
            ("'--x', choices=range(1000), type=int", "{x: -1}", r"x: must be one of range\(0, "),
            ("'--x', type=float, default=1.0", "{x: null}", "x: must be a valid number"),
            ("'--x', type=int", "{x: 1.0}", "x: must be a valid integer"),
            ("'--lambda', type=float", "{}", "--lambda cannot be the name of a key"),
            ("'--device', action='store_true'", "{}", "--device has the name of a key"),
            ("'--arithmetic', default='fp32'", "{}", "--arithmetic has the name of a key"),
            (["'--x')\n    p.add_mutually_exclusive_group(required=True).add_argument('--y'"], "{}", "--y is required"),
            ("'--x', action=Pairs, nargs='+'", "{x: [ab]}", r"--x cannot be \['ab'\], since dictionary update"),
            ("'--x', action=Never", "{x: abc}", "never abc"),
            (
                EXCLUSIVE,
                "{x: true, y: '2'}",
                "--x and --y exclude each other",
            ),
        ],
    )(refused)()


PARSER_OF_TWO = """
import argparse
import roundoff
def make():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--tag", default="")
    return p
def end(args):
    end.seen = args.lr, args.tag
    roundoff.log(0, loss=0.0)
"""
TWICE = "pre = argparse.ArgumentParser(); pre.add_argument('--lr', type=float); _, rest = pre.parse_known_args()"
COMPLETING = "def get():\n    args = make().parse_args()\n    args.tag = f'lr {args.lr}'\n    return args\n"


def test_each_way_to_read_flags_gives_the_program_the_value_of_the_sweep(tmp_path):
    def arrives(code, expected):
        folder = tmp_path / str(next(number))
        folder.mkdir()
        (folder / "train.py").write_text(f"{PARSER_OF_TWO}\n{code}\n")
        plan = planned(folder, "base: {lr: 0.5}")
        run_program(plan.runs[0].config, plan.metric, folder / "run")
        module = next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(folder / "train.py"))
        assert module.end.seen == expected

    number = itertools.count()
    each(
        ("code", "expected"),
        [
            ("def main(argv=None): end(make().parse_args(argv))", (0.5, "")),
            ("def main(args=None): end(make().parse_args(args))", (0.5, "")),
            ("def main(argv): end(make().parse_args(argv[1:]))", (0.5, "")),
            ("def main(args): end(make().parse_args(args))", (0.5, "")),
            ("def main(): end(make().parse_known_args()[0])", (0.5, "")),
            ("def main(): end(make().parse_intermixed_args())", (0.5, "")),
            (f"def main():\n    {TWICE}\n    end(make().parse_args(rest))", (0.5, "")),
            ("def main():\n    args = make().parse_args(); make().parse_args(['--lr', '2']); end(args)", (0.5, "")),
            ("def main():\n    make().parse_args(); end(make().parse_args(['--tag', 'own']))", (0.1, "own")),
            ("def main(args): end(args)", (0.5, "")),
            (f"{COMPLETING}def main(args): end(args)", (0.5, "lr 0.5")),
            (f"{COMPLETING}def cli(): main(get())\ndef main(args): end(args)", (0.5, "lr 0.5")),
            ("def cli(): return main(make().parse_args())\ndef main(args): end(args)", (0.5, "")),
            ("p = make()\ndef get(): return p.parse_args(['--lr', '2'])\ndef main(args): end(args)", (0.5, "")),
        ],
    )(arrives)()


def test_zero_that_a_program_with_flags_returns_is_its_exit_status(tmp_path):
    log = PARSER_OF_TWO.replace("loss=0.0", "loss=0.25")
    for status, expected in (("0", 0.25), ("0.0", 0.0), ("3", 3.0), ("{'loss': 2}", 2.0)):
        folder = tmp_path / str(expected)
        folder.mkdir()
        code = f"def main(argv=None):\n    end(make().parse_args(argv))\n    return {status}"
        (folder / "train.py").write_text(f"{log}\n{code}\n")
        plan = planned(folder)
        assert run_program(plan.runs[0].config, plan.metric, folder / "run")["return"] == expected


def test_flags_that_are_not_read_again_are_refused(tmp_path):
    """A program that keeps its flags runs with those of an earlier run in the same process."""
    kept = "    if not hasattr(main, 'old'): main.old = make().parse_args()\n    end(main.old)"
    (tmp_path / "train.py").write_text(f"{PARSER_OF_TWO}\ndef main():\n{kept}\n")
    first, second = planned(tmp_path, "grid: {lr: [0.5, 0.25]}").runs
    metric = planned(tmp_path).metric
    run_program(first.config, metric, tmp_path / "first")
    with pytest.raises(SweepError, match="did not read the flags lr"):
        run_program(second.config, metric, tmp_path / "second")


HIDDEN = {
    "in a method": "class Config:\n    get = staticmethod(lambda: make().parse_args())\ndef main(): end(Config.get())",
    "by a second parser": f"def main():\n    {TWICE}\n    end(make().parse_args(rest))",
    "with words of its own": "def main(): end((lambda words: make().parse_args(words))(['--lr', '2']))",
    "and takes it": "def main(seed):\n    args = (lambda: make().parse_args())()\n    args.seed = seed; end(args)",
}


@each(
    ("how", "seed", "refused"),
    [(how, seed, seed == 1 and how in ("in a method", "by a second parser")) for how in HIDDEN for seed in (0, 1)],
)
def test_a_seed_that_would_not_reach_a_flag_is_refused(how, seed, refused, fresh, monkeypatch):
    """A program has the seed of the config, or does not run, where roundoff does not see that it reads flags."""
    monkeypatch.setattr(sys, "argv", ["worker"])
    folder = fresh()
    more = '"--seed", type=int, default=0)\n    p.add_argument("--device", type=torch.device, default="cpu"'
    parser = "import torch\n" + PARSER_OF_TWO.replace('"--tag", default=""', more)
    (folder / "train.py").write_text(f"{parser.replace('args.tag', 'args.seed')}\n{HIDDEN[how]}\n")
    plan = planned(folder, f"base: {{seed: {seed}}}")
    if refused:
        with pytest.raises(SweepError, match="seed of the run is 1, but the program's own flag --seed is 0"):
            run_program(plan.runs[0].config, plan.metric, folder / "run")
    else:
        run_program(plan.runs[0].config, plan.metric, folder / "run")


def test_commands_of_libraries_are_refused_where_their_defaults_would_be_objects(tmp_path):
    def refused(code, message):
        name = f"train{len(code)}.py"
        (tmp_path / name).write_text(code)
        with pytest.raises(SweepError, match=message):
            planned(tmp_path, program=f"{name}:main")

    typer_ = "import typer\ndef main(on: bool = typer.Option(False)): pass"
    click = "import click\n@click.command()\n@click.option('--lr')\ndef main(lr): pass"
    each(("code", "message"), [(typer_, "the default of on is an object of typer"), (click, "is a command of click")])(
        refused
    )()
