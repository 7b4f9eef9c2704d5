"""A small convolutional network on scikit-learn's handwritten digits: which formats can it train in?"""

from collections.abc import Callable
from typing import Literal

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import roundoff
from roundoff.remedies import CompoundLossScaler, HAdam


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images of 8 x 8 numbers in [0, 1], in an order of their own, and their labels."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return images[order], torch.tensor(digits.target)[order]


def network() -> nn.Module:
    """Two convolutions and a layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def fit(model: nn.Module, learn: Callable[[torch.Tensor], None], epochs: int) -> dict:
    """Has a model learn from 1500 digits, a batch at a time, and returns its accuracy on the other 297."""
    images, labels = data()
    for epoch in range(epochs):
        for rows in torch.randperm(1500).split(50):
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            learn(loss)
        answers = model(images[1500:]).argmax(1)
        with roundoff.exact():  # a share of 297 is no number of eight bits
            accuracy = (answers == labels[1500:]).float().mean()
        roundoff.log(epoch + 1, loss=loss, accuracy=accuracy)
    return {"accuracy": accuracy, "loss": loss}


def train(lr: float = 2e-3, epochs: int = 6, optimizer: Literal["adam", "sgd"] = "adam", eps: float = 1e-8) -> dict:
    """Trains on 1500 digits, and returns the accuracy on the other 297."""
    model = network()
    if optimizer == "adam":
        descend = torch.optim.Adam(model.parameters(), lr=lr, eps=eps)
    else:
        descend = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def learn(loss: torch.Tensor) -> None:
        descend.zero_grad()
        loss.backward()
        descend.step()

    return fit(model, learn, epochs)


def train_in_eight_bits(
    fixes: Literal["none", "hadam", "kahan", "stochastic"] = "stochastic",
    lr: float = 2e-3,
    epochs: int = 6,
    loss_scale: float = 64.0,
    largest: float = 240.0,
    smallest: float = 2.0**-9,
) -> dict:
    """Trains wholly in a format: returns the accuracy on the other 297.

    ``none`` is PyTorch's Adam with an eps that the format has; ``hadam`` hAdam with compound loss scaling; ``kahan``
    compensates its steps, too; ``stochastic`` rounds compensated steps and moments once, stochastically. ``largest``
    and ``smallest`` are of the format.
    """
    if fixes == "none":
        return train(lr, epochs, eps=max(1e-4, smallest))
    model = network()
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

    return fit(model, learn, epochs)
