"""The DeepMind control suite, imported without a renderer, with rewards that take less time."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any

from roundoff.agents.tolerance import tolerance


def load_task(domain: str, task: str) -> Any:
    """A task of the suite; the same as ``dm_control.suite.load`` gives, bit for bit."""
    return _domain(domain).SUITE[task](random=0)


@cache
def _domain(name: str) -> Any:
    """A domain's module, with another function for its rewards: ours alone, others import the suite as it is."""
    _import_suite()
    spec = find_spec(f"dm_control.suite.{name}")
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "rewards"):
        module.rewards = SimpleNamespace(tolerance=tolerance)
    return module


def _import_suite() -> None:
    """Imports it without looking for a renderer, which costs time or fails on machines without a display.

    Pixels are rendered by ``roundoff.agents.renderer`` instead, which minds what the user sets.
    """
    chosen = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disabled"
    try:
        from dm_control import suite  # noqa: F401, PLC0415  takes a second
    finally:
        if chosen is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = chosen
