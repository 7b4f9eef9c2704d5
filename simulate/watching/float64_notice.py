"""Says that a simulation in fp32 leaves a float64 program as it is."""

from __future__ import annotations

import warnings
from typing import Any, final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from ..presence.entering import SimulationWarning, innermost


@final
class Float64Notice:
    """Finds out whether a program computes in float64: by PyTorch's default dtype, or the first module with parameters.

    A simulation in fp32 changes no bit, whatever the dtypes, and sees no operation. So it does not notice another
    float64 program.

    Args:
        simulation: Simulation in fp32.
    """

    def __init__(self, simulation: object) -> None:
        self._simulation = simulation
        self._hook: RemovableHandle | None = None
        self._knows = False

    def enter(self) -> None:
        """The simulation is entered."""
        if self._knows:
            return
        if torch.get_default_dtype() is torch.float64:
            self._find(torch.float64)
        elif self._hook is None:
            self._hook = register_module_forward_pre_hook(self._look)

    def leave(self) -> None:
        """The simulation is left."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _look(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        values = (*module.parameters(recurse=False), *args)
        dtypes = [x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if dtypes and innermost() is self._simulation:
            self.leave()
            self._find(dtypes[0])

    def _find(self, dtype: torch.dtype) -> None:
        self._knows = True
        if dtype is torch.float64:
            text = (
                "simulate('fp32') runs a program as it is, and this one computes in float64: no result is rounded to"
                " fp32; run it in float32 for that"
            )
            warnings.warn(text, SimulationWarning, stacklevel=5)
