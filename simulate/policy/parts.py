"""Named parts of a program: functions while they run, and blocks named by the program."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from ...formats import FormatError

_BEFORE_MODULE = ": "  # with a space, since names of parts may have a colon
_INSIDE = "/"


def place_in(part: str, module: str) -> str:
    """Returns the path of a module in a part: ``generate: Llama.layers.0``; without a part only the module."""
    return f"{part}{_BEFORE_MODULE}{module}" if part else module


def split(place: str) -> tuple[str, str]:
    """Splits a path of :func:`place_in` into the part and the module."""
    part, colon, module = place.partition(_BEFORE_MODULE)
    return (part, module) if colon else ("", place)


def inside_of(part: str, name: str) -> str:
    """Returns the path of part ``name`` inside of another part; a part that calls itself stays the same."""
    names = part.split(_INSIDE) if part else []
    return part if name in names else _INSIDE.join((*names, name))


def fits(part: str, patterns: Sequence[str]) -> bool:
    """Whether a part (empty: none) or an enclosing one fits a pattern, and none fits a pattern after ``!``."""
    names = part.split(_INSIDE)
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    included = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]  # only exclusions: all others
    return _any_fits(names, included) and not _any_fits(names, excluded)


def _any_fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fits_name(name, pattern) for name in names for pattern in patterns)


def fits_name(name: str, pattern: str) -> bool:
    """Whether the name of one part, ``function`` or ``package.module:function``, fits a pattern of either kind."""
    return fnmatchcase(name if ":" in pattern else name.rpartition(":")[2], pattern)


class Parts(NamedTuple):
    """The parts that a program was in while it was followed.

    Attributes:
        entered: names of the parts that began.
        functions: qualified names of all functions that were called, if functions were followed.
    """

    entered: set[str]
    functions: set[str]


NO_PARTS = Parts(set(), set())


class PartFollower(Protocol):
    """Follows the parts of the program that begin and end in a thread."""

    parts: Parts
    """The parts that the program was in while this followed it."""

    def part_begins(self, name: str) -> None:
        """A part of this name begins."""

    def part_ends(self) -> None:
        """The part that began last ends."""


class _Watch:
    """The state of one follower in one thread.

    Args:
        follower: the object to notify of parts.
        patterns: patterns of the functions that are parts; without any, only blocks are.
    """

    def __init__(self, follower: PartFollower, patterns: Sequence[str]) -> None:
        self.follower = follower
        self.times = 1  # the number of times that it was followed and not yet unfollowed
        self.patterns = patterns
        # By the address of the code: the code (a reference keeps the address unique), and its name if it is a part.
        self._names_by_code: dict[int, tuple[CodeType, str | None]] = {}
        self._frames: list[int] = []  # the ids of running functions that are parts, the innermost last
        self._open = 0

    def part_begins(self, name: str) -> None:
        """Notifies the follower of a part that begins."""
        self._open += 1
        self.follower.parts.entered.add(name)
        self.follower.part_begins(name)

    def part_ends(self) -> None:
        """Notifies the follower of the end of the part that began last."""
        self._open -= 1
        self.follower.part_ends()

    def leave(self) -> None:
        """Notifies the follower of the end of all open parts."""
        while self._open:
            self.part_ends()

    def begins(self, frame: FrameType) -> None:
        """Handles a function that begins or resumes."""
        code = frame.f_code
        entry = self._names_by_code.get(id(code))
        if entry is None:
            entry = self._names_by_code[id(code)] = code, self._name(frame)
        if entry[1] is not None:
            self._frames.append(id(frame))
            self.part_begins(entry[1])

    def ends(self, frame: FrameType) -> None:
        """Handles a function that ends or is suspended."""
        if self._frames and self._frames[-1] == id(frame):
            self._frames.pop()
            self.part_ends()

    def _name(self, frame: FrameType) -> str | None:
        name = frame.f_code.co_qualname
        self.follower.parts.functions.add(name)
        full = f"{frame.f_globals.get('__name__')}:{name}"
        fitting = [pattern for pattern in self.patterns if fits_name(full, pattern)]
        if not fitting:
            return None
        return full if any(":" in pattern for pattern in fitting) else name  # with the module where a pattern has it


class _ThreadState(threading.local):
    """The state of all followers in this thread."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.watches: list[_Watch] = []
        self.hook: Callable[[FrameType, str, Any], object] | None = None
        self.other_profiler: Any = None


