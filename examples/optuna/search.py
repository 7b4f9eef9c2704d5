"""Optuna looks for the learning rate and the eps of Adam with which a classifier of digits learns in fp16.

    python examples/optuna/search.py

A trial is a sweep of three seeds, so that one lucky seed does not win; a seed that crashes counts as chance. Runs that
have ended are kept in the folder of results, and are not repeated where the search is.
"""

from __future__ import annotations

from pathlib import Path

import optuna
import torch
from sklearn.datasets import load_digits

import roundoff

METRIC = {"name": "accuracy", "crash": 0.1, "range": [0, 1]}


def train(lr: float = 1e-3, eps: float = 1e-8, steps: int = 150) -> dict[str, float]:
    """Trains on the first 1500 digits; the accuracy on the others."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, eps=eps)
    for _ in range(steps):
        rows = torch.randint(1500, (50,))
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not loss.isfinite():
        raise FloatingPointError("the loss is not finite")
    with roundoff.exact():
        return {"accuracy": (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()}


def search(number_format: str, trials: int, folder: Path, steps: int = 150) -> optuna.Study:
    """A study of the mean accuracy of three seeds; its first trial has PyTorch's defaults."""

    def objective(trial: optuna.Trial) -> float:
        values = {
            "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            "eps": trial.suggest_float("eps", 1e-8, 1e-2, log=True),
        }
        table = roundoff.sweep(
            train,
            {"format": [number_format], "seed": range(3)},
            base={**values, "steps": steps},
            metric=METRIC,
            out=folder / f"trial-{trial.number}",
        )
        trial.set_user_attr("crashed", int((table["status"] == "crashed").sum()))
        return float(table["score"].mean())

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({"lr": 1e-3, "eps": 1e-8})
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    found = search("e5m10", 12, Path("results/optuna"))
    print(f"PyTorch's defaults: {found.trials[0].value:.3f}, {found.trials[0].user_attrs['crashed']} of 3 crashed")  # noqa: T201
    print(f"best: {found.best_value:.3f} with {found.best_params}")  # noqa: T201
