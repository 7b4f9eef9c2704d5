"""What counts as the last number that a script gives under a name."""

import math

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from roundoff.simulate.scripts.measures import Measure
from roundoff.simulate.scripts.running import ScriptError

PRINTED = {
    "loss 2.31": 2.31,
    "step 100 loss: 2.31 accuracy: 0.5": 2.31,
    "epoch 3 | loss=2.31e-03 | 10.1 s": 2.31e-3,
    '{"step": 3, "loss": 2.31}': 2.31,
    "{'loss': '2.31', 'epoch': 1.0}": 2.31,
    "{'loss': tensor(2.31, grad_fn=<Mean>)}": 2.31,
    "{'loss': np.float64(2.31)}": 2.31,
    "Loss (train) ... 2.31": 2.31,
    "LOSS is -2.31.": -2.31,
    "loss -2.31": -2.31,
    "loss - 2.31": 2.31,
    "loss --- 2.31": 2.31,
    "loss: nan": math.nan,
    "loss = -inf": -math.inf,
    "loss: 1,234.5": 1234.5,
    "loss [2.31, 1.0]": 2.31,
    "loss: 93.1%": 0.931,
    "loss: 93.1 %": 0.931,
    "loss .5": 0.5,
    "loss 3": 3.0,
    "loss......2.31": 2.31,
    "the loss is 3.": 3.0,
    "\x1b[1mloss\x1b[0m: \x1b[31m2.31\x1b[0m": 2.31,
    "loss: 9.0\nloss: 2.31\n": 2.31,
    "10%|# | 1/10 [00:01<00:09, loss=9.0]\r20%|## | 2/10 [00:02<00:08, loss=2.31]": 2.31,
    "loss\n2.31": 2.31,
    "val loss 2.31, test_loss 9.0, loss_scale 8.0, losses 7.0, lossless 6.0": 2.31,
}
NOT_PRINTED = [
    "", "test_loss 2.31", "loss went down; accuracy 0.9", "loss at step 10", "loss, accuracy: 2.31", "loss10 3",
    "file-loss-2.31.pt", "loss: 12abc", "loss: 1.2.3", "loss: 2,31", "loss: nano",
]  # fmt: skip


@each(("output", "expected"), PRINTED.items())
def test_numbers_are_found_by_their_names(output, expected):
    found = Measure.parse("loss<1").of(output, {})
    assert found == pytest.approx(expected, rel=1e-15, nan_ok=True)


@pytest.mark.parametrize("output", NOT_PRINTED)
def test_what_is_no_number_of_the_name_is_not_taken_for_one(output):
    assert Measure.parse("loss<1").of(output, {}) is None


@given(st.floats(), st.sampled_from(["loss: {}", "loss={!r}", "{{'loss': {}}}", "loss {} end", "loss\t{}\n"]))
def test_every_number_that_python_prints_is_read(number, form):
    found = Measure.parse("loss<1").of(form.format(number), {})
    assert found == number or (math.isnan(found) and math.isnan(number))


def test_what_is_logged_wins():
    assert Measure.parse("loss<1").of("loss: 2.31", {"loss": 3.0}) == 3.0
    assert Measure.parse("loss<1").of("loss: 2.31", {"accuracy": 3.0}) == 2.31


def test_names_of_several_words():
    output = "train loss: 1.0  val  loss: 2.0\nbest val loss (so far): 3.0\nloss: 4.0"
    assert Measure.parse("val loss<1").of(output, {}) == 3.0
    assert Measure.parse("top-1>50%").of("top-1: 61.5%", {}) == 0.615


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("loss<2.5", [2.4, -math.inf], [2.5, math.nan]),
        ("loss <= 2.5", [2.5], [2.6, math.nan]),
        ("accuracy>=90%", [0.9, 1.0], [0.89, math.nan]),
        ("accuracy > -1e-3", [0.0], [-0.1, math.nan]),
    ],
)
def test_bounds(text, good, bad):
    measure = Measure.parse(text)
    assert all(map(measure.passes, good))
    assert not any(map(measure.passes, bad))


def test_finite_looks_at_all_numbers():
    measure = Measure.parse("finite")
    for output, logged, expected in [
        ("loss: 2.31", {}, 1),
        ("loss: nan", {}, 0),
        ("loss: 2.31 gradient: -Inf", {}, 0),
        ("", {"loss": 1.0}, 1),
        ("", {"loss": math.inf}, 0),
        ("information: nanometre 3", {}, 1),
        ("done", {}, None),
    ]:
        assert measure.of(output, logged) == expected, output
    assert measure.passes(1.0)
    assert not measure.passes(0.0)


@pytest.mark.parametrize(
    "text", ["", "loss", "loss<", "<2", "loss==2", "loss=2", "loss<nan", "loss<2<3", "loss<x", "2"]
)
def test_other_texts_are_no_measures(text):
    with pytest.raises(ScriptError, match=r"such as loss<2.5; or finite; got"):
        Measure.parse(text)
