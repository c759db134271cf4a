"""A GPT-2 of 32 words with random weights and its tokenizer, for the jobs of TRL, and which of
their checkpoints to resume from."""

import json

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = ["<pad>", "<eos>", *(f"w{number}" for number in range(30))]
QUIET = {
    "save_steps": 5,
    "learning_rate": 0.01,
    "seed": 5,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
    "logging_strategy": "no",
}


def tokenizer():
    numbers = {word: i for i, word in enumerate(WORDS)}
    plain = Tokenizer(models.WordLevel(numbers, unk_token="<eos>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<eos>"
    )


def model():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=1
        )
    )


def prompt(i, last):
    return " ".join(f"w{(i * k) % 30}" for k in range(1, last))


def newest(out):
    """The newest checkpoint with a `trainer_state.json` that can be read; None if there is none."""
    saved = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    return next((str(folder) for folder in reversed(saved) if _finished(folder)), None)


def _finished(folder):
    try:
        return bool(json.loads((folder / "trainer_state.json").read_text()))
    except (OSError, ValueError):
        return False
