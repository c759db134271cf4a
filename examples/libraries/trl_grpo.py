"""TRL's GRPOTrainer on a tiny GPT-2 with random weights and a reward for even words, resumed by
`resume_from_checkpoint`: the newest checkpoint with a `trainer_state.json` that can be read."""

import argparse
from pathlib import Path

import tiny_lm
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def even(completions, **_):
    words = [[int(word[1:]) for word in text.split() if word[1:].isdigit()] for text in completions]
    return [sum(number % 2 == 0 for number in row) / 8 for row in words]


parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--reuse", type=int, default=1, help="steps that share one generation")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
tokenizer = tiny_lm.tokenizer()
tokenizer.padding_side = "left"
trainer = GRPOTrainer(
    tiny_lm.model(),
    even,
    GRPOConfig(
        output_dir=str(options.out),
        per_device_train_batch_size=4,
        num_generations=4,
        steps_per_generation=options.reuse,
        max_completion_length=8,
        max_steps=24,
        **tiny_lm.QUIET,
    ),
    train_dataset=Dataset.from_list([{"prompt": tiny_lm.prompt(i, 5)} for i in range(24)]),
    processing_class=tokenizer,
)
trainer.train(resume_from_checkpoint=tiny_lm.newest(options.out))
