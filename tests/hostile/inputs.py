"""Inputs that nobody means well with, and the commands that get them: results folders, texts, files that are none."""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from unicodedata import category

import numpy as np

from roundoff.cli import main

ESCAPES = "\x1b]0;OWNED\x07\x1b[2J\x9b31m\x1b[1;31mall runs done, password: "

TEXTS = {
    "escapes": ESCAPES,
    "lines": "one\ntwo\r\nthree\tfour\x0b\x0c\x85\u2028five",
    "upwards": "../../../../precious/file",
    "absolute": "/precious/file",
    "nul": "a\0b",
    "long": "x" * 100_000,
    "right to left": "\u202egnp.exe\u2066",
    "half a pair": "\ud800",
    "formula": "$\\frac{$ \\input{/etc/passwd} \\\\ %s {0} {x!r}",
    "markup": "<script>alert(1)</script>[bold red]x[/nothing]&amp;|`",
    "commands": "'; touch precious/PWNED; `touch precious/PWNED` $(touch precious/PWNED) --out=precious",
    "empty": "",
}
"""Texts to put where a name, a task, a reason or any other text is expected."""

VALUES = {
    "null": "null",
    "a number": "3",
    "a huge number": "1e999",
    "a long number": "1" * 5000,
    "not a number": "NaN",
    "below zero": "-1",
    "text": '"text"',
    "true": "true",
    "a list": "[]",
    "a list of lists": "[[], {}]",
    "a mapping": "{}",
    "deep": "[" * 200_000 + "]" * 200_000,
    "deep mappings": '{"a":' * 50_000 + "1" + "}" * 50_000,
}
"""Values to put where a number, a list or a mapping is expected, as JSON."""


def _torn(path):
    path.write_bytes(b'{"a": 1, "b')


def _binary(path):
    path.write_bytes(bytes(range(256)) * 10)


def _giant(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room


def _loop(path):
    path.symlink_to(path.name)


FILES = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": _torn,
    "binary": _binary,
    "not utf-8": lambda path: path.write_bytes(b'{"name": "\xff\xfe"}'),
    "giant": _giant,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "link to itself": _loop,
    "link to nothing": lambda path: path.symlink_to("/precious/nothing"),
}
"""Files that are not what they are called, each made at a path where there is none."""


def write_results(folder, runs=3):
    """A small sweep that has ended, with one of every kind of file."""
    planned = []
    for number in range(runs):
        fmt, seed = ("fp32", "e5m10")[number % 2], number // 2
        identity = f"cartpole_swingup-{fmt}-s{seed}-0123456789"
        config = {
            "task": "cartpole_swingup",
            "format": fmt,
            "seed": seed,
            "fixes": [],
            "steps": 3000,
            "keep_networks": True,
        }
        run = folder / "runs" / identity
        run.mkdir(parents=True)
        _write(run / "config.json", {"config": config, "version": "0.1.0"})
        crash = {"step": 1500, "reason": "the policy took a non-finite action"} if number == 2 else None
        _write(
            run / "result.json",
            {
                "status": "crashed" if crash else "done",
                "return": 100.0 + number,
                "return_std": 2.0,
                "step": 3000,
                "crash": crash,
            },
        )
        _write(run / "timing.json", {"seconds": 36.0, "steps_per_second": 80.0, "spent": {"updates": 30.0}})
        records = []
        for step in (1000, 2000, 3000):
            records.append({"kind": "train", "step": step, "episode_return": 1.0, "q": 0.5, "temperature": 0.1})
            records.append(
                {"kind": "eval", "step": step, "return_mean": 30.0 * number, "return_std": 1.0, "returns": [1.0]}
            )
            records.append({"kind": "numerics", "step": step, "backward": {"results": 3, "exponents": {"-3": 3}}})
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        columns = (
            "results",
            "overflow",
            "underflow",
            "subnormal",
            "infinite",
            "nan",
            "inexact",
            "additions",
            "absorbed",
        )
        (run / "numerics.csv").write_text(
            f"role,operation,{','.join(columns)}\nbackward,mm,{','.join('1' * len(columns))}\n"
        )
        (run / "snapshots").mkdir()
        np.savez(
            run / "snapshots" / "1000.npz",
            actor_0=np.ones((1, 2, 2)),
            actor_1=np.ones((1, 1, 2)),
            critic_0=np.full((2, 2, 1), number),
            critic_1=np.ones((2, 1, 1)),
        )
        np.savez(run / "snapshots" / "states.npz", inputs=np.ones((3, 2)))
        planned.append({"id": identity, "config": config, "case": "one"})
    (folder / "leases").mkdir()
    (folder / "logs").mkdir()
    (folder / "leases" / f"{planned[0]['id']}.1").write_text('["host", "machine", 1, 1]\n{"beat": 1, "step": 5}\n')
    (folder / "logs" / "worker-1.log").write_text("roundoff: stopped as asked\n")
    _write(
        folder / "sweep.json",
        {"layout": 1, "name": "demo", "description": "", "varying": ["format", "seed"], "runs": planned},
    )
    return folder


