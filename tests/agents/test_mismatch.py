"""Rollouts and learning in unlike arithmetic: every number by its formula, the law of bits, and unbiased gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import roundoff
from roundoff.agents.rollout_mismatch import importance_weights, mismatch

NAN, INF = math.nan, math.inf


def in_numpy(trainer, rollout, mask, band=0.1):
    """Sequence by sequence and token by token, with no care for what is beyond float64."""
    per_token, per_sequence, train, roll = [], [], [], []
    for t, s, m in zip(trainer, rollout, mask, strict=True):
        ratios = [a - b for a, b, keep in zip(t, s, m, strict=True) if keep]
        if ratios:
            per_token += ratios
            per_sequence.append(sum(ratios))
            train.append(-np.mean([a for a, keep in zip(t, m, strict=True) if keep]))
            roll.append(-np.mean([b for b, keep in zip(s, m, strict=True) if keep]))
    r, whole, train, roll = np.exp(per_token), np.exp(per_sequence), np.array(train), np.array(roll)
    return {
        "kl": -np.mean(per_token),
        "k3_kl": np.mean(r - 1 - np.array(per_token)),
        "outside": np.mean(abs(r - 1) > band),
        "chi2_token": np.mean(r**2) - 1,
        "chi2_seq": np.mean(whole**2) - 1,
        "ess_token": r.sum() ** 2 / len(r) / (r**2).sum(),
        "ess_seq": whole.sum() ** 2 / len(whole) / (whole**2).sum(),
        "training_ppl": np.exp(train).mean(),
        "rollout_ppl": np.exp(roll).mean(),
        "log_ppl_diff": np.mean(train - roll),
        "log_ppl_abs_diff": np.mean(abs(train - roll)),
        "ppl_ratio": np.mean(np.exp(train) / np.exp(roll)),
        "tokens": len(r),
        "sequences": len(whole),
    }


log_probs = st.floats(-8, 0)


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_every_number_is_its_formula(data, sequences, tokens):
    def drawn(of):
        return data.draw(
            st.lists(st.lists(of, min_size=tokens, max_size=tokens), min_size=sequences, max_size=sequences)
        )

    trainer, rollout, mask = drawn(log_probs), drawn(log_probs), drawn(st.booleans())
    mask[0][0] = True
    found = mismatch(*(torch.tensor(one, dtype=torch.float64) for one in (trainer, rollout)), torch.tensor(mask))
    assert found._asdict() == pytest.approx(in_numpy(trainer, rollout, mask), rel=1e-9, abs=1e-12)


def test_the_same_arithmetic_has_none():
    same = torch.tensor([[-0.5, -1.0], [-2.0, -0.1]])
    found = mismatch(same, same)
    assert found[:7] == (0, 0, 0, 0, 0, 1, 1)
    assert (found.log_ppl_diff, found.log_ppl_abs_diff, found.ppl_ratio) == (0, 0, 1)
    assert torch.equal(importance_weights(same, same, correction="sequence"), torch.ones(2, 2))


def test_what_does_not_count_is_not_looked_at():
    trainer, rollout = torch.tensor([[-1.0, NAN], [5.0, INF]]), torch.tensor([[-1.5, -INF], [NAN, NAN]])
    mask = torch.tensor([[1, 0], [0, 0]])
    found = mismatch(trainer, rollout, mask)
    assert (found.tokens, found.sequences, found.kl) == (1, 1, -0.5)
    assert found == mismatch(torch.tensor([-1.0]), torch.tensor([-1.5]))
    weights = importance_weights(trainer, rollout, mask, correction="token")
    assert weights.tolist() == [[pytest.approx(math.exp(0.5)), 0], [0, 0]]


def test_what_is_beyond_float64_or_impossible():
    trainer, rollout = torch.full((2, 4000), -0.1), torch.full((2, 4000), -0.9)
    found = mismatch(trainer, rollout)
    assert (found.chi2_seq, found.ess_seq) == (INF, 1)
    assert math.isfinite(found.chi2_token)
    impossible = mismatch(torch.tensor([[-INF, -1.0]]), torch.tensor([[-1.0, -1.0]]))
    assert (impossible.kl, impossible.k3_kl, impossible.training_ppl) == (INF, INF, INF)
    assert impossible.outside == 0.5
    assert mismatch(torch.tensor([-INF]), torch.tensor([-1.0])).ess_token == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_it_is_computed_in_float64_and_weights_keep_their_type(dtype):
    trainer, rollout = torch.tensor([[-0.5, -3.0]], dtype=dtype), torch.tensor([[-0.25, -4.0]], dtype=dtype)
    assert mismatch(trainer, rollout).kl == (0.25 - 1) / 2
    weights = importance_weights(trainer.requires_grad_(), rollout, correction="token")
    assert weights.dtype == dtype
    assert not weights.requires_grad


def test_no_simulation_rounds_it():
    trainer, rollout = torch.tensor([[-0.51, -3.07]]), torch.tensor([[-0.26, -4.03]])
    found = mismatch(trainer, rollout), importance_weights(trainer, rollout, correction="token")
    with roundoff.simulate("e5m2", rounding="stochastic"):
        inside = mismatch(trainer, rollout), importance_weights(trainer, rollout, correction="token")
    assert inside[0] == found[0]
    assert torch.equal(inside[1], found[1])


R = [0.5, 1.0, 3.0]  # a sequence of 1.5


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ("none", [1, 1, 1]),
        ("token", R),
        ("token-truncate", [0.5, 1, 2]),
        ("token-mask", [0, 1, 0]),
        ("sequence", [1.5] * 3),
        ("sequence-truncate", [1.5] * 3),
        ("sequence-mask", [1.5] * 3),
    ],
)
def test_weights(correction, weights):
    rollout = torch.full((1, 3), -3.0, dtype=torch.float64)
    found = importance_weights(rollout + torch.tensor([R]).log(), rollout, correction=correction, least=0.6)
    assert found.tolist() == [pytest.approx(weights, rel=1e-6)]


def test_a_sequence_beyond_the_threshold_is_cut_or_left_out_as_a_whole():
    rollout = torch.full((2, 2), -3.0, dtype=torch.float64)
    trainer = rollout + torch.tensor([[0.5, 0.5], [0.1, -0.1]], dtype=torch.float64)
    assert importance_weights(trainer, rollout, correction="sequence-mask").tolist() == [[0, 0], [1, 1]]
    assert importance_weights(trainer, rollout, correction="sequence-truncate").tolist() == [[2, 2], [1, 1]]


def test_weights_of_sequences_take_the_bias_away():
    """Two tokens of three kinds, sampled by one distribution, learned from by another: all nine sequences, exactly."""
    generator = torch.Generator().manual_seed(0)
    first, other = (torch.randn(3, 3, generator=generator, dtype=torch.float64).log_softmax(1) for _ in range(2))
    reward = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    pairs = [(i, j) for i in range(3) for j in range(3)]

    def logs(of):  # of the first token by row 0, of the second by the first
        return torch.stack([torch.stack([of[0, i], of[i, j]]) for i, j in pairs])

    values = torch.tensor([float(reward[i, j]) for i, j in pairs])
    probabilities = logs(other).sum(1).exp()  # of the rollout
    wanted = float((logs(first).sum(1).exp() * values).sum())

    def estimated(correction, threshold=1e9):
        weights = importance_weights(logs(first), logs(other), correction=correction, threshold=threshold)
        return float((probabilities * weights[:, 0] * values).sum())

    assert estimated("sequence") == pytest.approx(wanted, rel=1e-12)
    assert estimated("none") != pytest.approx(wanted, rel=1e-3)
    assert estimated("sequence-truncate", 1.0) != pytest.approx(wanted, rel=1e-3)


def test_the_divergence_falls_by_four_with_every_bit():
    """Errors of logits are as large as an ulp: the divergence goes with its square (4^-m), bit by bit, over six."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(4096, 32, generator=generator), torch.randn(32, 64, generator=generator) / 6
    tokens = (hidden @ weight).softmax(1).multinomial(1, generator=generator)

    def logs(fmt):
        with roundoff.simulate(fmt):
            logits = hidden @ weight
        return logits.log_softmax(1).gather(1, tokens)

    exact = logs("fp32")
    found = [mismatch(exact, logs(f"e8m{m}")).k3_kl for m in range(3, 9)]
    ratios = [wide / narrow for narrow, wide in zip(found[1:], found, strict=False)]
    assert all(3.3 < ratio < 4.8 for ratio in ratios), ratios


