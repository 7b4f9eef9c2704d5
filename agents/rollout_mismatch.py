"""Rollouts in one arithmetic and learning in another: the distance of the two, and weights that correct for it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch

from ..simulate import exact

Correction: TypeAlias = Literal[
    "none", "token", "token-truncate", "token-mask", "sequence", "sequence-truncate", "sequence-mask"
]
"""Corrections for the different probabilities of sampled tokens; see :func:`importance_weights`."""


class Mismatch(NamedTuple):
    """The distance between a trainer's and a rollout's probabilities of sampled tokens.

    With r = p_trainer / p_rollout of a token, and R, the product of r over a sequence. Means over tokens are over all
    tokens of all sequences. The names match verl and ms-swift, if these have a name.

    Attributes:
        kl: the mean of -log r, an estimate (k1) of KL(rollout || trainer) for a token; it may be negative.
        k3_kl: the mean of r - 1 - log r, another estimate (k3), which is never negative and varies less.
        outside: the share of tokens where r is not within ``band`` of 1.
        chi2_token: the mean of r^2, less 1: an estimate of the chi-square divergence of tokens.
        chi2_seq: the mean of R^2, less 1: the estimate for sequences. Infinite if it is beyond float64.
        ess_token: effective sample size over the number of tokens: (sum r)^2 / (n sum r^2), in (0, 1].
        ess_seq: the same for sequences, by R.
        training_ppl: the perplexity of a sequence to the trainer, exp(-mean log p); the mean over sequences.
        rollout_ppl: the same for the policy of the rollout.
        log_ppl_diff: the mean difference of the logarithms of a sequence's two perplexities, trainer's less rollout's.
        log_ppl_abs_diff: the mean of the magnitude of this difference.
        ppl_ratio: the ratio of the two perplexities of a sequence, trainer's over rollout's; the mean.
        tokens: the number of tokens.
        sequences: the number of sequences that have tokens.
    """

    kl: float
    k3_kl: float
    outside: float
    chi2_token: float
    chi2_seq: float
    ess_token: float
    ess_seq: float
    training_ppl: float
    rollout_ppl: float
    log_ppl_diff: float
    log_ppl_abs_diff: float
    ppl_ratio: float
    tokens: int
    sequences: int


@exact
def mismatch(
    trainer_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    band: float = 0.1,
) -> Mismatch:
    """Measures how much rollouts and learning disagree about the sampled tokens, in float64.

    It computes outside of all simulations, also if it is called inside of one. If both have the same arithmetic and
    weights, all results are 0 or 1. Any other result biases a policy gradient.

    Args:
        trainer_log_probs: the trainer's log-probability of each sampled token, (sequences, tokens), or of one sequence;
            any floating-point type, on any device. Minus infinity, which is a probability of 0, makes ``kl`` infinite.
        rollout_log_probs: the rollout's log-probabilities of the tokens, of the same shape.
        mask: the tokens that count, of the same shape; true or 1. None: all. Other tokens are ignored.
        band: the distance of r from 1 beyond which it is ``outside``.

    Returns:
        Numbers; in a sweep of a program, ``roundoff.log(step=..., **found._asdict())`` logs all of them.

    Raises:
        ValueError: shapes differ, a type is not floating-point, no token counts, or a counted token has a
            log-probability that is NaN or above 0, or was sampled with minus infinity.

    Source:
        Estimators of KL: Schulman, "Approximating KL divergence", 2020. Effective sample size: Kong, "A note on
        importance sampling using standardized weights", 1992. Why it matters: Qi et al., "Defeating the
        training-inference mismatch via FP16", 2025.
    """
    if not band > 0:
        raise ValueError(f"band must be above 0, got {band}")
    trainer, rollout, counts = _counted_log_probs(trainer_log_probs, rollout_log_probs, mask)
    log_ratios = trainer - rollout  # 0 for tokens that do not count.
    lengths = counts.sum(1)
    sequences = lengths > 0  # Others have no tokens that count.
    token_ratios, sequence_ratios = log_ratios[counts], log_ratios.sum(1)[sequences]
    # Logarithms of perplexities, (sequences,).
    training, sampled = (-(log_probs.sum(1) / lengths)[sequences] for log_probs in (trainer, rollout))
    return Mismatch(
        **distances(token_ratios, band),
        chi2_token=float(torch.expm1(2 * token_ratios).mean()),
        chi2_seq=float(torch.expm1(2 * sequence_ratios).mean()),
        ess_seq=_effective_share(sequence_ratios),
        training_ppl=float(training.exp().mean()),
        rollout_ppl=float(sampled.exp().mean()),
        log_ppl_diff=float((training - sampled).mean()),
        log_ppl_abs_diff=float((training - sampled).abs().mean()),
        ppl_ratio=float((training - sampled).exp().mean()),
        tokens=int(lengths.sum()),
        sequences=int(sequences.sum()),
    )


@exact
def importance_weights(
    trainer_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    correction: Correction = "token-truncate",
    threshold: float = 2.0,
    least: float = 0.0,
) -> torch.Tensor:
    """Computes weights for the terms of a policy gradient, to correct for tokens sampled in another arithmetic.

    They are computed outside of all simulations, like :func:`mismatch`.

    - ``none``: 1, the gradient of most programs, which is biased.
    - ``token``: r, the ratio of a token's probabilities; ``sequence``: R, the product of r over its sequence. With R
      the expectation is exact, and its variance grows with the length; r is exact for the first token.
    - ``...-truncate``: the same, but at most ``threshold``: less variance, and some bias.
    - ``...-mask``: 0 if it is not between ``least`` and ``threshold``, which excludes the token or sequence.

    Args:
        trainer_log_probs: see :func:`mismatch`. No gradient flows through the weights.
        rollout_log_probs: see :func:`mismatch`.
        mask: the tokens that count.
        correction: the kind of weights.
        threshold: the largest weight.
        least: the smallest weight that a mask keeps; both bounds are included.

    Returns:
        Weights, with the shape, type and device of ``trainer_log_probs``; 0 for tokens that do not count. Computed in
        float64; a weight beyond the largest number of the type is infinite.

    Raises:
        ValueError: see :func:`mismatch`; also an unknown correction, or bounds without numbers between them.

    Source:
        Truncation: Espeholt et al., "IMPALA", 2018, Section 4.1; Ionides, "Truncated importance sampling", 2008.
        Tokens and sequences: Qi et al., 2025, Section 3; the modes have the names of ms-swift.
    """
    if correction not in get_args(Correction):
        raise ValueError(f"unknown correction {correction!r}; allowed are {', '.join(get_args(Correction))}")
    if not 0 <= least < threshold:
        raise ValueError(f"least must be 0 or more and less than threshold, got {least} and {threshold}")
    trainer, rollout, counts = _counted_log_probs(trainer_log_probs, rollout_log_probs, mask)
    weights = weights_of(trainer - rollout, correction, threshold, least)
    return torch.where(counts, weights, 0.0).to(trainer_log_probs.dtype).view(trainer_log_probs.shape)


def weights_of(log_ratios: torch.Tensor, correction: Correction, threshold: float, least: float) -> torch.Tensor:
    """Computes :func:`importance_weights` from log r, (sequences, tokens), in float64; 0 beyond a sequence.

    NaN stays NaN, except that masks exclude it.
    """
    if correction.startswith("sequence"):  # R for each token of its sequence.
        log_ratios = log_ratios.sum(1, keepdim=True).expand_as(log_ratios)
    weights = torch.ones_like(log_ratios) if correction == "none" else log_ratios.exp()
    if correction.endswith("truncate"):
        return weights.clamp(max=threshold)
    if correction.endswith("mask"):
        return torch.where((weights >= least) & (weights <= threshold), weights, 0.0)  # False for NaN.
    return weights


def distances(log_ratios: torch.Tensor, band: float = 0.1) -> dict[str, float]:
    """Computes ``kl``, ``k3_kl``, ``outside`` and ``ess_token`` of :class:`Mismatch` from log r, (tokens,)."""
    return {
        "kl": float((-log_ratios).mean()),
        "k3_kl": float((torch.expm1(log_ratios) - log_ratios).mean()),
        "outside": float(((log_ratios.exp() - 1).abs() > band).double().mean()),
        "ess_token": _effective_share(log_ratios),
    }


def _counted_log_probs(
    trainer: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns log-probabilities in float64, 0 for tokens that do not count, and a mask: (sequences, tokens) each."""
    shape = trainer.shape
    mask = torch.ones(shape, dtype=torch.bool, device=trainer.device) if mask is None else mask
    for name, x in (("rollout_log_probs", rollout), ("mask", mask)):
        if x.shape != shape:
            raise ValueError(f"{name} must have the shape of trainer_log_probs, {tuple(shape)}, got {tuple(x.shape)}")
    for name, x in (("trainer_log_probs", trainer), ("rollout_log_probs", rollout)):
        if not x.is_floating_point():
            raise ValueError(f"{name} must be floating-point numbers, got {x.dtype}")
    if trainer.ndim not in (1, 2):
        raise ValueError(f"trainer_log_probs must be (sequences, tokens) or (tokens,), got {tuple(shape)}")
    shape_2d = (1, *shape) if len(shape) == 1 else shape
    counts = mask.detach().to(torch.bool).reshape(shape_2d)
    if not counts.any():
        raise ValueError("there is no token to count: the mask is 0 everywhere, or there are no tokens")
    checked = []
    for name, x in (("trainer_log_probs", trainer), ("rollout_log_probs", rollout)):
        values = torch.where(counts, x.detach().double().reshape(shape_2d), 0.0)
        if mistake := _describe_first(values, ~(values <= 0)):  # Also NaN.
            raise ValueError(f"{name}{mistake} is not a log-probability: allowed are numbers up to 0")
        checked.append(values)
    if mistake := _describe_first(checked[1], checked[1].isinf()):
        raise ValueError(f"rollout_log_probs{mistake}: a token that was sampled has a probability above 0")
    return checked[0], checked[1], counts


def _describe_first(values: torch.Tensor, mistakes: torch.Tensor) -> str:
    """Returns the place and value of the first mistake; empty if there is none."""
    places = mistakes.nonzero()
    if not len(places):
        return ""
    i, j = places[0].tolist()
    return f"[{i}, {j}] = {float(values[i, j]):g}"


def _effective_share(log_weights: torch.Tensor) -> float:
    """Returns the effective sample size over the number of weights; 0 if all weights are 0."""
    largest = float(log_weights.max())
    if largest == -math.inf:  # The difference below would be NaN.
        return 0.0
    weights = (log_weights - largest).exp()  # At most 1: the weights themselves may be beyond float64.
    return float(weights.sum() ** 2 / (len(weights) * weights.square().sum()))
