"""Stand-ins for tensors on a GPU, on machines without one: what would wait for the device raises :class:`Waited`.

A stand-in is a tensor of the CPU whose memory is marked. Python sees it on ``cuda:0``, so that every decision of the
program is the one that it takes for a GPU; operations run on the CPU, so that bits can be compared. A mode at the
bottom of PyTorch's stack follows the marks through every operation: results of marked operands are marked, and so is
what is made with ``device="cuda"``. It refuses operands on both devices, as a GPU does.

Roundings are those of the CPU's loops, as if by a kernel. What it cannot show: the kernels of Triton; the bits of
CUDA's kernels, which are others for reductions, exp and products; that a kernel exists; a kernel that waits and is not
listed here; autograd's own threads; streams, pinned memory and the allocator.
"""

from contextlib import contextmanager
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from roundoff.formats.base import family, memory
from roundoff.formats.base.family import Family
from roundoff.simulate.marks.table import Marks

CUDA = torch.device("cuda", 0)

WAITING = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy", "argwhere",
    "masked_select", "unique_dim", "unique_consecutive", "_unique", "_unique2", "bincount", "histc",
    "repeat_interleave",
}  # fmt: skip
"""Operations that give a number, or a tensor whose size depends on numbers."""

INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
FILLING = ("where", "fill_", "masked_fill", "masked_fill_")
FACTORS_ON_CPU = {"_foreach_addcmul", "_foreach_addcmul_", "_foreach_addcdiv", "_foreach_addcdiv_"}
"""Operations that refuse factors in a tensor on the device."""

_Tensor = torch.Tensor
_marked = Marks()  # of all tests: what a program keeps for later ones is still a stand-in there


class Waited(AssertionError):
    """The program would have waited for the device."""


def is_stand_in(x):
    """Whether a tensor is one."""
    try:
        return bool(_marked.of(x))
    except (RuntimeError, NotImplementedError):  # no storage
        return False


class StandIns(TorchDispatchMode):
    """The mode that follows the marks; made by :func:`stand_ins`."""

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self._waiting_raises = False

    @contextmanager
    def nothing_waits(self):
        """For the block, what waits for the device raises :class:`Waited`."""
        self._waiting_raises = True
        try:
            yield
        finally:
            self._waiting_raises = False

    def waits(self, what):
        """Called for everything that would wait."""
        if self._waiting_raises:
            raise Waited(f"{what} waits for the device")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func.overloadpacket.__name__ == "_pin_memory":
            assert not is_stand_in(args[0]), "only memory of the CPU can be pinned"
            return args[0].clone()
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        asked = kwargs.get("device")
        tensors = [*_tensors_in(args), *_tensors_in(kwargs.values())]
        others = [x for x in tensors if not is_stand_in(x)]
        there = len(others) < len(tensors) if asked is None else torch.device(asked).type == "cuda"
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        name = func.overloadpacket.__name__
        if name in ("copy_", "_to_copy"):
            self._check_copy(args, kwargs, there=is_stand_in(args[0]) if name == "copy_" else there)
        elif len(others) < len(tensors):
            self._check(func, name, args, kwargs, others)
        result = self._run(func, args, kwargs)
        for x in _tensors_in((result,)) if there else ():
            _marked.add(x, 1)
        return result

    def _run(self, func, args, kwargs):
        if func.namespace != "roundoff":
            return func(*args, **kwargs)
        with self:  # made of operations of PyTorch's
            return func._op_dk(torch._C.DispatchKey.CPU, *args, **kwargs)

    def _check_copy(self, args, kwargs, *, there):
        source = [x for x in args if isinstance(x, _Tensor)][-1]
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        if is_stand_in(source) and not there:
            self.waits(f"a copy of {tuple(source.shape)} from it")
        if there and not is_stand_in(source) and not non_blocking:
            self.waits(f"a copy of {tuple(source.shape)} to it")

    def _check(self, func, name, args, kwargs, others):
        if name in FACTORS_ON_CPU and func._overloadname == "Tensor":
            assert not is_stand_in(args[-1]), f"{func} wants its factors on the CPU"
            others = [x for x in others if x is not args[-1]]
        if name in WAITING and kwargs.get("output_size") is None:
            self.waits(name)
        if name in INDEXING:
            others = self._check_indices(name, args, others)
        if name.startswith("masked_fill") and isinstance(args[2], _Tensor) and is_stand_in(args[2]):
            self.waits(f"{name} with a number on the device")
        if others and name == "where":
            self.waits(f"{name} with a number in the processor's memory")
        takes_numbers = torch.Tag.pointwise in func.tags or name in FILLING
        mixed = [tuple(x.shape) for x in others if x.dim() or not takes_numbers]
        assert not mixed, f"{func} has operands on both devices: {mixed} on the CPU"

    def _check_indices(self, name, args, others):
        indices = [x for x in args[1] if x is not None]
        given = None if name == "index" else args[2]
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices) and (given is None or given.numel() != 1):
            self.waits(f"{name} with a mask")
        if not all(map(is_stand_in, indices)):
            self.waits(f"{name} with indices in the processor's memory")
        alone = [*indices, *(() if given is None or given.dim() else (given,))]
        return [x for x in others if not any(x is y for y in alone)]


