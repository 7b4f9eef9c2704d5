"""Parts of a program with arithmetic of their own: functions by their qualified names, and named blocks."""

import cProfile
import re
import sys
import threading
import warnings
from contextlib import suppress

import pytest
import torch

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.formats import FormatError
from roundoff.simulate.dispatch.complaints import PolicyWarning

THIRD = torch.tensor([1 / 3])
E5M2, E4M3 = 0.3125, 0.34375
IN_A_PART = Policy("e4m3").with_rules(Rule(within="generate", format="e5m2"))


def third():
    return (THIRD + 0).item()


def generate():
    return third()


def calls():
    return generate()


class Trainer:
    def rollout(self):
        return third()

    @torch.no_grad()
    def guarded(self):
        return third()


def steps():
    for _ in range(2):
        yield third()


async def waits():
    return third()


def run(coroutine):
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


WAYS = {
    "a function": ("generate", calls),
    "a function of this module": (f"{__name__}:generate", calls),
    "a method": ("Trainer.rollout", lambda: Trainer().rollout()),
    "a decorated method": ("Trainer.guarded", lambda: Trainer().guarded()),
    "a pattern": ("Trainer.*", lambda: Trainer().rollout()),
    "several": (("nothing", "steps"), lambda: list(steps())[1]),
    "a coroutine": ("waits", lambda: run(waits())),
    "a block": ("rollout", roundoff.part("rollout")(third)),
}


@pytest.mark.parametrize(("within", "call"), WAYS.values(), ids=WAYS)
def test_a_rule_holds_within_a_part_and_nowhere_else(within, call):
    with simulate(Policy("e4m3").with_rules(Rule(within=within, format="e5m2"))):
        found = third(), call(), third()
    assert found == (E4M3, E5M2, E4M3)
    with simulate(
        Policy("e5m2").with_rules(Rule(within=f"!{within}" if isinstance(within, str) else within, format="e4m3"))
    ):
        assert call() == (E5M2 if isinstance(within, str) else E4M3)


def test_a_suspended_generator_is_no_part_of_its_caller():
    with simulate(Policy("e4m3").with_rules(Rule(within="steps", format="e5m2"))):
        generator = steps()
        assert [next(generator), third(), next(generator), third()] == [E5M2, E4M3, E5M2, E4M3]


def test_an_exception_ends_the_part():
    def generate():
        assert third() == E5M2
        raise KeyError

    with simulate(Policy("e4m3").with_rules(Rule(within="*generate", format="e5m2"))):
        for block in (generate, roundoff.part("we generate")(generate)):
            with pytest.raises(KeyError):
                block()
            assert third() == E4M3


def test_what_is_entered_inside_of_a_part_knows_it_and_leaves_nothing_behind():
    policy = Policy("e4m3").with_rules(Rule(within="*generate*", format="e5m2"))
    simulation = simulate(policy)

    def generate():
        with simulation:
            return third()

    def within_a_block():
        with roundoff.part("generate"), simulation:
            return third()

    assert (generate(), within_a_block()) == (E5M2, E5M2)
    with simulation:
        assert third() == E4M3
    assert sys.getprofile() is None


