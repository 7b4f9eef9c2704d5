"""Optimizers that are made and saved without PyTorch's compiler."""

from __future__ import annotations

import sys
from typing import Any

from torch.optim import Optimizer


class PlainOptimizer(Optimizer):
    """An optimizer of PyTorch, but that making and saving one imports nothing.

    PyTorch has its compiler leave the three methods alone, for which it imports the compiler: 1.3 s of each process. A
    process that has not imported it compiles nothing.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        _method("add_param_group")(self, param_group)

    def state_dict(self) -> dict[str, Any]:
        """See ``torch.optim.Optimizer``."""
        state: dict[str, Any] = _method("state_dict")(self)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        _method("load_state_dict")(self, state_dict)


def _method(name: str) -> Any:
    method = getattr(Optimizer, name)
    return method if "torch._dynamo" in sys.modules else getattr(method, "__wrapped__", method)
