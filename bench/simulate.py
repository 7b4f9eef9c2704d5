"""Simulated training steps against plain ones, against quantizers inserted by hand, and what each option costs."""

from __future__ import annotations

import torch
from torch import nn

from bench.timing import interleaved, record
from bench.update import updates
from roundoff.formats import round
from roundoff.simulate import Policy, Rule, simulate


class Quantize(torch.autograd.Function):
    """What peers make their users insert after each layer: rounds forward and backward."""

    @staticmethod
    def forward(_ctx, x, quantizer):
        _ctx.quantizer = quantizer
        return quantizer(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.quantizer(gradient), None


class ConvNet(nn.Module):
    """A small convolutional net; ``quantizer`` follows every layer."""

    def __init__(self, quantizer=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.norm, self.last = nn.BatchNorm2d(64), nn.Linear(64 * 8 * 8, 10)
        self.quantizer = quantizer

    def forward(self, x):
        q = (lambda y: Quantize.apply(y, self.quantizer)) if self.quantizer else (lambda y: y)
        x = q(self.first(x)).relu()
        x = q(self.norm(q(self.second(x)))).relu()
        x = nn.functional.avg_pool2d(x, 2)
        return q(self.last(x.flatten(1)))


def conv_step(mode=None, quantizer=None):
    """One training step of the net, 32 images of 32 x 32, with SGD."""
    net = ConvNet(quantizer)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(32) % 10

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        if quantizer:
            with torch.no_grad():
                for p in net.parameters():
                    p.copy_(quantizer(p))

    if mode is None:
        return step

    def simulated():
        with mode:
            step()

    return simulated


def small_operation(mode=None):
    """A thousand additions of 64 elements."""
    x, y = torch.randn(64), torch.randn(64)

    def run():
        for _ in range(1000):
            x + y

    if mode is None:
        return run

    def simulated():
        with mode:
            run()

    return simulated


def conv_contestants():
    """The convolutional net, plain, simulated in several ways, and quantized by hand."""
    contestants = {
        "plain fp32": conv_step(),
        "simulated e5m10": conv_step(simulate("e5m10")),
        "observed": conv_step(simulate("e5m10", observe=True)),
        "stochastic": conv_step(simulate("e5m10", rounding="stochastic")),
        "primitive": conv_step(simulate("e5m10", granularity="primitive")),
        "storage": conv_step(simulate(Policy.storage("e5m10"))),
        "mixed precision": conv_step(simulate(Policy.mixed_precision("e5m10"))),
        "quantizers by hand, ours": conv_step(quantizer=lambda x: round(x, "e5m10")),
    }
    try:
        from qtorch.quant import float_quantize  # noqa: PLC0415  compiles itself when imported

        contestants["quantizers by hand, qtorch"] = conv_step(
            quantizer=lambda x: float_quantize(x, 5, 10, rounding="nearest")
        )
    except ImportError as error:
        print("qtorch is left out:", error)
    return contestants


def main() -> None:
    """Prints and records the ratios."""
    rows = []
    by_role = Policy("e5m10").with_rules(Rule(role="backward", format="e5m2"))
    small = interleaved(
        {
            "plain": small_operation(),
            "simulated": small_operation(simulate("e5m10")),
            "format by role": small_operation(simulate(by_role)),
            "observed": small_operation(simulate("e5m10", observe=True)),
        },
        seconds=0.02,
    )
    for name, seconds in small.items():
        us, ratio = seconds * 1e3, seconds / small["plain"]
        print(
            f"addition of 64 elements, {name}: {us:.2f} us, {us - small['plain'] * 1e3:.2f} more, {ratio:.1f} x plain"
        )
    rows.append({"what": "one addition of 64 elements", "microseconds": {k: v * 1e3 for k, v in small.items()}})
    for title, contestants in (
        ("conv net, batch 32", conv_contestants()),
        (
            "SAC update, 128 units, batch 128",
            {
                "plain fp32": updates("fp32", 128, 128),
                "simulated e5m10": updates("e5m10", 128, 128),
                "observed": updates("e5m10", 128, 128, observe=True),
                "stochastic": updates("e5m10", 128, 128, policy={"rounding": "stochastic"}),
                "primitive": updates("e5m10", 128, 128, policy={"granularity": "primitive"}),
            },
        ),
    ):
        seconds = interleaved(contestants, rounds=5, seconds=0.3)
        base = seconds["plain fp32"]
        print(f"\n{title}")
        for name, s in seconds.items():
            print(f"  {name:28} {s * 1e3:8.2f} ms  {s / base:6.2f} x plain")
        rows.append({"what": title, "seconds": seconds, "slowdown": {k: s / base for k, s in seconds.items()}})
    print("written to", record("simulate", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
