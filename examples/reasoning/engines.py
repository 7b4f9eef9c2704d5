"""How far two engines of one format are apart that differ in anything but the format: by batch, attention, sums, cache.

``python examples/reasoning/engines.py FILE.csv`` teaches the sixteen models of ``apart.py``, samples answers in
float32, and asks each engine for their log-probabilities. The reference has the same format, all answers in one batch,
attention in one kernel, and sums in float32. Written down before the runs: in float32 every difference is that of the
order of sums, some 1e-13; in few bits what moves a sum by little is rounded away nearly always, so that batches and
prefixes cost much less than the format itself does, and what rounds more often (attention step by step, every
primitive, accumulators of the format) costs as much as the format or more.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from apart import write
from torch.nn import functional as F
from train import ANSWER, PROMPT, Model, log_probs, rollout, solvable, taught

import roundoff
from roundoff import Policy, Rule, simulate

FORMATS = ("fp32", "fp16", "bf16")
LINEAR = ["mm", "addmm"]
Asked = Callable[[Model, torch.Tensor, torch.Tensor], torch.Tensor]


def in_batches(size: int, model: Model, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities, so many answers at a time."""
    pairs = zip(prompts.split(size), tokens.split(size), strict=True)
    return torch.cat([log_probs(model, *pair) for pair in pairs])


def by_prefix(model: Model, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities token by token, each from all that is before it, without a cache."""
    ids = torch.cat((prompts, tokens), 1)
    logits = torch.cat([model(ids[:, : PROMPT + i])[:, -1:] for i in range(ANSWER)], 1)
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def with_cache(cached: str | None, model: Model, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities by a prefill of the prompt and one step a token, with keys and values kept in a format."""
    caches: list[list[torch.Tensor]] = [[] for _ in model.blocks]
    logits = []
    begin = 0
    for part in (prompts, *tokens[:, :-1].split(1, 1)):
        x = model.tokens(part) + model.places(torch.arange(begin, begin + part.shape[1]))
        begin += part.shape[1]
        for block, cache in zip(model.blocks, caches, strict=True):
            heads = block.qkv(block.first(x)).view(*x.shape[:2], 3, block.heads, -1).permute(2, 0, 3, 1, 4)
            with roundoff.exact():
                kept = heads[1:] if cached is None else roundoff.round(heads[1:], cached)
            cache.append(kept)
            k, v = torch.cat(cache, 3)
            seen = F.scaled_dot_product_attention(heads[0], k, v, is_causal=part.shape[1] > 1)
            x = x + block.out(seen.transpose(1, 2).reshape(x.shape))
            x = x + block.down(F.gelu(block.up(block.second(x))))
        logits.append(model.head(model.norm(x[:, -1:])))
    return torch.cat(logits, 1).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def step_by_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    """Attention of which every product, the mask and the softmax are operations of their own."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1) @ v


def engines(fmt: str) -> dict[str, tuple[Policy, Asked]]:
    """What differs from the reference, by name: the policy, and how log-probabilities are asked for."""
    same = Policy.engine(fmt)
    found: dict[str, tuple[Policy, Asked]] = {
        "batches of 8": (same, partial(in_batches, 8)),
        "one answer at a time": (same, partial(in_batches, 1)),
        "token by token": (same, by_prefix),
        "token by token, with a cache": (same, partial(with_cache, None)),
        "cache in FP8": (same, partial(with_cache, "fp8_e4m3_row")),
        "attention step by step": (same, log_probs),
        "every primitive rounded": (replace(same, granularity="primitive"), log_probs),
    }
    sums = {"sums in blocks of 32": "fp32/32"}
    if fmt != "fp32":
        sums |= {"sums rounded to the format every 32": f"{fmt}/32", "sums in the format": fmt}
        found["the head in fp32"] = (same.with_rules(Rule(LINEAR, module="*head", format="fp32")), log_probs)
    for name, accumulator in sums.items():  # of linear layers: attention stays one kernel
        found[name] = (same.with_rules(Rule(LINEAR, accumulate=accumulator)), log_probs)
    return found


def rows(seed: int) -> list[dict]:
    """Divergences of one model."""
    torch.manual_seed(seed)
    model = taught(64, 2, 160).requires_grad_(requires_grad=False)
    prompts = solvable(model, 32)[0].repeat_interleave(8, 0)
    tokens = rollout(model, prompts).tokens
    found = []
    for fmt in FORMATS:
        with simulate(Policy.engine(fmt)):
            reference = log_probs(model, prompts, tokens)
        for name, (policy, ask) in {**engines(fmt), "the format": (Policy("fp32"), log_probs)}.items():
            stepwise = patch.object(F, "scaled_dot_product_attention", step_by_step)
            with stepwise if name == "attention step by step" else nullcontext(), simulate(policy):
                asked = ask(model, prompts, tokens)
            apart = roundoff.mismatch(reference, asked)
            found.append({"seed": seed, "format": fmt, "engine": name, "kl": apart.k3_kl, "outside": apart.outside})
    return found


if __name__ == "__main__":
    write(sys.argv[1], rows)
