"""What notebooks show of results: tables, in which nothing is markup but our own."""

from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

import roundoff
from roundoff.notebook import as_html
from roundoff.simulate import Blame

VOID = ("br",)


class Page(HTMLParser):
    """Text by element, and a check that elements are closed in order."""

    def __init__(self, markup):
        super().__init__()
        self.open, self.texts, self.names = [], [], []
        self.feed(markup)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def cells(self, kind="td"):
        return [text for name, text in self.texts if name == kind]


def test_texts_and_tables_are_escaped():
    table = pd.DataFrame({"<b>name": ["<script>x</script>", "a\x1b]0;b"], "number": [1.23456789, float("nan")]})
    page = Page(as_html("1 < 2 & \u202e3\nnext", table))
    assert page.texts[:2] == [("p", "1 < 2 & \\u202e3"), ("p", "next")]
    assert page.cells("th") == ["<b>name", "number"]
    assert page.cells() == ["<script>x</script>", "1.23457", "a\\x1b]0;b"]
    assert "script" not in page.names


def test_of_a_long_table_the_middle_is_left_out():
    page = Page(as_html(pd.DataFrame({"n": range(1000)})))
    assert page.cells()[0] == "0"
    assert page.cells()[-1] == "999"
    assert "..." in page.cells()
    assert len(page.cells()) < 100


def test_a_format_shows_the_facts_it_has():
    page = Page(roundoff.Format.parse("e5m10")._repr_html_())
    shown = dict(zip(page.cells("th"), page.cells(), strict=True))
    assert shown == {
        "format": "e5m10", "bits": "16", "bits per number": "16", "largest": "65504", "smallest normal": "6.10352e-05",
        "smallest": "5.96046e-08", "eps": "0.000976562", "simulated in": "torch.float32",
    }  # fmt: skip
    page = Page(roundoff.Format.parse("int8")._repr_html_())
    assert page.cells("th") == ["format", "bits", "bits per number", "simulated in"]


def test_reports_and_audits_show_what_they_print():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softplus())
    rules = roundoff.Policy("e4m3", rules=[roundoff.Rule("tanh<i>", format="fp32")])
    with pytest.warns(roundoff.PolicyWarning), roundoff.simulate(rules, observe=True, shadow="fp64") as simulation:
        (net(torch.full((2, 4), 1e-3)).square().sum() * 1e9).backward()
    for result in (simulation.report(), simulation.shadow_report(), simulation.audit()):
        page = Page(result._repr_html_())
        printed = str(result)
        for name, text in page.texts:
            if name == "p":
                assert text in printed
        assert "mul" in " ".join(page.cells())
        assert "table" in page.names
    assert ("p", f"unused rule: {rules.rules[0]}") in page.texts
    assert "i" not in page.names
    with roundoff.simulate("e8m7", observe=True) as simulation:
        torch.ones(2) + 1  # nothing goes wrong, so there is no table
    assert "table" not in Page(simulation.report()._repr_html_()).names


def test_blame_shows_what_each_culprit_needs():
    found = Blame("e5m10", "operation", ("a", "b"), ("a", "b"), {"a": "e5m12", "b": None}, 7)
    page = Page(found._repr_html_())
    assert page.cells("th") == ["operation", "needs"]
    assert page.cells() == ["a", "e5m12", "b", "the carrier, or nearly so"]
    assert str(found).splitlines() == [
        "e5m10: the program passes if 2 of 2 operations stay in high precision, and no fewer of these will do (7 runs)",
        "  a  needs e5m12",
        "  b  needs the carrier, or nearly so",
    ]
    nothing = Blame("e5m10", "operation", ("a",), (), {}, 2)
    assert (
        Page(nothing._repr_html_()).texts
        == [("p", "e5m10: the program passes as it is (2 runs)")]
        == [("p", str(nothing))]
    )
