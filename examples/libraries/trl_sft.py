"""TRL's SFTTrainer on a tiny GPT-2 with random weights, resumed by `resume_from_checkpoint`: the
newest checkpoint with a `trainer_state.json` that can be read."""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def finished(folder):
    try:
        return bool(json.loads((folder / "trainer_state.json").read_text()))
    except (OSError, ValueError):
        return False


parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--lora", action="store_true", help="train an adapter of PEFT")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
words = ["<pad>", "<eos>", *(f"w{number}" for number in range(30))]
plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<eos>"
)
rows = [{"text": " ".join(f"w{(i * k) % 30}" for k in range(1, 9))} for i in range(48)]
shape = GPT2Config(
    vocab_size=len(words), n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=1
)
arguments = SFTConfig(
    output_dir=str(options.out),
    per_device_train_batch_size=4,
    num_train_epochs=2,
    save_steps=5,
    max_length=16,
    learning_rate=0.01,
    seed=5,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    report_to="none",
    disable_tqdm=True,
    logging_strategy="no",
)
adapter = {}
if options.lora:
    from peft import LoraConfig

    adapter["peft_config"] = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM")
trainer = SFTTrainer(
    GPT2LMHeadModel(shape),
    arguments,
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer,
    **adapter,
)
saved = sorted(options.out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
newest = next((str(folder) for folder in reversed(saved) if finished(folder)), None)
trainer.train(resume_from_checkpoint=newest)
