"""Operations that change only the shape of an argument write nothing: its memory keeps all bits."""

import torch
from each import each

import roundoff
from roundoff.simulate.aten.outputs import outputs
from roundoff.simulate.native import library

_CALLS = {
    "as_strided_": lambda x: x.as_strided_((64, 64), (1, 64)),
    "detach_": lambda x: x.detach_(),
    "resize_": lambda x: x.resize_(32, 64),
    "resize_as_": lambda x: x.resize_as_(torch.empty(64, 32)),
    "set_": lambda x: x.set_(x.t()),
    "squeeze_": lambda x: x.squeeze_(),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "swapdims_": lambda x: x.swapdims_(0, 1),
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
}


def _overloads():
    """The operators that PyTorch says change no element."""
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith("aten::"):
            packet = getattr(torch.ops.aten, name)
            operation = getattr(packet, overload or "default", None)
            if operation is not None and torch.Tag.inplace_view in operation.tags:
                yield operation


def test_every_view_in_place_writes_nothing():
    found = list(_overloads())
    assert {operation.overloadpacket.__name__ for operation in found} == set(_CALLS)
    for operation in found:
        assert outputs(operation).written == (), operation
        assert not outputs(operation).results, operation


@each(
    ("policy", "dtype", "native"),
    [
        (policy, dtype, native)
        for policy in ("e5m3", "mxfp8_e4m3", roundoff.Policy("e5m3", rounding="stochastic"), "int8")
        for dtype in (torch.float32, torch.bfloat16)
        for native in "10"
    ],
)
def test_the_memory_of_views_in_place_keeps_its_bits(monkeypatch, policy, dtype, native):
    monkeypatch.setenv(library.VARIABLE, native)
    for name, call in _CALLS.items():
        data = torch.randn(64, 64).to(dtype)
        before = data.clone()
        with roundoff.simulate(policy) as simulation:
            x = data.detach()  # PyTorch detaches no view in place
            call(x)
        assert torch.equal(data, before), name
        audit = simulation.audit().table
        assert "rounded" not in set(audit["treatment"]), name
        with simulation:  # what was computed inside is of the format along other axes, too
            y = torch.randn(64, 64) * 3
            with roundoff.exact():
                values = y.clone()
            plain = values.clone()
            call(y)
            with roundoff.exact():
                call(plain)
                assert torch.equal(y, plain), name
