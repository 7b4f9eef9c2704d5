"""A tiny language model learns sums by reinforcement: what if its rollouts and its learning are in unlike arithmetic?

The functions ``rollout`` and ``learn`` have the arithmetic that a policy gives them, as in ``sweep.yaml``. As in the
sanity test of Qi et al., "Defeating the Training-Inference Mismatch via FP16" (arXiv 2510.26788), every question can be
solved: the model has been taught until it answers some of them, and those are asked that it answers at times.
"""

from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import roundoff

DIGITS = 2
PLUS, EQUALS, TOKENS = 10, 11, 12
PROMPT, ANSWER = 2 * DIGITS + 2, DIGITS + 1
SCALE = 1024.0  # of the loss, for formats whose smallest numbers gradients go below


class Block(nn.Module):
    """Attention to what came before, and a layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of tokens, (batch, length, width), to the same."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """A transformer that continues ``ab+cd=``, digits with the lowest first."""

    def __init__(self, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(PROMPT + ANSWER, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens, (batch, length), to logits of the token behind each."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Answers(NamedTuple):
    """Answers that were sampled: their tokens, with the log-probability that each had where it was sampled."""

    tokens: torch.Tensor
    log_probs: torch.Tensor


def _digits(numbers: torch.Tensor, count: int) -> torch.Tensor:
    return torch.stack([numbers // 10**place % 10 for place in range(count)], -1)


def asked(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts and answers, of numbers to be added."""
    sign = torch.full((len(a), 1), PLUS)
    return torch.cat((_digits(a, DIGITS), sign, _digits(b, DIGITS), sign + 1), 1), _digits(a + b, ANSWER)


def questions(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts and answers, drawn from all sums."""
    return asked(*torch.randint(10**DIGITS, (2, count)))


def taught(width: int, layers: int, steps: int) -> Model:
    """A model that was taught sums in part."""
    model = Model(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        prompts, answers = questions(256)
        logits = model(torch.cat((prompts, answers), 1)[:, :-1])[:, PROMPT - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def rollout(model: Model, prompts: torch.Tensor) -> Answers:
    """Answers to prompts, sampled token by token, as an inference engine does."""
    ids, chosen = prompts, []
    for _ in range(ANSWER):
        log_probs = model(ids)[:, -1].log_softmax(-1)
        with roundoff.exact():  # the draw itself has no format
            token = torch.multinomial(log_probs.softmax(-1), 1)
        chosen.append(log_probs.gather(1, token))
        ids = torch.cat((ids, token), 1)
    return Answers(ids[:, PROMPT:], torch.cat(chosen, 1))


def log_probs(model: Model, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of all tokens of answers at once, as a trainer computes them."""
    logits = model(torch.cat((prompts, tokens), 1)[:, :-1])[:, PROMPT - 1 :]
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def learn(
    model: Model, optimizer: torch.optim.Optimizer, prompts: torch.Tensor, answers: Answers, advantages: torch.Tensor,
    correction: str, old: torch.Tensor | None = None, clip: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """One step along the policy gradient, and the trainer's log-probabilities of the answers.

    With ``clip`` it is GRPO's: the ratio to ``old``, what the trainer said of the answers before it learned from them,
    counts up to that far from 1 (Shao et al., "DeepSeekMath", equation (3), without its divergence from a reference).
    """
    found = log_probs(model, prompts, answers.tokens)
    old = found.detach() if old is None else old
    weights = roundoff.importance_weights(old, answers.log_probs, correction=correction, threshold=2.0)
    gains = advantages[:, None] * found
    if clip is not None:
        ratio, a = (found - old).exp(), advantages[:, None]
        gains = torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    loss = -(weights * gains).mean()
    optimizer.zero_grad()
    (SCALE * loss).backward()
    with roundoff.exact():
        for p in model.parameters():
            p.grad /= SCALE
    optimizer.step()
    return found.detach()


def solvable(model: Model, count: int, least: float = 0.2, most: float = 0.8) -> tuple[torch.Tensor, torch.Tensor]:
    """Questions that a model answers at times: a share of sixteen samples that is between ``least`` and ``most``.

    Raises:
        ValueError: there are none.
    """
    prompts, answers = questions(8 * count)
    with roundoff.exact():  # the same questions, whatever the arithmetic
        samples = rollout(model, prompts.repeat_interleave(16, 0)).tokens.view(-1, 16, ANSWER)
    share = (samples == answers[:, None]).all(-1).float().mean(1)
    chosen = ((share > least) & (share < most)).nonzero()[:count, 0]
    if not len(chosen):
        raise ValueError(f"the model answers no question in {least:g} to {most:g} of the samples: teach it otherwise")
    return prompts[chosen], answers[chosen]


def right_unrounded(model: Model, prompts: torch.Tensor, answers: torch.Tensor) -> float:
    """The share of right answers that the model samples unrounded."""
    with roundoff.exact(), torch.random.fork_rng():  # the program's own draws stay as they are
        tokens = rollout(model, prompts.repeat_interleave(4, 0)).tokens
    return (tokens == answers.repeat_interleave(4, 0)).all(1).float().mean().item()


def train(
    correction: Literal["none", "token-truncate", "sequence-mask", "sequence"] = "none",
    algorithm: Literal["policy gradient", "grpo"] = "policy gradient",
    epochs: int = 1,
    steps: int = 200,
    lr: float = 3e-4,
    asked_at_once: int = 16,
    samples: int = 8,
    count: int = 128,
    width: int = 64,
    layers: int = 2,
    taught_for: int = 160,
    least: float = 0.2,
) -> dict:
    """Learns to answer ``count`` questions; returns the share of right answers in the last tenth of the steps.

    Rollouts in few bits may be wrong where the model has learned well, so the same share of the model unrounded is
    returned, too (``unrounded``). With GRPO advantages are divided by their deviation in a group, and each rollout is
    learned from ``epochs`` times.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be 1 or more, got {epochs}")
    model = taught(width, layers, taught_for)
    prompts, answers = solvable(model, count, least)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    rewards, unrounded = [], [right_unrounded(model, prompts, answers)]
    for step in range(1, steps + 1):
        chosen = torch.randint(len(prompts), (asked_at_once,)).repeat_interleave(samples)
        sampled = rollout(model, prompts[chosen])
        reward = (sampled.tokens == answers[chosen]).all(1).float()
        groups = reward.view(-1, samples)
        advantages = groups - groups.mean(1, keepdim=True)
        if algorithm == "grpo":
            advantages /= groups.std(1, keepdim=True) + 1e-4
        old, clip = None, 0.2 if algorithm == "grpo" else None
        for _ in range(epochs):
            found = learn(model, optimizer, prompts[chosen], sampled, advantages.flatten(), correction, old, clip)
            old = found if old is None else old
        rewards.append(reward.mean().item())
        if step % 20 == 0:
            apart = roundoff.mismatch(old, sampled.log_probs)
            unrounded.append(right_unrounded(model, prompts, answers))
            roundoff.log(
                step, reward=sum(rewards[-20:]) / 20, unrounded=unrounded[-1],
                kl=apart.k3_kl, outside=apart.outside, ess=apart.ess_seq,
            )  # fmt: skip
    last, unrounded = rewards[-max(1, steps // 10) :], unrounded[-max(1, steps // 200) :]
    return {
        "reward": sum(last) / len(last), "unrounded": sum(unrounded) / len(unrounded), "questions": len(prompts)
    }  # fmt: skip
