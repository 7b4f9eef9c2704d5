"""Classes that options may name, from a fixed list: nothing else named in a file is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from roundoff.errors import check_name

_PLACES = {
    **{f"roundoff:{name}": f"..optimizers.{name.lower()}:{name}" for name in ("Adam", "HAdam")},
    "roundoff:PlanesExtractor": ".planes_extractor:PlanesExtractor",
    **{f"torch:{name}": f"torch.optim:{name}" for name in ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD")},
    **{f"torch:{name}": f"torch.nn:{name}" for name in ("ELU", "GELU", "LeakyReLU", "ReLU", "SiLU", "Tanh")},
    "sb3:RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like:RMSpropTFLike",
}
_PREFIXES = tuple(sorted({name.partition(":")[0] + ":" for name in _PLACES}))


def check_parts(options: Any) -> None:
    """Raises ValueError where a text in ``options`` begins like the name of a part, but does not name one."""
    for text in _texts(options):
        if text.startswith(_PREFIXES):
            check_name("part", text, sorted(_PLACES))


def with_parts(options: Any) -> Any:
    """``options`` with the classes in place of their names."""
    if isinstance(options, dict):
        return {name: with_parts(value) for name, value in options.items()}
    if isinstance(options, list):
        return [with_parts(value) for value in options]
    if isinstance(options, str) and options in _PLACES:
        module, _, name = _PLACES[options].partition(":")
        return getattr(import_module(module, __package__), name)
    return options


def _texts(options: Any) -> list[str]:
    if isinstance(options, str):
        return [options]
    inner = options.values() if isinstance(options, dict) else options if isinstance(options, list) else ()
    return [text for value in inner for text in _texts(value)]
