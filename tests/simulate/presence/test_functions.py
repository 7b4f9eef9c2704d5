"""Functions that a policy names: exact, or the only ones that are rounded."""

import sys
import types
import warnings

import pytest
import torch

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.cli import main
from roundoff.formats import FormatError
from roundoff.simulate import PolicyWarning

SOURCE = """
import torch

def scaled(x):
    return x / 3

class Base:
    def update(self, x):
        return self.part(x) * 1.1

    @staticmethod
    def part(x):
        return x / 7

    @classmethod
    def made(cls, x):
        return x / 9

    def steps(self, x):
        for _ in range(2):
            x = x / 3
            yield x

class Agent(Base):
    pass

class Loop(torch.nn.Module):
    def forward(self, x):
        return x / 5

    def note(self, x):
        return x / 5
"""
X = torch.tensor([0.7, 1.3, 2.9])


@pytest.fixture(autouse=True)
def library(monkeypatch):
    module = types.ModuleType("a_library")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "a_library", module)
    return module


def rounded(x):
    return torch.equal(x, roundoff.round(x, "e5m3"))


def test_what_is_named_is_exact(library):
    names = ["a_library:scaled", "a_library:Agent.made", "a_library:Agent.part", "a_library:Base.steps"]
    before = {name: dict(vars(getattr(library, name))) for name in ("Agent", "Base")}
    with simulate(Policy("e5m3", exact_in=names)):
        assert not rounded(library.scaled(X))
        exact = [library.Agent.made(X), library.Agent.part(X), *library.Agent().steps(X)]
        other = [X / 9, library.Base.part(X), library.Agent().update(X)]  # a part of the latter is exact
    assert not any(map(rounded, exact))
    assert torch.equal(exact[0], X / 9)
    assert all(map(rounded, other))
    assert library.scaled.__name__ == "scaled"
    assert {name: dict(vars(getattr(library, name))) for name in before} == before


def test_only_what_is_named_is_rounded(library):
    simulation = simulate(Policy("e5m3", only_in="a_library:Agent.update"))
    for _ in range(2):
        with simulation:
            outside, inside = X / 3, library.Agent().update(X)
            with roundoff.exact():
                exact = library.Agent().update(X)
        assert torch.equal(outside, X / 3)
        assert torch.equal(inside, roundoff.round(roundoff.round(X / 7, "e5m3") * 1.1, "e5m3"))
        assert torch.equal(exact, X / 7 * 1.1)
    assert {plan.name: plan.outcome.calls for plan in simulation.plans()} == {"div": 2, "mul": 2}
    assert torch.equal(library.Agent().update(X), X / 7 * 1.1)


def test_the_backward_pass_and_modules_in_it_are_rounded(library):
    layer, x = torch.nn.Linear(3, 2), X.clone().requires_grad_()
    library.Agent.learn = lambda _self, layer, x: layer(x).square().sum().backward()
    policy = Policy("e5m3", only_in="a_library:Agent.learn", rules=[Rule(module="Linear", format="e5m2")])
    with simulate(policy) as simulation:
        layer(x)
        assert simulation.plans() == ()
        library.Agent().learn(layer, x)
    modules = {(plan.role, plan.module) for plan in simulation.plans()}
    assert {("forward", "Linear"), ("backward", "Linear"), ("forward", "")} <= modules
    assert torch.equal(layer.weight.grad, roundoff.round(layer.weight.grad, "e5m2"))


def test_what_was_not_called_is_complained_of(library):
    plain = library.scaled
    with (
        pytest.warns(PolicyWarning, match="the function a_library:scaled that the policy names was not called"),
        simulate(Policy("e5m3", exact_in="a_library:scaled")),
    ):
        plain(X)  # as who has imported it by name


