"""A GPT of two layers on the characters of a text: in which formats may the operands of its products be?"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

import roundoff
from roundoff.remedies import CompoundLossScaler, HAdam

TEXT = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
CHARACTERS = sorted(set(TEXT))


class Block(nn.Module):
    """Causal attention, and a perceptron, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) to the same."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.inner(self.norms[0](x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outer(y.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class GPT(nn.Module):
    """Characters in, logits of the next ones out."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(CHARACTERS), width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """(batch, time) to (batch, time, characters)."""
        x = self.characters(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def fit(model: GPT, learn: Callable[[torch.Tensor], None], steps: int, length: int) -> dict:
    """Has a model learn, and returns its mean cross entropy, in nats a character, of the last twentieth of the text."""
    text = torch.tensor([CHARACTERS.index(character) for character in TEXT])
    known, unknown = text[: len(text) * 19 // 20], text[len(text) * 19 // 20 :]
    for step in range(steps):
        begins = torch.randint(len(known) - length - 1, (16, 1))
        rows = known[begins + torch.arange(length + 1)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        learn(loss)
        if step % 50 == 49:
            roundoff.log(step + 1, training_loss=loss)
    rows = unknown[: (len(unknown) - 1) // length * length].view(-1, length)
    after = unknown[1 : rows.numel() + 1].view(-1, length)
    with torch.no_grad():
        logits = model(rows)
    with roundoff.exact():
        return {"loss": F.cross_entropy(logits.flatten(0, 1), after.flatten())}


def adam(model: GPT, lr: float, loss_scale: float = 1.0, eps: float = 1e-8) -> Callable[[torch.Tensor], None]:
    """What makes a step of PyTorch's Adam of a loss, whose gradients are scaled on their way."""
    descend = torch.optim.Adam(model.parameters(), lr=lr, eps=eps)

    def learn(loss: torch.Tensor) -> None:
        descend.zero_grad()
        (loss * loss_scale).backward()
        for parameter in model.parameters():
            parameter.grad /= loss_scale
        descend.step()

    return learn


def train(
    steps: int = 200, lr: float = 4e-3, width: int = 48, layers: int = 2, length: int = 32, loss_scale: float = 1.0
) -> dict:
    """Returns the mean cross entropy, in nats a character, of the last twentieth of the text."""
    model = GPT(width, layers, length)
    return fit(model, adam(model, lr, loss_scale), steps, length)


def train_in_eight_bits(
    fixes: Literal["none", "hadam", "kahan", "stochastic"] = "stochastic",
    steps: int = 200,
    lr: float = 4e-3,
    width: int = 48,
    layers: int = 2,
    length: int = 32,
    loss_scale: float = 64.0,
    largest: float = 240.0,
    smallest: float = 2.0**-9,
) -> dict:
    """Trains wholly in a format; returns the same, by float32's cross entropy.

    ``none`` is PyTorch's Adam with an eps that the format has; ``hadam`` hAdam with compound loss scaling; ``kahan``
    compensates its steps, too; ``stochastic`` rounds compensated steps and moments once, stochastically. ``largest``
    and ``smallest`` are of the format.
    """
    model = GPT(width, layers, length)
    if fixes == "none":
        return fit(model, adam(model, lr, eps=max(1e-4, smallest)), steps, length)
    stochastic = fixes == "stochastic"
    descend = HAdam(
        model.parameters(), lr=lr, eps=1e-4, eps_floor=smallest, kahan=fixes != "hadam", stochastic=stochastic,
        stochastic_moments=stochastic,
    )  # fmt: skip
    scaler = CompoundLossScaler(descend, initial_scale=loss_scale, growth_interval=100, largest=largest)

    def learn(loss: torch.Tensor) -> None:
        descend.zero_grad()
        loss.backward(gradient=torch.tensor(scaler.scale))
        scaler.step()

    return fit(model, learn, steps, length)