@pytest.mark.parametrize(
    ("trainer", "rollout", "mask", "said"),
    [
        ([[-1.0]], [[-1.0, -2.0]], None, r"rollout_log_probs must have the shape of trainer_log_probs, \(1, 1\)"),
        ([[-1.0]], [[-1.0]], [True], r"mask must have the shape"),
        ([[-1]], [[-1.0]], None, r"trainer_log_probs must be floating-point numbers, got torch.int64"),
        ([[[-1.0]]], [[[-1.0]]], None, r"must be \(sequences, tokens\) or \(tokens,\), got \(1, 1, 1\)"),
        ([[-1.0]], [[-1.0]], [[False]], "no token to count"),
        ([[]], [[]], None, "no token to count"),
        ([[-1.0, 0.5]], [[-1.0, -1.0]], None, r"trainer_log_probs\[0, 1\] = 0.5 is not a log-probability"),
        ([[NAN]], [[-1.0]], None, r"trainer_log_probs\[0, 0\] = nan"),
        ([[-1.0]], [[INF]], None, r"rollout_log_probs\[0, 0\] = inf is not a log-probability"),
        ([[-1.0]], [[-INF]], None, r"rollout_log_probs\[0, 0\] = -inf: a token that was sampled"),
    ],
)
def test_mistakes_have_one_message(trainer, rollout, mask, said):
    values = torch.tensor(trainer), torch.tensor(rollout), None if mask is None else torch.tensor(mask)
    with pytest.raises(ValueError, match=said):
        mismatch(*values)
    with pytest.raises(ValueError, match=said):
        importance_weights(*values)


def test_settings_are_checked():
    one = torch.tensor([-1.0])
    with pytest.raises(ValueError, match=r"unknown correction 'tokens'; allowed are none, token, token-truncate"):
        importance_weights(one, one, correction="tokens")
    with pytest.raises(ValueError, match=r"least must be 0 or more and less than threshold, got 2\.0 and 2\.0"):
        importance_weights(one, one, least=2.0)
    with pytest.raises(ValueError, match=r"band must be above 0, got 0"):
        mismatch(one, one, band=0)
    assert roundoff.mismatch is mismatch
    assert roundoff.importance_weights is importance_weights
