"""Reads a sweep file with all it includes, and ``key=value`` arguments, into an outline."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roundoff.errors import RoundoffError, suggestion
from roundoff.files import read_bytes

from ..errors import Problem, SweepError, SweepFileError
from ..subjects.program import Program
from ..subjects.program_keys import ProgramKeys
from ..wording import shown, unknown
from .located_yaml import Located, parse
from .outline import Outline, alternatives, merge
from .preset_files import includable_files, preset_files
from .shape import sections
from .shorthand import several, written_out
from .sweep_file import CASE, SECTIONS

if TYPE_CHECKING:
    from ...simulate import CostModel

_LARGEST = 1 << 24  # bytes of a file
_MAX_FILES = 100  # that a sweep may include, in all
_DEEPEST = 8  # include within include in which a program is looked for
_RESERVED = (*SECTIONS, CASE)  # no parameter of a program can have these names
_FILE_ENDINGS = (".yaml", ".yml", ".json")


def read_file(path: str | Path) -> str:
    """The text of a file.

    Raises:
        SweepError: it cannot be read.
    """
    try:
        return _content(Path(path)).decode()
    except OSError as error:
        advice = f"give a YAML file, or a name that `roundoff presets` lists{suggestion(path, preset_files())}"
        raise SweepError(f"{path}: cannot be read ({error.strerror}); {advice}") from error
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise SweepError(f"{path}: is not UTF-8 text (byte {error.start}); a YAML file is") from error
        raise SweepError(f"{str(path)!r}: cannot be read ({error}); give a YAML file") from error


def _content(path: Path) -> bytes:
    """Reads a regular file, or a file made by the shell, as in ``roundoff sweep <(generate)``."""
    if str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/")):
        with path.open("rb") as file:
            return file.read(_LARGEST)
    return read_bytes(path, _LARGEST)


def read_cost_model(name: str) -> CostModel:
    """A model of what products cost, by its name, or as a YAML file describes it.

    Raises:
        FormatError: no model has this name.
        SweepError: the file cannot be read, or describes no model.
    """
    from ...simulate import CostModel  # noqa: PLC0415  imports torch, which costs seconds

    if not (_is_file_name(name) or Path(name).is_file()):
        return CostModel.parse(name)
    try:
        text = read_bytes(name, _LARGEST).decode()
    except OSError as error:
        raise SweepError(f"{name}: cannot be read ({error.strerror}); a cost model's YAML file was wanted") from error
    except ValueError as error:
        raise SweepError(f"{name}: is not UTF-8 text; the YAML file of a cost model is") from error
    described = parse(text, name, needs="a cost model needs at least name, source and unit").plain()
    try:
        return CostModel.parse(described if isinstance(described, dict) else {"name": described})
    except RoundoffError as error:
        raise SweepError(f"{name}: {error}") from error


def read_outline(text: str, source: str, arguments: Sequence[str], program: Program | None = None) -> Outline:
    """Reads the outline of a sweep from its file and arguments.

    Args:
        text: the text of the file.
        source: its path, or its name in messages; included files are looked for in the same folder.
        arguments: ``key=value``, ``section=value`` or ``section.key=value``, each with a YAML value.
        program: the program, if the text comes from a program, without columns to refer to, and not from a file.

    Raises:
        SweepFileError: it is not YAML, or its program cannot be imported; the outline records all other mistakes.
    """
    outline = Outline()
    reader = _Reader(outline)
    document = parse(text, source, columns=program is None)
    if program:
        outline.subject = ProgramKeys(program, _RESERVED)
    elif stated := _program(document, Path(source)):
        named, file = stated
        try:
            outline.subject = ProgramKeys(Program.named(named.value, file.parent), _RESERVED)
        except SweepError as error:
            raise SweepFileError([Problem(named.place, f"program: {error}")]) from error
    reader.read(document, Path(source), strict=not arguments)
    for argument in arguments:
        said = argument_document(argument, outline)
        if said is not None:
            reader.read(said, Path("arguments"), strict=False)
    return outline


def argument_document(argument: str, outline: Outline) -> Located | None:
    """A ``key=value`` argument as the equivalent sweep file; None, with a complaint, if it is invalid."""
    keys = outline.subject.keys
    found = read_argument(argument, outline, (*keys, *(section for section in SECTIONS if section != "program")))
    if found is None:
        return None
    name, value = found
    if name in keys:
        full = several(name, value, outline)
        if full is None:
            return None
        value = full
    path = [part.strip() for part in name.split(".")]
    if name in keys:
        path.insert(0, "grid" if isinstance(value.value, list) else "base")
    for key in reversed(path):
        value = Located({key: value}, value.place, {key: value.place})
    return value


def read_argument(argument: str, outline: Outline, known: Sequence[str]) -> tuple[str, Located] | None:
    """The key and the value of ``key=value``; None, with a complaint, if the argument is invalid.

    Args:
        argument: as given; ``section.key=value`` is one where the section is ``known``.
        outline: takes the complaints.
        known: the valid keys.
    """
    place = f"argument {shown(argument)}"
    name, equals, text = argument.partition("=")
    name = name.strip()
    section = name.split(".")[0].strip()
    if not equals:
        outline.complain(place, "must have the form key=value")
    elif name not in known and not (section in SECTIONS and section in known):
        outline.complain(place, unknown("key", name, [key for key in known if key not in SECTIONS]))
    else:
        try:
            return name, parse(text, place, columns=False)
        except SweepFileError as error:
            outline.problems += error.problems
    return None


class _Reader:
    """Applies documents to an outline, included documents before the documents that include them."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.files = 0

    def read(self, document: Located, path: Path, *, strict: bool, chain: tuple[Path, ...] = ()) -> None:
        """Applies a document and its included files.

        Args:
            document: as parsed.
            path: the path of the document.
            strict: whether its exclusions must match something; those of included files need not.
            chain: the files that include it, the outermost first.
        """
        found = sections(written_out(document, self.outline), self.outline)
        if "search" in found:
            found["search"] = _with_model_beside(found["search"], path)
        for name in alternatives(found["include"]) if "include" in found else ():
            self._include(name, path, chain)
        merge(self.outline, found, own=not chain, strict=strict)

    def _include(self, name: Located, path: Path, chain: tuple[Path, ...]) -> None:
        found = _included_file(name.value, path)
        if found is None:
            message = unknown("name in include", name.value, sorted(includable_files()))
            self.outline.complain(name.place, f"{message}; a file's name ends with {', '.join(_FILE_ENDINGS)}")
            return
        chain = (*chain, path)
        files = [_same(file) for file in chain]
        if _same(found) in files:
            circle = [*chain[files.index(_same(found)) :], found]
            self.outline.complain(name.place, f"files include each other in a circle: {' -> '.join(map(str, circle))}")
            return
        self.files += 1
        if self.files > _MAX_FILES:
            self.outline.complain(name.place, f"more than {_MAX_FILES} files are included; at most that many may be")
            return
        try:
            document = _parsed(read_file(found), str(found))
        except SweepFileError as error:
            self.outline.problems += error.problems
        except SweepError as error:
            self.outline.complain(name.place, str(error))
        else:
            self.read(document, found, strict=False, chain=chain)