def _tensors_in(values):
    for x in values:
        if isinstance(x, _Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors_in(x)


@cache
def _is_composite(func):
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@contextmanager
def stand_ins(monkeypatch):
    """For the block, ``device="cuda"`` makes stand-ins; gives the :class:`StandIns`.

    Args:
        monkeypatch: of pytest, by whom Python's view of tensors is put back in the end.
    """
    mode = StandIns()
    with monkeypatch.context() as patch:
        _patch_properties(patch)
        moved = _patch_moves(patch, mode)
        _patch_makers(patch, moved)
        # What leaves simulations must not leave the mode, which stands below them.
        depth = memory._len_torch_dispatch_stack
        patch.setattr(memory, "_len_torch_dispatch_stack", lambda: max(depth() - 1, 0))
        patch.setattr(memory, "_compiles_for", lambda _: False)
        patch.setattr(Family, "_round_on_cpu", _as_a_kernel)
        with mode:
            yield mode


def _as_a_kernel(fmt, source, target, how, copied=Family._round_on_cpu):
    """Rounds stand-ins where they lie, and does not wait."""
    with _disable_current_modes():  # so that the copy is a tensor of the CPU
        if isinstance(how.random, _Tensor):
            how = how._replace(random=how.random.clone())
        copied(fmt, source.clone(), target, how)


def memory_as_a_device(monkeypatch):
    """From now on the CPU's memory is that of a device with kernels; what is copied to the CPU is rounded as usual."""
    alone = Family._round_on_cpu

    def on_cpu(*args):
        with monkeypatch.context() as patch:
            patch.setattr(family, "in_memory", memory.in_memory)
            patch.setattr(family, "has_kernels", memory.has_kernels)
            alone(*args)

    monkeypatch.setattr(family, "in_memory", lambda _: False)
    monkeypatch.setattr(family, "has_kernels", lambda _: True)
    monkeypatch.setattr(Family, "_round_on_cpu", on_cpu)


def _patch_properties(patch):
    device, is_cpu = torch.Tensor.device, torch.Tensor.is_cpu
    for name, answer in {
        "device": lambda x: CUDA if is_stand_in(x) else device.__get__(x),
        "is_cpu": lambda x: not is_stand_in(x) and is_cpu.__get__(x),
        "is_cuda": is_stand_in,
    }.items():
        patch.setattr(torch.Tensor, name, property(answer))


def _patch_moves(patch, mode):
    """What looks at a tensor's device, or reads its memory, before it asks a mode."""
    to = torch.Tensor.to

    def moved(x, *args, **kwargs):
        if args and isinstance(args[0], _Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and (device.type == "cuda") != is_stand_in(x):
            there = {"device": device, "dtype": dtype or x.dtype, "non_blocking": non_blocking}
            return torch.ops.aten._to_copy.default(x, **there, memory_format=layout)
        return to(x, dtype or x.dtype, copy=copy, **({} if layout is None else {"memory_format": layout}))

    def reading(name):
        method = getattr(torch.Tensor, name)

        def read(x, *args, **kwargs):
            if is_stand_in(x):
                mode.waits(f".{name}()")
            return method(x, *args, **kwargs)

        return read

    patch.setattr(torch.Tensor, "to", moved)
    patch.setattr(torch.Tensor, "cpu", lambda x: moved(x, "cpu"))
    patch.setattr(torch.Tensor, "cuda", lambda x: moved(x, "cuda"))
    for name in ("tolist", "numpy"):
        patch.setattr(torch.Tensor, name, reading(name))
    return moved


def _patch_makers(patch, moved):
    """What looks for the device before it asks a mode."""

    def making(make):
        def made(data, *rest, device=None, **kwargs):
            if device is None and isinstance(data, _Tensor):
                device = data.device
            here = make(data, *rest, **kwargs, device=None if device is None else "cpu")
            return here if device is None else moved(here, device)

        return made

    for name in ("tensor", "as_tensor"):
        patch.setattr(torch, name, making(getattr(torch, name)))
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    real = torch.Generator

    class Generator(real):
        def __new__(cls, device="cpu"):
            return real.__new__(cls, "cpu")

        def __init__(self, device="cpu"):
            pass

    patch.setattr(torch, "Generator", Generator)