def _write(path, value):
    path.write_text(json.dumps(value))


def places(value, path=()):
    """Yields the path to everything that stands in JSON, in lists to the first entry alone."""
    inside = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def replaced(value, way, text):
    """JSON text in which ``text`` (JSON too) stands at a place."""
    mark = "\0here"
    copy = json.loads(json.dumps(value))
    part = copy
    for key in way[:-1]:
        part = part[key]
    part[way[-1]] = mark
    return json.dumps(copy).replace(json.dumps(mark), text)


class Late(BaseException):
    """Raised where something hangs; no program takes it for one of its own errors."""


@contextmanager
def no_longer_than(seconds):
    """Ends what hangs, at a pipe or in a loop."""

    def late(*_):
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tree(folder):
    """All there is in a folder, with the contents of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
        found[str(path.relative_to(folder))] = path.read_bytes() if kind == "file" else kind
    return found


class Commands:
    """Runs commands in this process, in a folder beside precious files, and checks what must never happen."""

    def __init__(self, root, capfd, monkeypatch):
        self.capfd, self.monkeypatch = capfd, monkeypatch
        self.precious, self.work = root / "precious", root / "work"
        (self.precious / "folder").mkdir(parents=True)
        self.work.mkdir()
        for name in ("file", "folder/file", ".bashrc"):
            (self.precious / name).write_text("mine")
        for module in ("evil", "random", "torch"):  # that a sweep file may name, or that a worker may find here
            (self.work / f"{module}.py").write_text(
                f"import pathlib; pathlib.Path({str(self.precious / 'ran')!r}).touch()"
            )
        monkeypatch.chdir(self.work)

    def run(self, *arguments, allowed=(0, 2)):
        """Runs a command; returns its status and what it printed.

        It ends in time, with a status of those that are allowed and without a traceback. It prints nothing that a
        terminal obeys or hides, leaves all precious files as they are, adds none, and imports no module that lies in
        the working folder.
        """
        before = tree(self.precious)
        self.monkeypatch.setattr(sys, "argv", ["roundoff", *map(str, arguments)])
        self.capfd.readouterr()
        status = 0
        with no_longer_than(60):
            try:
                main()
            except SystemExit as end:
                status = end.code or 0
        out, err = self.capfd.readouterr()
        said = out + err
        about = f"roundoff {' '.join(map(str, arguments))}: {status}\n{said[-3000:]}".encode(errors="replace").decode()
        assert "Traceback" not in said, about
        obeyed = {character for character in said if category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
        assert not obeyed, f"{obeyed}: {about}"
        assert status in allowed, about
        assert tree(self.precious) == before, about
        assert "evil" not in sys.modules, about
        return status, out, err

    def look(self, folder, *, page=True):
        """Runs the commands that read a folder of results, ``report`` if ``page``; returns what they said."""
        said = [
            self.run("status", folder, allowed=(0, 1, 2, 3)),
            self.run("collect", folder, "-o", self.work / "records.parquet"),
        ]
        if page:
            said.append(self.run("report", folder))
        return "".join(out + err for _, out, err in said)
