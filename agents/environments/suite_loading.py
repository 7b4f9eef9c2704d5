"""The DeepMind control suite, imported without a renderer; its models are compiled once, its rewards take less time."""

from __future__ import annotations

import os
from copy import copy
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any

from .suite_rewards import tolerance


def load_task(domain: str, task: str) -> Any:
    """A task of the suite; the same as ``dm_control.suite.load`` gives, bit for bit."""
    return _domain(domain).SUITE[task](random=0)


@cache
def _domain(name: str) -> Any:
    """A domain's module, changed as described: ours alone, others import the suite as it is."""
    _import_suite()
    spec = find_spec(f"dm_control.suite.{name}")
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "rewards"):
        module.rewards = SimpleNamespace(tolerance=tolerance)
    module.Physics.from_xml_string = _from_compiled(module.Physics)
    return module


def _from_compiled(physics: Any) -> Any:
    """``physics.from_xml_string``, which compiles each description once (45 ms) and copies the model (2 ms)."""
    from dm_control.mujoco.wrapper import MjModel  # noqa: PLC0415  imported by now

    models: dict[Any, Any] = {}  # by the description alone: what files it names are the suite's own

    def from_xml_string(xml_string: Any, assets: Any = None) -> Any:
        if xml_string not in models:
            models[xml_string] = MjModel.from_xml_string(xml_string, assets=assets)
        return physics.from_model(copy(models[xml_string]))

    return staticmethod(from_xml_string)


def _import_suite() -> None:
    """Imports it without looking for a renderer, which costs time or fails on machines without a display.

    Pixels are rendered by ``roundoff.agents.environments.renderer`` instead, which minds what the user sets.
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