def _included_file(name: str, path: Path) -> Path | None:
    """The file that ``path`` includes by this name."""
    named = includable_files()
    if name in named:
        return named[name]
    return path.parent / name if _is_file_name(name) else None


def _is_file_name(name: str) -> bool:
    return name.endswith(_FILE_ENDINGS) or "/" in name


def _with_model_beside(search: Located, path: Path) -> Located:
    """The section ``search``; the path of a cost model is relative to the file that names it."""
    by = search.value.get("by") if isinstance(search.value, dict) else None
    if by is None or not isinstance(by.value, str) or not _is_file_name(by.value):
        return search
    beside = Located(str(path.parent / by.value), by.place)
    return Located({**search.value, "by": beside}, search.place, search.key_places)


def _program(document: Located, path: Path, depth: int = 0) -> tuple[Located, Path] | None:
    """The program of a document, or else of the last file it includes that has one, and the file that says it.

    It is looked for before any check, as it defines the keys. Mistakes found on the way are reported later.
    """
    sections = document.value if isinstance(document.value, dict) else {}
    if (stated := sections.get("program")) is not None and isinstance(stated.value, str):
        return stated, path
    included = alternatives(sections["include"]) if "include" in sections else []
    for name in reversed(included) if depth < _DEEPEST else ():
        file = _included_file(name.value, path) if isinstance(name.value, str) else None
        try:
            found = _program(_parsed(read_file(file), str(file)), file, depth + 1) if file else None
        except SweepError:
            continue
        if found:
            return found
    return None


def _same(path: Path) -> str:
    """The canonical path of a file; a text that is not a valid path is returned as it is."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)


@functools.lru_cache(maxsize=32)
def _parsed(text: str, source: str) -> Located:
    return parse(text, source)
