"""TRL's SFTTrainer on a tiny GPT-2 with random weights, resumed by `resume_from_checkpoint`: the
newest checkpoint with a `trainer_state.json` that can be read."""

import argparse
from pathlib import Path

import tiny_lm
import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--lora", action="store_true", help="train an adapter of PEFT")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
arguments = SFTConfig(
    output_dir=str(options.out),
    per_device_train_batch_size=4,
    num_train_epochs=2,
    max_length=16,
    **tiny_lm.QUIET,
)
adapter = {}
if options.lora:
    from peft import LoraConfig

    adapter["peft_config"] = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM")
trainer = SFTTrainer(
    tiny_lm.model(),
    arguments,
    train_dataset=Dataset.from_list([{"text": tiny_lm.prompt(i, 9)} for i in range(48)]),
    processing_class=tiny_lm.tokenizer(),
    **adapter,
)
trainer.train(resume_from_checkpoint=tiny_lm.newest(options.out))
