"""Programs that nobody here wrote, as small as they can be: models, layers, optimizers and agents of other packages.

Models are random and small, so that nothing is downloaded; they are trained with SGD, so that what becomes NaN is the
model's doing. Optimizers are tried on a small network, each with its defaults.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "train.py"
COMPILED = {"GPT-2", "ViT", "nn.Transformer", "nn.MultiheadAttention", "optim.SGD", "optim.Adam"}
TOKENS, WIDTH, ROWS, LENGTH = 64, 64, 8, 12


@dataclass(frozen=True)
class Training:
    """A step, the tensors that it takes, and what it trains. What a step returns is a tensor, or nothing."""

    step: Callable[..., torch.Tensor | None]
    batch: tuple[torch.Tensor, ...]
    parameters: Iterable[torch.Tensor]


@dataclass(frozen=True)
class Program:
    """A program, the package that it needs, and how to begin it anew."""

    name: str
    package: str
    begin: Callable[[], Training]
    steps: int = 3

    @property
    def compiles(self) -> bool:
        """Whether it has a step that could be compiled, and is one of those that are: compiling takes half a minute."""
        return self.name in COMPILED


def _trained(model: nn.Module, loss: Callable[..., torch.Tensor], *batch: torch.Tensor) -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(*tensors: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model, *tensors)
        value.backward()
        optimizer.step()
        return value

    return Training(step, batch, list(model.parameters()))


def _tokens() -> torch.Tensor:
    return torch.randint(2, TOKENS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def _transformer(name: str, **settings: object) -> Training:
    """A model of `transformers` that predicts its own input, from a configuration without weights."""
    import transformers  # noqa: PLC0415  seconds, and not everyone has it

    config = getattr(transformers, f"{name}Config")(
        vocab_size=TOKENS, pad_token_id=0, bos_token_id=1, eos_token_id=1, **settings
    )  # fmt: skip
    head = {"Bert": "ForMaskedLM", "T5": "ForConditionalGeneration", "GPT2": "LMHeadModel"}.get(name, "ForCausalLM")
    model = getattr(transformers, name + head)(config)
    return _trained(model, lambda model, x: model(input_ids=x, labels=x).loss, _tokens())


def _vit() -> Training:
    import transformers  # noqa: PLC0415

    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=2 * WIDTH,
        image_size=32, patch_size=8, num_labels=10,
    )  # fmt: skip
    images = torch.randn(ROWS, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(ROWS)
    model = transformers.ViTForImageClassification(config)
    return _trained(model, lambda model, x, y: model(pixel_values=x, labels=y).loss, images, labels)


LLAMA = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 2 * WIDTH}  # fmt: skip
TRANSFORMERS = {
    "GPT-2": partial(_transformer, "GPT2", n_embd=WIDTH, n_layer=2, n_head=4, n_positions=LENGTH),
    "BERT": partial(_transformer, "Bert", hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=2 * WIDTH),
    "ViT": _vit,
    "Llama": partial(_transformer, "Llama", **LLAMA),
    "T5": partial(_transformer, "T5", d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=2, num_heads=4,
                  decoder_start_token_id=0),
    "Mamba": partial(_transformer, "Mamba", hidden_size=WIDTH, num_hidden_layers=2, state_size=8),
    "Mixtral": partial(_transformer, "Mixtral", num_local_experts=4, **LLAMA),
}  # fmt: skip


def _sequences() -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def _recurrent(kind: type[nn.Module]) -> Training:
    model = kind(WIDTH, WIDTH, num_layers=2, batch_first=True)
    return _trained(model, lambda model, x: (model(x)[0] - x).square().mean(), _sequences())


def _attention() -> Training:
    model = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    return _trained(model, lambda model, x: (model(x, x, x)[0] - x).square().mean(), _sequences())


def _encoder_decoder() -> Training:
    model = nn.Transformer(WIDTH, 4, 2, 2, 2 * WIDTH, batch_first=True)
    return _trained(model, lambda model, x: (model(x, x) - x).square().mean(), _sequences())


LAYERS = {
    "nn.Transformer": _encoder_decoder,
    "nn.MultiheadAttention": _attention,
    "nn.LSTM": partial(_recurrent, nn.LSTM),
    "nn.GRU": partial(_recurrent, nn.GRU),
}


def _optimized(name: str) -> Training:
    """A network of two layers, learnt with an optimizer's defaults."""
    make = getattr(torch.optim, name)
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))
    model: nn.Module = nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False)
    )
    if name == "SparseAdam":
        model, x = nn.Embedding(TOKENS, WIDTH, sparse=True), _tokens()
    optimizer = make(model.parameters())

    def loss(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = (model(x) - 1).square().mean()
        value.backward()
        return value

    def step(x: torch.Tensor) -> torch.Tensor:
        if name == "LBFGS":
            return optimizer.step(lambda: loss(x))
        value = loss(x)
        optimizer.step()
        return value

    return Training(step, (x,), list(model.parameters()))


OPTIMIZERS = {
    f"optim.{name}": partial(_optimized, name)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "Adafactor", "RMSprop",
                 "Rprop", "ASGD", "LBFGS", "Muon", "SparseAdam")
}  # fmt: skip


def _agent(name: str, environment: str, steps: int, **settings: object) -> Training:
    """``learn`` of an agent of Stable-Baselines3, unchanged."""
    import stable_baselines3  # noqa: PLC0415

    agent = getattr(stable_baselines3, name)("MlpPolicy", environment, seed=0, device="cpu", **settings)

    def step() -> None:
        agent.learn(steps)

    return Training(step, (), list(agent.policy.parameters()))


LATE = {"learning_starts": 160, "buffer_size": 1000}
AGENTS = {
    "PPO": partial(_agent, "PPO", "CartPole-v1", 256, n_steps=128, n_epochs=4),
    "A2C": partial(_agent, "A2C", "CartPole-v1", 256),
    "DQN": partial(_agent, "DQN", "CartPole-v1", 200, **LATE),
    "SAC": partial(_agent, "SAC", "Pendulum-v1", 200, **LATE),
    "TD3": partial(_agent, "TD3", "Pendulum-v1", 200, **LATE),
}


def _digits() -> Training:
    """``examples/digits``, an epoch of it; its parameters are its own affair."""
    train = runpy.run_path(str(DIGITS))["train"]
    return Training(lambda: train(epochs=1)["loss"], (), [])


PROGRAMS = [
    *(Program(name, "transformers", begin) for name, begin in TRANSFORMERS.items()),
    *(Program(name, "torch", begin) for name, begin in LAYERS.items()),
    *(Program(name, "torch", begin, steps=10) for name, begin in OPTIMIZERS.items()),
    *(Program(name, "stable_baselines3", begin, steps=1) for name, begin in AGENTS.items()),
    Program("examples/digits", "sklearn", _digits, steps=1),
]
