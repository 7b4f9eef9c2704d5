"""Reads the documents of a sweep: its file, the files that it includes, and ``key=value`` arguments."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roundoff.errors import RoundoffError, suggestion
from roundoff.files import read_bytes

from ..errors import Problem, Problems, SweepError, SweepFileError
from ..subjects.agents import AGENTS
from ..subjects.program import Program
from ..subjects.program_keys import ProgramKeys
from ..subjects.subject import Subject
from ..wording import shown, unknown
from .located_yaml import Located, parse
from .outline import Document, alternatives
from .preset_files import includable_files, preset_files
from .shape import sections
from .shorthand import expand_shorthand, read_values
from .sweep_file import CASE, SECTIONS

if TYPE_CHECKING:
    from ...simulate import CostModel

_LARGEST = 1 << 24  # bytes of a file
_MAX_FILES = 100  # files that a sweep may include, in all
_MAX_DEPTH = 8  # levels of includes in which a program is looked for
_RESERVED = (*SECTIONS, CASE)  # names that no parameter of a program can have
_FILE_ENDINGS = (".yaml", ".yml", ".json")


def read_file(path: str | Path) -> str:
    """Reads the text of a file.

    Raises:
        SweepError: it cannot be read.
    """
    try:
        return _read_content(Path(path)).decode()
    except OSError as error:
        advice = f"give a YAML file, or a name that `roundoff presets` lists{suggestion(path, preset_files())}"
        raise SweepError(f"{path}: cannot be read ({error.strerror}); {advice}") from error
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise SweepError(f"{path}: is not UTF-8 text (byte {error.start}), as a YAML file must be") from error
        raise SweepError(f"{str(path)!r}: cannot be read ({error}); give a YAML file") from error


def _read_content(path: Path) -> bytes:
    """Reads a regular file, or a file made by the shell, as in ``roundoff sweep <(generate)``."""
    # Such a pipe is not a regular file, which `read_bytes` refuses: a pipe in a folder of results could block for ever.
    if str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/")):
        with path.open("rb") as file:
            return file.read(_LARGEST)
    return read_bytes(path, _LARGEST)


def read_cost_model(name: str) -> CostModel:
    """Returns a model of the cost of products, by its name, or from a YAML file.

    Raises:
        FormatError: no model has this name.
        SweepError: the file cannot be read, or does not describe a model.
    """
    from ...simulate import CostModel  # noqa: PLC0415  imports torch, which costs seconds

    if not (_is_file_name(name) or Path(name).is_file()):
        return CostModel.parse(name)
    try:
        text = read_bytes(name, _LARGEST).decode()
    except OSError as error:
        raise SweepError(f"{name}: cannot be read ({error.strerror}); give the YAML file of a cost model") from error
    except ValueError as error:
        raise SweepError(f"{name}: is not UTF-8 text, as the YAML file of a cost model must be") from error
    description = parse(text, name, needs="a cost model needs at least name, source and unit").plain()
    try:
        return CostModel.parse(description if isinstance(description, dict) else {"name": description})
    except RoundoffError as error:
        raise SweepError(f"{name}: {error}") from error


def read_document(text: str, source: str, program: Program | None = None) -> tuple[Located, Subject]:
    """Reads a sweep file, and finds the subject of its runs.

    Args:
        text: the text of the file.
        source: its path, or its name in messages; included files are looked for in the same folder.
        program: the program, if the text was made by a program: messages then lack lines and columns.

    Raises:
        SweepFileError: it is not YAML, or its program cannot be imported.
    """
    document = parse(text, source, columns=program is None)
    if program:
        return document, ProgramKeys(program, _RESERVED)
    if (entry := _find_program(document, Path(source))) is None:
        return document, AGENTS
    name, file = entry
    try:
        return document, ProgramKeys(Program.named(name.value, file.parent), _RESERVED)
    except SweepError as error:
        raise SweepFileError([Problem(name.place, f"program: {error}")]) from error


def include(
    document: Located, source: str, arguments: Sequence[str], subject: Subject, problems: Problems
) -> list[Document]:
    """Collects the documents of a sweep in their order: later values replace earlier ones.

    Args:
        document: the sweep file; the files that it includes come before it.
        source: its path, or its name in messages.
        arguments: ``key=value``, ``section=value`` or ``section.key=value``, each with a YAML value; they come last.
        subject: the subject of the runs.
        problems: takes the mistakes.
    """
    reader = _Reader(subject, problems)
    reader.read(document, Path(source), strict=not arguments)
    for argument in arguments:
        if (setting := argument_document(argument, subject, problems)) is not None:
            reader.read(setting, Path("arguments"), strict=False)
    return reader.documents


def argument_document(argument: str, subject: Subject, problems: Problems) -> Located | None:
    """Turns a ``key=value`` argument into the equivalent sweep file; None, with a complaint, if it is invalid."""
    keys = subject.keys
    pair = read_argument(argument, (*keys, *(section for section in SECTIONS if section != "program")), problems)
    if pair is None:
        return None
    name, value = pair
    if name in keys:  # `1..10` and `{e5mX: 1..10}` are lists here
        expanded = read_values(name, value, subject, problems)
        if expanded is None:
            return None
        value = expanded
    path = [part.strip() for part in name.split(".")]
    if name in keys:
        path.insert(0, "grid" if isinstance(value.value, list) else "base")
    for key in reversed(path):  # search.until=... becomes {search: {until: ...}}
        value = Located({key: value}, value.place, {key: value.place})
    return value


def read_argument(argument: str, known: Sequence[str], problems: Problems) -> tuple[str, Located] | None:
    """Splits ``key=value``; returns None, with a complaint, if the argument is invalid.

    Args:
        argument: the argument; ``section.key=value`` is allowed for a section among ``known``.
        known: the valid keys.
        problems: takes the complaints.
    """
    place = f"argument {shown(argument)}"
    name, equals, text = argument.partition("=")
    name = name.strip()
    section = name.split(".")[0].strip()
    if not equals:
        problems.note(place, "must have the form key=value")
    elif name not in known and not (section in SECTIONS and section in known):
        problems.note(place, unknown("key", name, [key for key in known if key not in SECTIONS]))
    else:
        try:
            return name, parse(text, place, columns=False)
        except SweepFileError as error:
            problems += error.problems
    return None


class _Reader:
    """Collects documents, included documents before the documents that include them."""

    def __init__(self, subject: Subject, problems: Problems) -> None:
        self._subject, self._problems = subject, problems
        self._files = 0
        self.documents: list[Document] = []

    def read(self, document: Located, path: Path, *, strict: bool, chain: tuple[Path, ...] = ()) -> None:
        """Collects a document and its included files.

        Args:
            document: the parsed document.
            path: the path of the document.
            strict: whether its exclusions must match something; those of included files need not.
            chain: the files that include it, the outermost first.
        """
        expanded = expand_shorthand(document, self._subject, self._problems)
        parts = sections(expanded, self._subject.keys, self._problems)
        if "search" in parts:
            parts["search"] = _resolve_model_path(parts["search"], path)
        for name in alternatives(parts["include"]) if "include" in parts else ():
            self._include(name, path, chain)
        self.documents.append(Document(parts, is_main=not chain, strict=strict))

    def _include(self, name: Located, path: Path, chain: tuple[Path, ...]) -> None:
        file = _find_included(name.value, path)
        if file is None:
            message = unknown("name in include", name.value, sorted(includable_files()))
            self._problems.note(name.place, f"{message}; a file's name ends with {', '.join(_FILE_ENDINGS)}")
            return
        # A chain of real paths: a circle may lead through links.
        chain = (*chain, path)
        paths = [_canonical_path(path) for path in chain]
        if _canonical_path(file) in paths:
            cycle = [*chain[paths.index(_canonical_path(file)) :], file]
            self._problems.note(name.place, f"files include each other in a circle: {' -> '.join(map(str, cycle))}")
            return
        self._files += 1
        if self._files > _MAX_FILES:
            self._problems.note(name.place, f"more than {_MAX_FILES} files are included; at most that many may be")
            return
        try:
            document = _parse_cached(read_file(file), str(file))
        except SweepFileError as error:
            self._problems += error.problems
        except SweepError as error:
            self._problems.note(name.place, str(error))
        else:
            self.read(document, file, strict=False, chain=chain)


def _find_included(name: str, path: Path) -> Path | None:
    """Returns the file that ``path`` includes by this name; None if it is neither a preset's nor a file's name."""
    known = includable_files()
    if name in known:
        return known[name]
    return path.parent / name if _is_file_name(name) else None


def _is_file_name(name: str) -> bool:
    return name.endswith(_FILE_ENDINGS) or "/" in name


def _resolve_model_path(search: Located, path: Path) -> Located:
    """Resolves the path of a cost model in the section ``search``, which is relative to the file of the section."""
    by = search.value.get("by") if isinstance(search.value, dict) else None
    if by is None or not isinstance(by.value, str) or not _is_file_name(by.value):
        return search
    resolved = Located(str(path.parent / by.value), by.place)
    return Located({**search.value, "by": resolved}, search.place, search.key_places)


def _find_program(document: Located, path: Path, depth: int = 0) -> tuple[Located, Path] | None:
    """Finds the program of a document, or else of the last included file with one; returns it, and its file.

    The program defines the keys, so it is looked for before any check. Other mistakes are reported later.
    """
    sections = document.value if isinstance(document.value, dict) else {}
    if (entry := sections.get("program")) is not None and isinstance(entry.value, str):
        return entry, path
    included = alternatives(sections["include"]) if "include" in sections else []
    for name in reversed(included) if depth < _MAX_DEPTH else ():
        file = _find_included(name.value, path) if isinstance(name.value, str) else None
        try:
            program = _find_program(_parse_cached(read_file(file), str(file)), file, depth + 1) if file else None
        except SweepError:
            continue
        if program:
            return program
    return None


def _canonical_path(path: Path) -> str:
    """Returns the canonical path of a file; a text that is not a valid path is returned unchanged."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)


@functools.lru_cache(maxsize=32)
def _parse_cached(text: str, source: str) -> Located:
    return parse(text, source)
