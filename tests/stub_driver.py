"""A driver for Triton that has no GPU: kernels are compiled for a target, to machine code, and launched nowhere.

It shows what the compiler makes of a kernel, and what a launch costs before the driver is called. What a GPU computes
it cannot show; Triton's interpreter shows that, and the tests marked ``cuda``.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget

from roundoff.formats.gpu import launch

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class StubDriver:
    """What Triton asks of a driver.

    Attributes:
        launches: the arguments of every launch: grid, stream, function, and so on, and then those of the kernel.
        kernels: the compiled kernels, in the order in which they were made.
    """

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self.launches: list[tuple[Any, ...]] = []
        self.kernels: list[Any] = []
        properties = {"max_shared_mem": 1 << 17}
        self.utils = SimpleNamespace(
            load_binary=lambda *_: ("a module", 0, 0, 0, 1024), get_device_properties=lambda _: properties
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # so that kernels are kept apart by target

    def get_current_stream(self, device: int | None) -> int:
        return 0

    @staticmethod
    def launcher_cls(source: Any, metadata: Any) -> Any:
        # A kernel that was compiled for an earlier driver belongs to the one that is active when it is launched.
        return lambda *arguments: triton.runtime.driver.active.launches.append(arguments)


@contextmanager
def compiled_for(capability: int) -> Iterator[StubDriver]:
    """For the block, kernels are compiled for a GPU of that capability, and not run. Formats must be new ones."""
    driver = StubDriver(capability)
    triton.runtime.driver.set_active(driver)
    try:
        with patch.object(launch, "is_interpreted", lambda _: False), patch.object(launch, "_compiled", {}):
            yield driver
            driver.kernels = list(launch._compiled.values())
    finally:
        triton.runtime.driver._active = None  # the next who asks looks for a GPU


def resources(kernel: Any, folder: Path) -> dict[str, int]:
    """REG, STACK, SHARED and LOCAL of a compiled kernel's machine code."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    told = subprocess.run(
        [_TOOLS / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told)}
