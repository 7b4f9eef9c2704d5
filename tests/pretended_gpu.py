"""A GPU that is not there: inductor compiles for an H100, and what it has compiled runs on the CPU.

For processes of their own, since settings of the whole process change. Programs are traced as if their tensors were on
the device ``cuda``. Inductor's Triton loops run in Triton's interpreter, on tensors of the CPU; kernels of PyTorch that
a program calls are those of the CPU, and so are those of the eager simulation that it is compared with. What is seen so
is which operations are written, and that those have the bits they should; not what the kernels of CUDA compute.
"""

# ruff: noqa: E402  PyTorch asks for CUDA when it is imported

import ctypes
import importlib.util
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

HERE = Path(__file__).parent
FOLDER = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])  # of this process alone

os.environ.setdefault("TRITON_INTERPRET", "1")


def _answer_for_cuda():
    """Gives a PyTorch without CUDA what its functions ask of it; before PyTorch asks for the first time."""
    torch_folder = Path(importlib.util.find_spec("torch").origin).parent
    library = FOLDER / "pretended_gpu.so"
    places = [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib"]
    flags = ["-std=c++20", "-shared", "-fPIC", *places, str(HERE / "pretended_gpu.cpp"), "-o", str(library)]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, "-lc10", "-ltorch_cpu"], check=True)
    ctypes.CDLL(str(library))


_answer_for_cuda()

import torch
import triton
import triton.language as tl
from torch._C._dynamo import guards
from torch._dynamo import device_interface
from torch._inductor import graph
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime import triton_helpers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _triton
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from roundoff.simulate.compiling import step

H100 = SimpleNamespace(
    type="cuda", name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20, total_memory=80 << 30, gcnArchName="", uuid="pretended",
)  # fmt: skip
TARGET = GPUTarget("cuda", 90, 32)


class Interface(device_interface.DeviceInterface):
    """What inductor asks of a device."""

    class Worker:
        set_device = staticmethod(lambda _: None)
        current_device = staticmethod(lambda: 0)
        get_device_properties = staticmethod(lambda _=None: H100)

    set_device = synchronize = staticmethod(lambda _=None: None)
    current_device = staticmethod(lambda: 0)
    exchange_device = maybe_exchange_device = get_raw_stream = staticmethod(lambda _: 0)
    device_count = staticmethod(lambda: 1)
    is_available = staticmethod(lambda: True)
    get_device_properties = staticmethod(lambda _=None: H100)
    get_compute_capability = staticmethod(lambda _=None: 90)
    is_bf16_supported = staticmethod(lambda including_emulation=False: True)
    is_triton_capable = staticmethod(lambda _=None: True)
    raise_if_triton_unavailable = staticmethod(lambda _=None: None)


class Driver:
    """What Triton asks of a driver that runs nothing."""

    get_current_target = staticmethod(lambda: TARGET)
    get_current_device = staticmethod(lambda: 0)


@triton.jit
def _floor(x):
    return tl.floor(x)


@triton.jit
def _ceil(x):
    return tl.ceil(x)


LIBRARY = SimpleNamespace(
    floor=_floor,
    ceil=_ceil,
    isnan=lambda x: x != x,  # noqa: PLR0124
    isinf=lambda x: (x == float("inf")) | (x == -float("inf")),
)
"""What loops may call, for the interpreter, which has no library: functions of one possible result."""


class Pretended:
    """The GPU, for the length of a block.

    Args:
        stays: says of a tensor that it stays on the CPU, where all of them are.

    Attributes:
        sources: of the loops that were compiled.
        programs: the code that calls them.
        devices: of what operations compute.
    """

    def __init__(self, stays=lambda _: False):
        self.sources, self.programs, self.devices = [], [], set()
        self.stays = stays

    def _compiled(self, name, source):
        self.sources.append(source)
        path = FOLDER / f"loop_{len(self.sources)}.py"
        path.write_text(source)  # Triton reads sources from files
        namespace = {"__name__": name, "__file__": str(path)}
        exec(compile(source, path, "exec"), namespace)
        return namespace[name]

    def __enter__(self):
        device_interface.init_device_reg()
        for name in ("cuda", "cuda:0"):
            device_interface.register_interface_for_device(name, Interface)
        driver.set_active(Driver())
        _triton.has_triton.cache_clear()

        before = FakeTensorMode.from_tensor

        def on_cuda(mode, x, **options):
            if self.stays(x) or (x.dtype is torch.int64 and x.shape == (2,)):  # the place of random bits
                return before(mode, x, **options)
            with mode:
                return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

        def compiled(_, name, source, device_str=None):
            # Without a device it is a word in advance, for those that compile in parallel.
            return device_str and self._compiled(name, source)

        def empty(shape, strides, dtype):
            return torch.empty_strided(shape, strides, dtype=dtype)

        code = graph.GraphLowering.codegen

        def codegen(lowering):
            found = code(lowering)
            self.programs.append(found[0].value)
            values = [node.meta["val"] for node in lowering.graph.nodes if node.op == "call_function"]
            self.devices |= {x.device.type for x in tree_leaves(values) if isinstance(x, torch.Tensor)}
            return found

        self._patches = [
            patch.object(torch.cuda, "get_device_properties", lambda _=None: H100),
            patch.object(torch.cuda, "set_device", lambda _: None),
            patch.object(torch.cuda, "_DeviceGuard", lambda _: patch.dict({})),
            patch.object(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, create=True),
            patch.object(guards, "_empty_strided_cuda", empty),
            patch.object(triton_helpers, "set_driver_to_gpu", lambda: None),
            patch.object(triton_helpers, "libdevice", LIBRARY),
            patch.object(AsyncCompile, "triton", compiled),
            patch.object(FakeTensorMode, "from_tensor", on_cuda),
            patch.object(step, "reason_against_compiling", lambda _="cpu": None),
            patch.object(graph.GraphLowering, "codegen", codegen),
        ]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_):
        for one in reversed(self._patches):
            one.stop()
