"""Models of cost: prices by format, what they have no number for, and files of one's own."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from roundoff import simulate
from roundoff.formats import FormatError
from roundoff.simulate import CostModel

OWN = {
    "name": "my chip", "source": "measured by me", "unit": "pJ", "multiply": {"fp16": 1.0, "fp16*fp32": 2.0},
    "add": {"fp32": 0.5}, "read": 0.25,
}  # fmt: skip


def products(*rows):
    return pd.DataFrame(rows, columns=["a", "b", "accumulator", "macs"])


NOTHING_MOVED = {"bytes_read": 0.0, "bytes_written": 0.0}


@pytest.mark.parametrize(
    ("formats", "price"),
    [
        (("e5m10", "fp16", "fp32"), 1.1 + 0.9),
        (("fp32", "fp32", "fp32"), 3.7 + 0.9),
        (("int8", "int8_row", "int32"), 0.2 + 0.1),
        (("int32", "int32", "int32"), 3.1 + 0.1),
        (("int16", "int16", "int32"), None),
        (("fp16", "fp16", "e5m10/32"), 1.1 + 0.4),
        (("bf16", "bf16", "fp32"), None),  # the source has none
        (("fp16", "fp32", "fp32"), None),
    ],
)
def test_horowitz_prices_what_the_source_has(formats, price):
    assert CostModel.parse("horowitz-45nm").price(*formats) == (None if price is None else pytest.approx(price))


@pytest.mark.parametrize(
    ("formats", "cells"),
    [
        (("fp32", "fp32"), 24 * 24 + 8),
        (("e5m10", "e5m10"), 11 * 11 + 5),
        (("e5m10", "e4m3"), 11 * 4 + 5),
        (("int8", "int8"), 64),
        (("mxfp8_e4m3", "mxfp4"), 4 * 2 + 4),
        (("posit16", "posit16"), None),
    ],
)
def test_cells_of_an_array_multiplier(formats, cells):
    assert CostModel.parse("array-multiplier").price(*formats, "fp32") == cells


def test_a_model_of_ones_own_and_what_it_lacks():
    model = CostModel.parse(OWN)
    table = products(("e5m10", "e5m10", "fp32", 100), ("fp32", "fp16", "fp32", 10), ("bf16", "bf16", "fp32", 7))
    told = model.of(table, {"bytes_read": 8.0, "bytes_written": 100.0})
    assert told.value == 100 * 1.5 + 10 * 2.5 + 8 * 8 * 0.25
    assert told.missing == {"bf16 x bf16, added in fp32": 7}
    assert model.price("fp32", "e5m10", "fp32") == 2.5  # a pair by any name, in any order
    assert "model my chip: 191 pJ (source: measured by me)" in told.text
    assert "no number for 7 of bf16 x bf16" in told.text


def test_formats_that_cost_the_same_have_no_price_together():
    model = CostModel.parse({**OWN, "multiply": {"fp16": 1.0, "bf16": 1.0}})
    assert model.price("fp16", "e5m10", "fp32") == 1.5
    assert model.price("fp16", "bf16", "fp32") is None


def test_bits_that_are_read_and_written_have_prices_of_their_own():
    model = CostModel.parse({**OWN, "read": 0.25, "write": 3})
    assert model.of(products(), {"bytes_read": 8.0, "bytes_written": 100.0}).value == 8 * (8 * 0.25 + 100 * 3)


def test_the_table_of_horowitz_is_that_of_the_page():
    page = " ".join((Path(__file__).parents[3] / "docs" / "cost.md").read_text(encoding="utf-8").split())
    model = CostModel.parse("horowitz-45nm")
    assert model.add.keys() == model.multiply.keys()
    listed = ", ".join(f"{name} {price} + {model.add[name]}" for name, price in model.multiply.items())
    assert f"{model.unit} of a multiplication and an addition: {listed}; no memory" in page


def test_a_model_that_has_no_number_says_nothing_of_energy():
    told = CostModel.parse("horowitz-45nm").of(products(("bf16", "bf16", "fp32", 7)), NOTHING_MOVED)
    assert "model horowitz-45nm: nothing (source: M. Horowitz" in told.text


def test_the_cost_of_a_simulation_by_a_model():
    with simulate("e5m10", cost=True) as simulation:
        x = torch.randn(4, 5) + 0
        x @ x.T
    model = CostModel.parse("horowitz-45nm")
    assert simulation.cost().told(model).startswith(f"model horowitz-45nm: {80 * 2.0:.4g} pJ (source: M. Horowitz")
    of_a_step = simulation.cost().as_json(4, [model])
    assert (of_a_step["macs"], of_a_step["models"][model.name]["value"]) == (20, pytest.approx(20 * 2.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": None}, "needs source"),
        ({"source": " "}, "needs source"),
        ({"divide": {}}, "has no divide"),
        ({"multiply": [1]}, "is a mapping"),
        ({"multiply": {"fp16": "1"}}, "must be a finite number"),
        ({"multiply": {"fp16": -1}}, "must be a finite number"),
        ({"multiply": {"fp16": math.inf}}, "must be a finite number"),
        ({"read": math.nan}, "must be a finite number"),
        ({"add": {"fp61": 1}}, "fp61"),
    ],
)
def test_a_file_with_a_mistake_is_refused(change, said):
    with pytest.raises(FormatError, match=said):
        CostModel.parse({**OWN, **change})


@pytest.mark.parametrize("description", ["moore", 3])
def test_there_is_no_such_model(description):
    with pytest.raises(FormatError, match="cost model"):
        CostModel.parse(description)
