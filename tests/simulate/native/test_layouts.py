"""Results of elementwise arithmetic have PyTorch's strides, in C++ and in Python, also along axes of length one."""

import torch
from each import each

import roundoff
from roundoff.simulate.native import library

LARGE = 1 << 16  # four times as many elements are computed in pieces


def tensors(length):
    """Tensors with axes of length one, whose strides are usual and unusual, and tensors without elements."""
    shapes = [
        ((length, 1, 4, 4), (16, 1, 4, 1)),
        ((1, 3, length, 4), (12 * length, 1, 12, 3)),
        ((length, 1, 4), (4, 4 * length, 1)),
        ((length, 1, 4), (4, 17, 1)),
        ((1, length, 4), (1, 4, 1)),
        ((1, 1, length, 1, 4), (3, 7, 4, 1, 1)),
        ((4, 1, length), (1, 1, 4)),
        ((4, length, 1), (1, 4, 9)),
        ((length, 1), (1, length)),
        ((4, length), (1, 4)),
        ((length, 1, 4), (4, 4, 1)),
        ((0, 1, 4), (4, 1, 1)),
        ((length, 0, 1), (1, 1, 1)),
    ]
    for shape, strides in shapes:
        yield torch.empty_strided(shape, strides).uniform_(0.2, 1.2)


CALLS = {
    "a number": lambda x: (x * 1.3, x + 0.3, x - 0.3, 1 - x, x / 3, 3 / x, x.lerp(x, 0.3), x.add(1.5, alpha=2)),
    "tensors": lambda x: (x * x, x + x, x / x, torch.add(x, x, alpha=0.3), x.lerp(x, x), torch.addcdiv(x, x, x)),
    "one tensor": lambda x: (x.sqrt(), x**2, x**0.5, x**-1, x.reciprocal(), x.exp(), x.tanh(), x.clamp(max=0.5)),
    "tensors laid out otherwise": lambda x: (x * x.contiguous(), x.contiguous() * x, x + x[:1], x * torch.tensor(1.3)),
    "lists": lambda x: (*torch._foreach_mul([x], 1.3), *torch._foreach_sqrt([x]), *torch._foreach_lerp([x], [x], 0.3)),
    "float64": lambda x: (x.double() * 1.3, (x.double() + 0.3).float()),
}


@each(
    ("rounding", "native", "length"),
    [(rounding, native, 5) for rounding in ("nearest-even", "stochastic", "up") for native in "10"]
    + [("nearest-even", native, LARGE) for native in "10"],
)
def test_results_have_the_strides_of_pytorch(monkeypatch, rounding, native, length):
    monkeypatch.setenv(library.VARIABLE, native)
    simulation = roundoff.simulate("e5m6", rounding=rounding)
    for x in tensors(length):
        for name, call in CALLS.items():
            with simulation:
                first, second = call(x), call(x)  # C++ computes the second
            for plain, *simulated in zip(call(x), first, second, strict=True):
                for y in simulated:
                    assert y.stride() == plain.stride(), (name, x.shape, x.stride())
