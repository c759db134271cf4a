"""TRL's GRPOTrainer on a tiny GPT-2 with random weights and a reward for even tokens, resumed by
`resume_from_checkpoint`: the newest checkpoint with a `trainer_state.json` that can be read."""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def finished(folder):
    try:
        return bool(json.loads((folder / "trainer_state.json").read_text()))
    except (OSError, ValueError):
        return False


def even(completions, **_):
    words = [[int(word[1:]) for word in text.split() if word[1:].isdigit()] for text in completions]
    return [sum(number % 2 == 0 for number in row) / 8 for row in words]


parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--reuse", type=int, default=1, help="steps that share one generation")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
words = ["<pad>", "<eos>", *(f"w{number}" for number in range(30))]
plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<eos>"
)
tokenizer.padding_side = "left"
rows = [{"prompt": " ".join(f"w{(i * k) % 30}" for k in range(1, 5))} for i in range(24)]
shape = GPT2Config(
    vocab_size=len(words), n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=1
)
trainer = GRPOTrainer(
    GPT2LMHeadModel(shape),
    even,
    GRPOConfig(
        output_dir=str(options.out),
        per_device_train_batch_size=4,
        num_generations=4,
        steps_per_generation=options.reuse,
        max_completion_length=8,
        max_steps=24,
        save_steps=5,
        learning_rate=0.01,
        seed=5,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer,
)
saved = sorted(options.out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
newest = next((str(folder) for folder in reversed(saved) if finished(folder)), None)
trainer.train(resume_from_checkpoint=newest)
