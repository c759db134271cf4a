"""datasets 5.2.0, streaming, shards shuffled by seed and epoch: the state that IterableDataset.state_dict gives names its
epoch, and load_state_dict does not set it. `--bug`: the job trusts it and sets the epoch only when the next one begins;
what is left of a resumed epoch comes in the first epoch's order."""

import argparse
from pathlib import Path

import torch
from datasets import Dataset

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
BATCH, PER_EPOCH = 4, 8
table = Dataset.from_dict(
    {"x": [[float(i), float(i * i % 7), 1.0] for i in range(BATCH * PER_EPOCH)]}
)
rows = table.to_iterable_dataset(num_shards=8).shuffle(seed=3, buffer_size=1)
net = torch.nn.Linear(3, 1)
opt = torch.optim.AdamW(net.parameters(), 0.01)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
first = step // PER_EPOCH
if step % PER_EPOCH:
    rows.load_state_dict(s["rows"])
for epoch in range(first, 3):
    if not (a.bug and epoch == first):
        rows.set_epoch(epoch)
    loader = torch.utils.data.DataLoader(
        rows,
        BATCH,
        collate_fn=lambda batch: torch.tensor([row["x"] for row in batch]),
        generator=torch.Generator(),
    )
    for batch in loader:
        loss = net(batch / 30).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 5 == 0:
            state = {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "rows": rows.state_dict(),
                "step": step,
            }
            torch.save(state, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
