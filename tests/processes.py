"""Processes of this machine, seen from a test: whether they live, whose they are, and waiting for something."""

import time
from pathlib import Path

PATIENCE = 600.0  # seconds that anything may take, on a machine with a lot else to do

# Trains a run: python -c TRAINING KEYS FOLDER [FILE]. After each checkpoint it waits until there is the file, so that a
# slow test finds it at work.
TRAINING = """
import json, sys, time
from pathlib import Path
from roundoff.agents import TrainConfig, train
from roundoff.agents.run import checkpoint

def save_and_wait(path, state, save=checkpoint.save):
    save(path, state)
    while path.name == "checkpoint.pt" and not Path(sys.argv[3]).exists():
        time.sleep(0.01)

if len(sys.argv) > 3:
    checkpoint.save = save_and_wait
train(TrainConfig(**json.loads(sys.argv[1])), sys.argv[2], compiled=False)
"""


def alive(pid):
    """Whether a process runs; one that has ended, and that nobody has asked for its status, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    """The ids of the processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def wait_until(condition, seconds=PATIENCE):
    """What ``condition`` returns, once that is something."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)
    return found
