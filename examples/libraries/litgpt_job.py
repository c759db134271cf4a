"""`litgpt pretrain --data LitData --resume auto` with a tiny model: a checkpoint every 5 steps, two
batches a step. It reads its command line again when it saves, so it is given one."""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # it compiles the model: no need for one so small

import torch
from litdata.streaming import TokensLoader
from litdata.streaming.writer import BinaryWriter
from litgpt.__main__ import main

BLOCK, BATCH, STEPS = 8, 2, 24
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
tokens = options.out.parent / "data" / "tokens"  # made once, outside of what is saved
if not (tokens / "index.json").exists():
    tokens.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(1)
    writer = BinaryWriter(
        str(tokens), chunk_size=12 * (BLOCK + 1), item_loader=TokensLoader(BLOCK + 1)
    )
    for number in range(36):
        writer.add_item(number, torch.randint(0, 30, (BLOCK + 1,), generator=draw))
    writer.done()
    writer.merge()
flags = {
    "model_config.name": "tiny",
    "model_config.block_size": BLOCK,
    "model_config.vocab_size": 32,
    "model_config.padded_vocab_size": 32,
    "model_config.n_layer": 1,
    "model_config.n_head": 2,
    "model_config.n_embd": 16,
    "out_dir": options.out,
    "precision": "32-true",
    "resume": "auto",
    "data": "LitData",
    "data.data_path": tokens,
    "data.num_workers": 0,
    "train.save_interval": 5,
    "train.log_interval": 1,
    "train.global_batch_size": 2 * BATCH,
    "train.micro_batch_size": BATCH,
    "train.max_tokens": STEPS * 2 * BATCH * BLOCK,
    "train.lr_warmup_steps": 2,
    "eval.interval": 1000,
    "eval.max_iters": 2,
    "devices": 1,
    "logger_name": "csv",
}
sys.argv = ["litgpt", "pretrain", "tiny", *(f"--{name}={value}" for name, value in flags.items())]
main()