def test_each_thread_is_in_parts_of_its_own():
    found = {}

    def other():
        with simulation:
            found["other"] = third()

    with simulate(IN_A_PART) as simulation, roundoff.part("generate"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert third() == E5M2
    assert found == {"other": E4M3}


def test_modules_and_roles_are_told_apart_in_parts():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def evaluate():
        return net(torch.ones(2, 3)).sum()

    def step(loss):
        loss.backward()
        optimizer.step()

    policy = Policy("e8m10").with_rules(
        Rule(module="0", within="*evaluate", format="e5m2"),
        Rule(role="optimizer", within="*<locals>.step", format="e4m3"),
    )
    with simulate(policy) as simulation:
        evaluate()
        step(net(torch.ones(2, 3)).sum())
        evaluate().backward()
    formats = {(plan.role, plan.module): {str(plan.arithmetic.format)} for plan in simulation.plans()}
    name = "test_modules_and_roles_are_told_apart_in_parts.<locals>"
    assert formats["forward", f"{name}.evaluate: Sequential.0"] == {"e5m2"}
    assert formats["forward", f"{name}.evaluate: Sequential.1"] == {"e8m10"}
    assert formats["forward", "Sequential.0"] == {"e8m10"}
    assert formats["backward", f"{name}.evaluate: Sequential.0"] == {"e5m2"}  # where its forward operation ran
    assert formats["backward", "Sequential.0"] == {"e8m10"}  # called in a part, of a forward pass outside of it
    assert formats["optimizer", f"{name}.step: "] == {"e4m3"}
    assert "evaluate: Sequential.0" in str(simulation.audit())


def test_parts_lie_in_parts():
    def inner():
        return third()

    def outer():
        return inner(), third()

    rules = (Rule(within="*outer", format="e5m2"), Rule(within="*inner", format="e5m3"))
    with simulate(Policy("e4m3", rules=rules)) as simulation:
        assert (inner(), outer()) == (0.34375, (0.34375, E5M2))
    with simulate(Policy("e4m3", rules=rules[::-1])):
        assert outer() == (E5M2, E5M2)
    assert any(plan.module.count("/") == 1 for plan in simulation.plans())


def test_the_policy_of_a_part_stands_in_the_place_of_the_programs():
    """The part has what its own policy does by itself, and the rest what the program's does, bit for bit."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(5, 24)
    of_part, of_program = (
        Policy.fp8("rowwise", "bf16"),
        Policy("e5m6", operands="e4m3", accumulate="e5m10").with_rules(
            Rule(module="2", format="e5m2"), Rule(role="weights", format="e5m3")
        ),
    )

    def generate():
        return net(x)

    both = of_program.with_part("*generate", of_part)
    with simulate(both), torch.no_grad():
        inside, outside = generate(), net(x)
    with simulate(of_part), torch.no_grad():
        assert torch.equal(net(x), inside)
    with simulate(of_program), torch.no_grad():
        assert torch.equal(net(x), outside)
    assert not torch.equal(inside, outside)
    assert Policy.parse(both.as_json()) == both
    described = {"format": "e5m7", "parts": {"generate": {"preset": "fp8-rowwise", "format": "bf16"}}}
    assert Policy.parse(described) == Policy("e5m7").with_part("generate", of_part)


def test_functions_of_one_name_in_two_modules_are_two_parts():
    there: dict = {"THIRD": THIRD, "__name__": "elsewhere"}
    exec("def generate():\n    return (THIRD + 0).item()", there)
    rules = (Rule(within=f"{__name__}:generate", format="e5m2"), Rule(within="elsewhere:generate", format="e5m3"))
    with simulate(Policy("e4m3", rules=rules)) as simulation:
        assert (generate(), there["generate"](), third()) == (E5M2, 0.34375, E4M3)
    formats = {plan.module: str(plan.arithmetic.format) for plan in simulation.plans() if "add" in plan.name}
    assert formats == {f"{__name__}:generate: ": "e5m2", "elsewhere:generate: ": "e5m3", "": "e4m3"}


def test_what_is_thrown_into_a_generator_ends_the_part():
    with simulate(Policy("e4m3").with_rules(Rule(within="steps", format="e5m2"))):
        for end in (lambda generator: generator.close(), lambda generator: generator.throw(KeyError)):
            generator = steps()
            next(generator)
            with suppress(KeyError):
                end(generator)
            assert third() == E4M3


def test_a_part_that_begins_in_the_backward_pass_counts_there():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 3

    class Net(torch.nn.Module):
        def forward(self, x):
            return Halved.apply(x)

    net, found = Net(), []
    with simulate(Policy("e4m3").with_rules(Rule(within="*Halved.backward", format="e5m2"))) as simulation:
        for _ in range(3):  # through Python first, and then without
            x = torch.ones(1, requires_grad=True)
            net(x).backward()
            found.append(x.grad.item())
    assert found == [E5M2] * 3
    (place,) = {(plan.role, plan.module) for plan in simulation.plans() if "Halved.backward" in plan.module}
    assert place[0] == "backward"
    assert place[1].endswith("Halved.backward: Net")


def test_a_profiler_in_the_way_is_said_and_nothing_stays_entered():
    if sys.version_info >= (3, 12):
        pytest.skip("there is room for both")
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        with pytest.raises(FormatError, match="another profiler"):
            simulate(IN_A_PART).__enter__()
    finally:
        profiler.disable()
    assert third() == THIRD.item()
    with simulate(IN_A_PART):
        assert (generate(), third()) == (E5M2, E4M3)


def test_what_a_whole_program_has_may_stand_beside_parts():
    policy = Policy("e4m3", exact_in=f"{__name__}:third", whole="rounded").with_part("generate", "e5m2")
    assert policy.exact_in == (f"{__name__}:third",)
    assert policy == Policy.parse({
        "format": "e4m3", "whole": "rounded", "exact_in": f"{__name__}:third", "parts": {"generate": "e5m2"}
    })  # fmt: skip


def test_a_recipe_has_a_name_where_no_format_has_it():
    assert Policy.parse("fp8-rowwise") == Policy.fp8("rowwise")
    assert Policy.parse("nvfp4") == Policy("nvfp4")


WRONG = {
    "nowhere": (lambda: Policy("e5m2").with_part("!f", "e4m3"), "a part is named by"),
    "no part": (lambda: Policy("e5m2").with_part(3, "e4m3"), "a part is named by"),
    "a name": (lambda: roundoff.part("a/b").__enter__(), "without / : "),
    "an empty name": (lambda: roundoff.part(" ").__enter__(), "name of a part"),
    "no text": (lambda: Rule(within=3, format="e5m2"), "within of a rule must be a pattern"),
    "of a whole program": (
        lambda: Policy("e5m2").with_part("f", Policy("e5m2", whole="rounded")),
        "it cannot be rounded, where",
    ),
    "parts of parts": (
        lambda: Policy("e5m2").with_part("f", Policy("e5m2").with_rules(Rule(within="g", format="e5m3"))),
        "cannot be within another",
    ),
    "no preset": (
        lambda: Policy.parse({"format": "e5m2", "parts": {"f": {"preset": "x"}}}),
        "parts.f: .*preset must be",
    ),
    "no mapping": (lambda: Policy.parse({"format": "e5m2", "parts": ["f"]}), "policy.parts must be a mapping"),
    "no policy": (lambda: Policy.parse({"format": "e5m2", "parts": {"f": {"rulez": 1}}}), "policy.parts.f: .*rulez"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_said(make, message):
    with pytest.raises(FormatError, match=message):
        make()


def warned(*rules):
    with warnings.catch_warnings(record=True) as caught, simulate(Policy("e4m3").with_rules(*rules)):
        warnings.simplefilter("always")
        generate()
    return [str(warning.message) for warning in caught]


def test_names_that_never_ran_are_said_with_the_nearest():
    (said,) = warned(Rule(within="generat", format="e5m2"))
    assert "rules within generat (did you mean" in said
    assert "no function with this qualified name was called" in said
    (left_out,) = warned(Rule(within="!generat", format="e5m2"))
    assert "rules within generat" in left_out
    (unused,) = warned(Rule("mm", within="generate", format="e5m2"))
    assert "matched nothing that ran; " in unused
    assert "parts of the program that operations ran in: generate" in unused
    assert not warned(Rule(within=("nothing", "generate"), format="e5m2"))
    with pytest.warns(PolicyWarning) as caught, simulate(Policy.mixed_precision("bf16")):
        torch.ones(2) + 1
    (recipe,) = [str(warning.message) for warning in caught]
    assert re.match(r"the rule \(operation=mm and [0-9]+ others, .*\) of the policy matched nothing", recipe)
    assert len(recipe) < 200


def test_profilers_stay_and_are_told_of():
    calls = []

    def profiler(_frame, event, _argument):
        calls.append(event)

    sys.setprofile(profiler)
    try:
        with simulate(IN_A_PART):
            assert generate() == E5M2
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert "call" in calls

    def losing():
        with simulate(IN_A_PART):
            generate()
            sys.setprofile(None)

    with pytest.warns(roundoff.SimulationWarning, match="another profiler"):
        losing()


def test_a_part_is_blamed():
    def program():
        with roundoff.part("first"):
            first = third()
        with roundoff.part("second"):
            return first, third()

    found = roundoff.blame(program, "e4m3", lambda values: values[0] == THIRD.item(), over="part")
    assert (found.culprits, found.units) == (("first",), ("first", "second"))
