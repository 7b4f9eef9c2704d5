"""How far rollouts in few bits are from a trainer in float32, of one and the same answers: by width, and by part.

``python examples/reasoning/apart.py FILE.csv`` teaches sixteen models, samples answers of each in float32, and asks
each arithmetic for the log-probabilities of these. The prediction was written down first: errors of logits are
proportional to an ulp, the divergence is half their variance under the policy, and so it falls by four with each bit.
Its constant is taken from the errors of logits at ten bits: nothing is fitted to a divergence.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from train import PROMPT, log_probs, rollout, solvable, taught

import roundoff
from roundoff import Policy, Rule, simulate

WIDTHS = range(2, 11)
PRODUCTS = ["mm", "addmm", "bmm"]


def parts(m: int) -> dict[str, Policy]:
    """What is rounded to m significand bits."""
    fmt = f"e8m{m}"
    return {
        "everything": Policy.engine(fmt),
        "weights": Policy("fp32").with_rules(Rule(role="parameters", format=fmt)),
        "activations": Policy("fp32").with_rules(Rule(role="activations", format=fmt)),
        "results of products": Policy("fp32").with_rules(Rule(PRODUCTS, format=fmt)),
        "sums of blocks": Policy("fp32").with_rules(Rule("add", module="*.blocks.*", format=fmt)),
        "normalization": Policy("fp32").with_rules(Rule("native_layer_norm", format=fmt)),
        "attention": Policy("fp32").with_rules(Rule("*attention*", format=fmt)),
        "the head": Policy("fp32").with_rules(Rule(PRODUCTS, module="*head", format=fmt)),
        "log-softmax": Policy("fp32").with_rules(Rule("_log_softmax", format=fmt)),
    }


def rows(seed: int) -> list[dict]:
    """Divergences of one model."""
    torch.manual_seed(seed)
    model = taught(64, 2, 160).requires_grad_(requires_grad=False)
    prompts = solvable(model, 128)[0].repeat_interleave(8, 0)
    tokens = rollout(model, prompts).tokens

    def logits(policy: Policy) -> torch.Tensor:
        with simulate(policy):
            return model(torch.cat((prompts, tokens), 1)[:, :-1])[:, PROMPT - 1 :]

    def asked(policy: Policy) -> dict[str, float]:
        with simulate(policy):
            found = roundoff.mismatch(trainer, log_probs(model, prompts, tokens))
        return {"kl": found.k3_kl, "outside": found.outside}

    trainer = log_probs(model, prompts, tokens)
    exact = logits(Policy("fp32")).double()
    error = logits(Policy.engine("e8m10")).double() - exact
    p = exact.softmax(-1)
    at_ten = ((p * error**2).sum(-1) - (p * error).sum(-1) ** 2).mean().item() / 2
    found = []
    for m in WIDTHS:
        for part, policy in parts(m).items():
            predicted = at_ten * 4.0 ** (10 - m) if part == "everything" else ""
            found.append({"seed": seed, "part": part, "m": m, **asked(policy), "predicted": predicted})
    engines = {name: Policy.engine(name) for name in ("bf16", "fp16", "e4m3", "e5m2")}
    for name, policy in {**engines, "fp8 rowwise": Policy.fp8("rowwise"), "mxfp8": Policy.mx()}.items():
        found.append({"seed": seed, "part": name, "m": "", **asked(policy), "predicted": ""})
    return found


def write(file_name: str, rows: Callable[[int], list[dict]]) -> None:
    """Writes what was measured of sixteen models, model by model."""
    torch.set_num_threads(1)
    with Path(file_name).open("w", encoding="utf-8", newline="") as file:
        for seed in range(16):
            measured = rows(seed)
            writer = csv.DictWriter(file, list(measured[0]), lineterminator="\n")
            if seed == 0:
                writer.writeheader()
            writer.writerows(row | {"kl": f"{row['kl']:.3e}", "outside": f"{row['outside']:.4f}"} for row in measured)
            file.flush()


if __name__ == "__main__":
    write(sys.argv[1], rows)