_state = _ThreadState()


@contextmanager
def part(name: str) -> Iterator[None]:
    """Makes the operations in a block belong to a named part of the program. Also a decorator.

    ``with roundoff.part("rollout"):`` gives a part of your code a name. Rules of policies use it to give the part an
    arithmetic (``Rule(within="rollout", format="e4m3")``), and audits and reports to list the operations in it.
    Functions need no such block: rules know them by their qualified names. Operations of the backward pass belong to
    the part of their forward operation. Outside of simulations it does nothing. A generator that is suspended inside of
    the block leaves its caller in the part; a generator that a rule names as a function does not.

    Args:
        name: any text without ``/ : * ? [ !``.

    Raises:
        FormatError: the name is not such a text.
    """
    if not isinstance(name, str) or not name.strip() or set(name) & set("/:*?[!"):
        raise FormatError(f"name of a part must be a text without / : * ? [ !, got {name!r}")
    _state.parts.append(name)
    watches = list(_state.watches)  # a copy: a simulation may be entered or left within the block
    try:
        for watch in watches:
            watch.part_begins(name)
        yield
    finally:
        for watch in watches:
            if watch in _state.watches:  # else its end has closed the part
                watch.part_ends()
        _state.parts.pop()


def follow(follower: PartFollower, patterns: Sequence[str]) -> None:
    """Notifies a follower of parts, from now on and in this thread, and first of the current parts.

    Args:
        follower: the object to notify; if it already follows, this is counted.
        patterns: patterns of functions, by qualified name, or by ``package.module:`` and that.

    Raises:
        FormatError: a profiler that is not written in Python occupies the hook for following function calls.
    """
    watch = _watch_of(follower)
    if watch:
        watch.times += 1
        return
    watch = _Watch(follower, patterns)
    if patterns and _state.hook is None:
        _take_hook()
    _state.watches.append(watch)
    for name in _state.parts:
        watch.part_begins(name)
    if patterns:
        for frame in _stack():  # functions that run already
            watch.begins(frame)


def unfollow(follower: PartFollower) -> bool:
    """Undoes :func:`follow`.

    Returns:
        Whether functions were followed all the time; False if a profiler that began meanwhile has ended it.
    """
    watch = _watch_of(follower)
    if watch is None:
        return True
    watch.times -= 1
    if watch.times == 0:
        _state.watches.remove(watch)
        watch.leave()
        if _state.hook is not None and not any(other.patterns for other in _state.watches):
            hook, profiler = _state.hook, _state.other_profiler
            _state.hook = _state.other_profiler = None
            if sys.getprofile() is not hook:
                return False
            sys.setprofile(profiler)
    return True


def _watch_of(follower: PartFollower) -> _Watch | None:
    return next((watch for watch in _state.watches if watch.follower is follower), None)


def _stack() -> list[FrameType]:
    """Returns the frames of this thread, the outermost one first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _take_hook() -> None:
    profiler = sys.getprofile()
    if profiler is not None and not callable(profiler):
        raise FormatError(
            "rules within functions follow calls by sys.setprofile, which another profiler (cProfile) has taken: run"
            " without it"
        )
    watches = _state.watches

    def hook(frame: FrameType, event: Any, argument: Any) -> None:
        if event == "call":  # also when a generator resumes; "return" also when it is suspended
            for watch in watches:
                watch.begins(frame)
        elif event == "return":
            for watch in watches:
                watch.ends(frame)
        if profiler is not None:  # one in Python, which this hook has replaced
            profiler(frame, event, argument)

    _state.hook, _state.other_profiler = hook, profiler
    sys.setprofile(hook)
