"""The answer in sentences: formats with the same verdict are told together, with what cannot be excluded."""

import numpy as np
import pandas as pd
import pytest

from roundoff.analysis.tables.answer import answer
from roundoff.runs.metric import Metric


class Conditions:
    """Learning rates as conditions, or none."""

    def __init__(self, *keys):
        self.keys = list(keys)

    def label(self, row):
        return f"lr {row['lr']}"


class Experiment:
    """What the answer asks of an experiment."""

    def __init__(self, *keys, tasks=1):
        self.conditions, self.metric = Conditions(*keys), Metric(name="return")
        self.runs = pd.DataFrame({"task": [f"task {i}" for i in range(tasks)]})


def row(fmt, verdict, share=-0.01, ends=(-0.3, 0.1), **known):
    found = {"task": "task 0", "format": fmt, "answer": verdict, "share": share, "runs": 4, "seeds_needed": np.nan}
    return found | {"share_low": ends[0], "share_high": ends[1]} | known


def said(*rows, **known):
    return answer(pd.DataFrame(rows), Experiment(**known))


def test_formats_with_one_verdict_are_one_sentence():
    rows = [row(f"e5m{m}", "inconclusive", ends=(-0.03 * m, 0.1)) for m in (10, 6, 5, 4)]
    rows += [row("e5m3", "shown to differ", -0.612), row("e5m2", "shown to differ", -0.99)]
    assert said(*rows) == (
        "e5m4 to e5m10: no difference shown with 4 seeds; differences up to 30 % cannot be excluded."
        " e5m3 and e5m2: return falls by 61 % and 99 %."
    )


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row("e5m4", "inconclusive", seeds_needed=16.0)],
         "e5m4: no difference shown with 4 seeds; differences up to 30 % cannot be excluded; run 16 seeds to tell."),
        ([row("e5m4", "inconclusive", ends=(np.nan, 0.1), seeds_needed=3.0)],
         "e5m4: no difference shown with 4 seeds; differences of any size cannot be excluded."),
        ([row("e5m4", "shown to differ", 0.042)], "e5m4: return rises by 4.2 %."),
        ([row("e5m4", "shown to differ", np.nan)], "e5m4: shown to differ."),
        ([row("e5m4", "shown to differ", 2e6)], "e5m4: return rises by more than 1000 %."),
        ([row("e5m4", "inconclusive", ends=(-2e6, 3.0))],
         "e5m4: no difference shown with 4 seeds; differences of more than 1000 % cannot be excluded."),
        ([row("e5m4", "cannot be said", np.nan, runs=1)], "e5m4: no verdict with 1 seed."),
        ([row("e5m4", "crashed (2 of 4)", np.nan)], "e5m4: crashed (2 of 4)."),
        ([row("int8", "equivalent within 5 %"), *(row("e5m4", "shown to differ", share) for share in (-1.0, 1.0))],
         "int8: equivalent within 5 %. e5m4: return falls by 100 %. e5m4: return rises by 100 %."),
        ([row(fmt, "equivalent within 5 %") for fmt in ("e8m7", "e5m10", "int8")],
         "e8m7, e5m10 and int8: equivalent within 5 %."),
        ([row(f"e5m{m}", "cannot be said" if m == 4 else "crashed (1 of 4)") for m in (5, 4, 3, 2)],
         "e5m5, e5m3 and e5m2: crashed (1 of 4). e5m4: cannot be said."),
    ],
)  # fmt: skip
def test_verdicts_in_words(rows, told):
    assert said(*rows) == told


def test_a_line_for_each_task_and_condition():
    rows = [row("e5m4", "inconclusive", task=task, runs=runs) for task, runs in (("all", 8), ("task 0", 4))]
    one, mean = said(*rows, tasks=2).splitlines()
    assert one.startswith("On task 0, e5m4: no difference shown with 4 seeds")
    assert mean.startswith("In the mean over tasks, e5m4: no difference shown with 4 seeds")
    found = pd.DataFrame([row("e5m4", "cannot be said", lr=rate) for rate in (1, 2)])
    assert (
        answer(found, Experiment("lr"))
        == "On task 0, lr 1, e5m4: cannot be said.\nOn task 0, lr 2, e5m4: cannot be said."
    )
    assert answer(found[:0], Experiment("lr")) == ""
