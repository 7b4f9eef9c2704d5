"""A driver for Triton that has no GPU: kernels are compiled for a target, to machine code, and launched nowhere.

It shows what the compiler makes of a kernel, and what a launch costs before the driver is called. What a GPU computes it
cannot show; Triton's interpreter shows that, and the tests marked ``cuda``.
"""

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import triton
from roundoff.formats.gpu import launch, translation
from triton.backends.compiler import GPUTarget

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class StubDriver:
    """What Triton asks of a driver; ``launched`` holds the compiled kernels of all launches."""

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self.launched: list[Any] = []
        properties = {"max_shared_mem": 1 << 17}
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (None, 0, 0, 0, 1024), get_device_properties=lambda _: properties
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # so that kernels are kept apart by target

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *_: None


@contextmanager
def compiled_for(capability: int):
    """For the block, kernels are compiled for a GPU of that capability, and not run; yields the compiled kernels."""
    made: list[Any] = []
    before = triton.runtime.jit.JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = before(self, *args, **kwargs)
        made.append(kernel)
        return kernel

    def not_interpreted(function: Any, dtype: Any, *, interpreted: bool = False, **parts: Any) -> Any:
        return translation.in_triton(function, dtype, **parts)

    triton.runtime.driver.set_active(StubDriver(capability))
    try:
        with patch.object(launch, "in_triton", not_interpreted), patch.object(triton.runtime.jit.JITFunction, "run", run):
            yield made
    finally:
        triton.runtime.driver._active = None  # the next who asks looks for a GPU


def resources(kernel: Any, folder: Path) -> dict[str, int]:
    """REG, STACK, SHARED and LOCAL of a compiled kernel's machine code."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    told = subprocess.run([_TOOLS / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told)}
