"""What a person sees of a running sweep."""

import io

from rich.console import Console

from roundoff.sweeps import plan_text
from roundoff.sweeps.display.progress import ProgressDisplay
from roundoff.sweeps.workers.pool import Event

RUNS = plan_text("name: mine\nbase: {steps: 4000, seed_steps: 100}\ngrid: {seed: [0, 1, 2]}", "mine").runs
PROGRESS = {"step": 1000, "return": 12.34, "rate": 99.6, "loss_scale": 1024.0}


def show(console):
    with ProgressDisplay(console) as display:
        display.begin(RUNS, 2, 2)
        display.event(Event("started", RUNS[0]), "waiting", 0.0)
        display.event(Event("progress", RUNS[0], progress=PROGRESS), "waiting", 0.0)
        display.event(Event("started", RUNS[1]), "waiting", 0.0)
        display.event(Event("elsewhere", RUNS[1]), "waiting", 0.0)
        display.event(Event("ended", RUNS[1]), "done", 5.0)
    return console.file.getvalue()


def test_a_live_table_on_a_terminal():
    shown = show(Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False, no_color=True))
    for part in (RUNS[0].id, "25 %", "step 1000", "return 12.3", "100 steps/s", "loss scale 1024", "1 done of 3 runs"):
        assert part in shown


def test_plain_lines_elsewhere():
    assert show(Console(file=io.StringIO(), width=200)).splitlines() == [
        "3 runs to do, 2 finished before; starting 2 workers",
        f"[1/3] {RUNS[1].id}: done, return 5.0, 0 s",
    ]


def test_the_rounds_of_a_search_are_counted_together():
    file = io.StringIO()
    with ProgressDisplay(Console(file=file, width=200)) as display:
        for i in range(2):
            display.begin(RUNS[i : i + 1], i, 2)
            display.event(Event("started", RUNS[i]), "waiting", 0.0)
            display.event(Event("ended", RUNS[i]), "done", 5.0)
    assert [line[:5] for line in file.getvalue().splitlines() if line.startswith("[")] == ["[1/1]", "[2/2]"]