def test_a_module_whose_forward_did_nothing_is_complained_of(library):
    net = torch.nn.ModuleDict({"loop": library.Loop()})
    with (
        pytest.warns(PolicyWarning, match="there is a module ModuleDict.loop, but no operation ran in its forward"),
        simulate(Policy("e5m3", rules=[Rule(module="loop", format="fp32")]), root=net),
    ):
        net["loop"].note(X)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "a_library:Agent.updat",
            r"names the function 'a_library:Agent.updat', and Agent has no 'updat' \(did you mean",
        ),
        ("a_library:Agent", r"policy names 'a_library:Agent', which is no function or method but <class"),
        ("a_librar:scaled", "No module named 'a_librar'"),
    ],
)
@pytest.mark.parametrize("where", ["exact_in", "only_in"])
def test_what_is_not_there_is_refused_and_nothing_is_changed(names, message, where, library):
    plain = library.scaled
    policy = Policy("e5m3", **{"exact_in": "a_library:scaled", where: ["a_library:scaled", names]})
    with pytest.raises(FormatError, match=message), simulate(policy):
        pass
    assert library.scaled is plain
    assert torch.equal(X / 3, library.scaled(X))


def test_a_name_that_is_in_both_is_put_back(library):
    plain = library.scaled
    with simulate(Policy("e5m3", exact_in="a_library:scaled", only_in="a_library:scaled")):
        assert torch.equal(library.scaled(X), roundoff.round(X / 3, "e5m3"))
    assert library.scaled is plain


def test_a_name_within_one_of_the_same_name(library):
    library.a = types.SimpleNamespace(a=library.scaled)
    with simulate(Policy("e5m3", exact_in="a_library:a.a")):
        assert not rounded(library.a.a(X))
    assert library.a.a is library.scaled


@pytest.mark.parametrize("names", ["a_library", "a_library:", 3, [""], "a library:scaled"])
def test_names_have_a_form(names):
    with pytest.raises(FormatError, match=r"must be functions as package\.module:function"):
        Policy("e5m3", exact_in=names)


def test_policies_are_data():
    policy = Policy("e5m3", exact_in=["a_library:scaled", "a_library:Agent.part"], only_in="a_library:Agent.update")
    assert Policy.parse(policy.as_json()) == policy
    assert policy.as_json()["only_in"] == "a_library:Agent.update"


def test_on_the_command_line(tmp_path, monkeypatch, capfd, library):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "script.py").write_text(
        "import torch, a_library\nx = torch.tensor([0.7, 1.3])\nnet = a_library.Loop()\n"
        "print((x / 3).tolist(), a_library.scaled(x).tolist(), net(x).tolist())\n"
    )
    base = ["run", "--format", "e5m3"]

    def printed(*options):
        with pytest.raises(SystemExit), monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["roundoff", *base, *options, str(tmp_path / "script.py")])
            patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
            main()
        out, err = capfd.readouterr()
        assert "Error" not in err, err
        return out.strip()

    x = torch.tensor([0.7, 1.3])
    exact, third, fifth = (
        (x / 3).tolist(),
        *(roundoff.round(roundoff.round(x, "e5m3") / n, "e5m3").tolist() for n in (3, 5)),
    )
    third_of_rounded = (roundoff.round(x, "e5m3") / 3).tolist()
    assert printed("--exact-in", "a_library:scaled") == f"{third} {third_of_rounded} {fifth}"
    assert printed("--exact-in", "Loop") == f"{third} {third} {(roundoff.round(x, 'e5m3') / 5).tolist()}"
    third_alone = f"{exact} {roundoff.round(x / 3, 'e5m3').tolist()} {(x / 5).tolist()}"
    assert printed("--only-in", "a_library:scaled") == third_alone
    rounded_third = roundoff.round(x, "e5m3") / 3
    for policy in ("e5m2", "{preset: every-op, format: e5m2}"):
        of_part = printed("--part", f"scaled={policy}").split("] [")[1]
        assert of_part == str(roundoff.round(rounded_third, "e5m2").tolist())[1:-1]
    for name, message in {"no_library:f": "No module named 'no_library'", "": "--exact-in: must be a function"}.items():
        arguments = ["roundoff", *base, "--exact-in", name, str(tmp_path / "script.py")]
        with pytest.raises(SystemExit) as ended, monkeypatch.context() as patch:
            patch.setattr(sys, "argv", arguments)
            patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
            main()
        out, err = capfd.readouterr()
        assert (ended.value.code, out, "Traceback" in err) == (2, "", False)
        assert message in err


def test_simulations_of_two_policies_inside_each_other(library):
    with simulate(Policy("e5m3", exact_in="a_library:scaled")), warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyWarning)
        with simulate("e5m2"):  # which names nothing
            assert torch.equal(library.scaled(X), roundoff.round(X / 3, "e5m2"))
        assert not rounded(library.scaled(X))
