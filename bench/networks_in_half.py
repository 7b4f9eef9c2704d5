"""Networks of ``transformers`` in native half precision, and the same programs simulated: whose errors are larger?

``python -m bench.networks_in_half networks-in-half.csv`` builds small networks with random weights, for which no file
is needed, and computes a loss and its gradients three ways: in float64; in float16 or bfloat16 by PyTorch's own
kernels; and by the same half-precision program inside of a simulation, which computes in float32 and rounds. A row
holds, for a network, a dtype and a seed, the root mean square distances from float64 of the output, of the gradients of
matrices and of those of vectors (biases, and the weights of norms). Needs ``transformers``.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

import roundoff

if TYPE_CHECKING:
    from collections.abc import Iterator

    Found = tuple[torch.Tensor, dict[str, torch.Tensor]]

MODELS = [
    "albert", "arcee", "bert", "biogpt", "blenderbot", "bloom", "codegen", "cohere", "cohere2", "convbert", "ctrl",
    "deberta", "deberta-v2", "diffllama", "distilbert", "electra", "ernie", "ernie4_5", "exaone4", "gemma", "gemma2",
    "glm", "glm4", "gpt2", "gpt_neox", "gptj", "granite", "helium", "lfm2", "llama", "m2m_100", "marian", "mbart",
    "megatron-bert", "mistral", "mobilebert", "modernbert", "mpnet", "mpt", "nystromformer", "olmo", "olmo2",
    "openai-gpt", "opt", "pegasus", "phi", "phi3", "plbart", "qwen2", "qwen3", "rembert", "roberta", "roformer",
    "smollm3", "stablelm", "starcoder2", "xlm",
]  # fmt: skip
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SEEDS = range(5)
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("decoder_attention_heads", "rotary_dim"), 4),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), 1),
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 99, "embedding_size": 16, "pad_token_id": 0,
    "eos_token_id": 2, "layer_types": None,
}  # fmt: skip
"""The sizes of every network, where its config has a key of that name and sets it."""


def network(name: str, seed: int) -> torch.nn.Module:
    """A small network of this kind with random weights, in evaluation mode, so that nothing is dropped."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM  # noqa: PLC0415  slow
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415

    kind: Any = CONFIG_MAPPING[name]
    standard = kind()
    config = kind(**{key: size for key, size in SIZES.items() if getattr(standard, key, None) is not None})
    torch.manual_seed(seed)
    for head in (AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoModelForCausalLM):
        if type(config) in head._model_mapping:
            made: torch.nn.Module = head.from_config(config).eval()
            return made
    raise ValueError(f"{name} has no head that predicts tokens")


def run(model: torch.nn.Module, ids: torch.Tensor) -> Found:
    """The logits and the gradients of the loss, in float64."""
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return out.logits.detach().double(), gradients


def distances(found: Found, exact: Found) -> dict[str, float]:
    """Root mean squares of what differs, in the output, in gradients of matrices, and in those of vectors."""

    def of(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        return float(torch.cat([(a - b).flatten() for a, b in pairs]).square().mean().sqrt()) if pairs else math.nan

    (output, gradients), (exact_output, exact_gradients) = found, exact
    both = [(gradients[name], exact_gradients[name]) for name in exact_gradients]
    return {
        "output": of([(output, exact_output)]),
        "matrices": of([pair for pair in both if pair[0].dim() > 1]),
        "vectors": of([pair for pair in both if pair[0].dim() == 1]),
    }


def rows(name: str) -> Iterator[dict[str, Any]]:
    """What was measured of one kind of network."""
    for seed in SEEDS:
        model = network(name, seed)
        ids = torch.randint(3, 99, (4, 16), generator=torch.Generator().manual_seed(seed))
        for dtype, half in DTYPES.items():
            rounded = copy.deepcopy(model).to(half)
            exact = run(copy.deepcopy(rounded).double(), ids)
            native = distances(run(copy.deepcopy(rounded), ids), exact)
            with roundoff.simulate(roundoff.Policy(dtype, islands="exact")):
                simulated = distances(run(copy.deepcopy(rounded), ids), exact)
            yield {
                "model": name, "dtype": dtype, "seed": seed,
                **{f"native {what}": x for what, x in native.items()},
                **{f"simulated {what}": x for what, x in simulated.items()},
            }  # fmt: skip


def main(path: str) -> None:
    """Measures all networks, and writes a table."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    warnings.simplefilter("ignore")
    found = []
    for name in MODELS:
        found += list(rows(name))
        print(name, flush=True)
        pd.DataFrame(found).to_csv(path, index=False, float_format="%.3g")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"python -m bench.networks_in_half FILE.csv; got {sys.argv[1:]}")
    torch.set_num_threads(1)
    main(sys.argv[1])
