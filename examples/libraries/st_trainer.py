"""SentenceTransformerTrainer on a tiny BERT with random weights, resumed from the newest checkpoint
with a `trainer_state.json` that can be read."""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import CosineSimilarityLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast


def finished(folder):
    try:
        return bool(json.loads((folder / "trainer_state.json").read_text()))
    except (OSError, ValueError):
        return False


parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(30))]
base = options.out.parent / "tiny"
base.mkdir(parents=True, exist_ok=True)
(base / "vocab.txt").write_text("\n".join(words))
shape = BertConfig(
    vocab_size=len(words),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
BertModel(shape).save_pretrained(base)
BertTokenizerFast(str(base / "vocab.txt")).save_pretrained(base)
body = Transformer(str(base), max_seq_length=16)
model = SentenceTransformer(modules=[body, Pooling(16)], device="cpu")
rows = [
    {
        "sentence1": " ".join(f"w{(i * k) % 30}" for k in range(1, 5)),
        "sentence2": " ".join(f"w{(i + k) % 30}" for k in range(1, 5)),
        "score": (i % 5) / 5,
    }
    for i in range(48)
]
arguments = SentenceTransformerTrainingArguments(
    output_dir=str(options.out),
    per_device_train_batch_size=4,
    num_train_epochs=2,
    save_steps=5,
    learning_rate=0.01,
    seed=5,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
    logging_strategy="no",
)
trainer = SentenceTransformerTrainer(
    model, arguments, train_dataset=Dataset.from_list(rows), loss=CosineSimilarityLoss(model)
)
saved = sorted(options.out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
newest = next((str(folder) for folder in reversed(saved) if finished(folder)), None)
trainer.train(resume_from_checkpoint=newest)
