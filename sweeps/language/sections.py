"""Reads the sections of one document (a sweep file, or an argument as one) into an outline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .keys import KEYS, shown, unknown
from .outline import CASE, SECTIONS, Axis, Choice, Exclusion, Outline, alternatives, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .located_yaml import Located

_NAME_CHARACTERS = "letters, digits, '-', '_' and '.'"
_MOST = 20  # unknown keys that are named one by one: what each may have meant takes a while to find out
_TOGETHER = ("zip", "cases")
_RANDOM_KEYS = ("draws", "seed", "values")


def apply(outline: Outline, document: Located, *, own: bool = True, strict: bool = True) -> None:
    """Takes over what a document says, in place of what earlier ones said.

    Args:
        outline: mistakes are noted there, too.
        document: a mapping; its ``include`` has been applied already.
        own: whether its name and description are this sweep's; those of included files are not.
        strict: whether its exclusions must match something.
    """
    if not isinstance(document.value, dict):
        outline.complain(document.place, f"a sweep is a mapping with the keys {', '.join(SECTIONS)}")
        return
    complain_of_unknown(outline, document, "key", SECTIONS, hint=" (keys of runs stand inside base or grid)")
    parts = {key: item for key, item in document.value.items() if key in SECTIONS and item.value is not None}
    if own:
        _texts(outline, parts)
    _Parts(outline).take(parts, strict=strict)


def _texts(outline: Outline, parts: dict[str, Located]) -> None:
    for key in ("name", "description"):
        item = parts.get(key)
        if item is None:
            continue
        if not isinstance(item.value, str):
            outline.complain(item.place, f"{key} must be text, got {shown(item.plain())}")
        elif key == "name":
            outline.name = item.value
            if not _is_name(item.value):
                outline.complain(item.place, f"name must consist of {_NAME_CHARACTERS}, got {shown(item.value)}")
        else:
            outline.description = item.value.strip()
    if "reproduces" in parts:
        names = texts(parts["reproduces"])
        if names is None:
            outline.complain(parts["reproduces"].place, "reproduces must be a list of names, such as [fig4]")
        else:
            outline.reproduces = tuple(name.value for name in names)


class _Parts:
    """Reads the sections of one document into an outline."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.complain = outline.complain
        self.stands: dict[str, tuple[str, str]] = {}

    def take(self, parts: dict[str, Located], *, strict: bool) -> None:
        """Base first, the others as they stand in the file: that is the order in which they vary."""
        for section in _TOGETHER:
            if section in parts and section in self.outline.axes:
                self.outline.axes[section].choices = []  # given anew
        if "base" in parts:
            for key, value in self.settings(parts["base"], "base").items():
                self._claim(key, "base", value.place)
                self._release(key, value.place)
                self.outline.base[key] = value
        readers = {"grid": self._grid, "zip": self._zip, "cases": self._cases, "random": self._random}
        for section, item in parts.items():
            if section in readers:
                readers[section](item)
        if "exclude" in parts:
            self._exclude(parts["exclude"], strict=strict)

    def settings(self, item: Located, name: str, other: tuple[str, ...] = ()) -> dict[str, Located]:
        """The known keys of a mapping of settings; ``other`` keys are allowed beside those of runs."""
        if not isinstance(item.value, dict):
            self.complain(item.place, f"{name} must be a mapping from keys to values, got {shown(item.plain())}")
            return {}
        known = (*KEYS, *other)
        complain_of_unknown(self.outline, item, f"key in {name}", known)
        return {key: value for key, value in item.value.items() if key in known}

    def _claim(self, key: str, section: str, place: str) -> None:
        """Complains where one document gives a key in two sections. A case may differ from the base."""
        if key in self.stands and (self.stands[key][0], section) != ("base", "cases"):
            where, there = self.stands[key]
            self.complain(place, f"{key} stands in {section} and in {where} ({there}); keep one of them")
        self.stands.setdefault(key, (section, place))

    def _release(self, key: str, place: str, *, keep: str = "") -> None:
        """Takes a key away from where earlier documents have put it, before it is put elsewhere."""
        outline = self.outline
        if keep != "cases":
            outline.base.pop(key, None)
        if key != keep:
            outline.axes.pop(key, None)
        drawn = outline.random.get("values", {})
        if drawn.pop(key, None) and not drawn and keep != "random":
            outline.axes.pop("random", None)
            outline.random.clear()
        for section in _TOGETHER:
            axis = outline.axes.get(section)
            keys = axis.all_keys() if axis and section != keep else []
            if axis and key in keys and self.stands.get(key, ("",))[0] != section:
                advice = "all of its keys" if section == "zip" else "all cases"
                self.complain(
                    place,
                    f"{key} stands in {section} ({axis.place}), where values belong together; give {section} anew"
                    f" ({advice}), or choose among its runs with --only {key}=...",
                )

    def _lists(self, item: Located, name: str) -> Iterator[tuple[str, Located, list[Located]]]:
        for key, values in self.settings(item, name).items():
            self._claim(key, name, values.place)
            if not isinstance(values.value, list) or not values.value:
                got = shown(values.plain())
                self.complain(values.place, f"{name} needs a list of at least one value for {key}, got {got}")
            else:
                yield key, values, values.value

    def _grid(self, item: Located) -> None:
        for key, values, choices in self._lists(item, "grid"):
            self._release(key, values.place, keep=key)
            self.outline.axes[key] = Axis("grid", values.place, [Choice({key: v}, v.place) for v in choices])

    def _zip(self, item: Located) -> None:
        lists = {key: values for key, _, values in self._lists(item, "zip")}
        if not lists:
            return
        longest = max(lists, key=lambda key: len(lists[key]))
        for key, values in lists.items():
            if len(values) != len(lists[longest]):
                self.complain(
                    item.value[key].place,
                    f"the lists of zip go together, so they need the same length: {key} has {len(values)} values,"
                    f" {longest} has {len(lists[longest])}",
                )
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=False)]
        self._set("zip", item, [Choice(row, next(iter(row.values())).place) for row in rows])

    def _cases(self, item: Located) -> None:
        if not isinstance(item.value, list) or not item.value:
            self.complain(item.place, f"cases must be a list of at least one mapping, got {shown(item.plain())}")
            return
        choices, names = [], dict[str, str]()
        for entry in item.value:
            settings = self.settings(entry, "a case", ("name",))
            name = settings.pop("name", None)
            if name is not None and not (isinstance(name.value, str) and name.value.strip()):
                self.complain(name.place, f"the name of a case must be text, got {shown(name.plain())}")
                name = None
            if name is not None and name.value in names:
                self.complain(name.place, f"the case {name.value!r} stands twice ({names[name.value]})")
            if name is not None:
                names.setdefault(name.value, name.place)
            choices.append(Choice(settings, entry.place, name.value if name else ""))
        for key in dict.fromkeys(key for choice in choices for key in choice.settings):
            self._claim(key, "cases", next(c.settings[key].place for c in choices if key in c.settings))
        self._set("cases", item, choices)

    def _set(self, section: str, item: Located, choices: list[Choice]) -> None:
        """Gives an axis whose keys go together anew; its place in the order stays."""
        axis = self.outline.axes.setdefault(section, Axis(section, item.place, []))
        axis.place, axis.choices = item.place, choices
        for key in axis.all_keys():
            self._release(key, item.place, keep=section)

    def _random(self, item: Located) -> None:
        if not isinstance(item.value, dict):
            self.complain(item.place, f"random must be a mapping with the keys {', '.join(_RANDOM_KEYS)}")
            return
        hint = " (keys of runs stand inside values)"
        complain_of_unknown(self.outline, item, "key in random", _RANDOM_KEYS, hint=hint)
        parts = self.outline.random
        parts |= {key: item.value[key] for key in ("draws", "seed") if key in item.value}
        parts.setdefault("values", {})
        if "values" in item.value:
            for key, how in self.settings(item.value["values"], "values of random").items():
                self._claim(key, "random", how.place)
                self._release(key, how.place, keep="random")
                parts["values"][key] = how
        self.outline.axes.setdefault("random", Axis("random", item.place, []))

    def _exclude(self, item: Located, *, strict: bool) -> None:
        if not isinstance(item.value, list):
            self.complain(item.place, f"exclude must be a list of mappings, got {shown(item.plain())}")
            return
        self.outline.exclusions = []
        for entry in item.value:
            settings = self.settings(entry, "exclude", (CASE,))
            if isinstance(entry.value, dict) and not entry.value:
                self.complain(entry.place, "an empty exclusion would leave no run; give keys and values")
            if settings:
                values = {key: alternatives(value) for key, value in settings.items()}
                self.outline.exclusions.append(Exclusion(values, entry.place, strict))


def complain_of_unknown(outline: Outline, item: Located, what: str, known: Sequence[str], *, hint: str = "") -> None:
    """Complains of the keys of a mapping that are not known, with a hint where they are keys of runs."""
    strange = [key for key in item.value if key not in known]
    places = item.key_places or {}
    for key in strange[:_MOST]:
        outline.complain(places[key], unknown(what, key, known) + (hint if key in KEYS else ""))
    if len(strange) > _MOST:
        outline.complain(places[strange[_MOST]], f"{len(strange) - _MOST} more are unknown from here on")


def _is_name(text: str) -> bool:
    return bool(text) and not text.startswith(".") and all(c.isascii() and (c.isalnum() or c in "-_.") for c in text)
