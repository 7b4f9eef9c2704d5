"""TRL's GRPOTrainer on a Llama of two layers that is made here, with words of its own: nothing is downloaded.

It knows nothing of roundoff: docs/rollouts.md runs it in parts with arithmetic of their own. Needs trl and datasets.
"""

import os

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

WORDS = {word: number for number, word in enumerate(["<pad>", "<eos>", *"abcdefgh"])}


def even(completions: list[str], **_: object) -> list[float]:
    """Rewards of answers: wanted is an "a" at every second place."""
    return [sum(word == "a" for word in text.split()[::2]) / 4 for text in completions]


def train(steps: int = 12, hidden: int = 64) -> dict:
    """Trains for some steps, and returns the mean reward of the last four."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(WORDS), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=4, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    ))  # fmt: skip
    settings = GRPOConfig(
        output_dir="grpo", max_steps=steps, per_device_train_batch_size=16, num_generations=8, max_completion_length=8,
        learning_rate=3e-3, logging_steps=1, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a b c", "h g f"] * 64})
    trainer = GRPOTrainer(model, even, args=settings, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    return {"reward": sum(rewards[-4:]) / 4}


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(f"reward {train()['reward']:.3f}")
