"""Streaming data, wrong only at the second resume with datasets 5.0.0 (`--bug` trusts the library's state;
without it rows are skipped)."""

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
BATCH, STEPS = 4, 24
rows = Dataset.from_dict(
    {"x": [[float(i), float(i * i % 7), 1.0] for i in range(BATCH * STEPS)]}
).to_iterable_dataset(num_shards=4)
net = torch.nn.Linear(3, 1)
opt = torch.optim.AdamW(net.parameters(), 0.01)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
    if a.bug:
        rows.load_state_dict(s["rows"])
    else:
        rows = rows.skip(step * BATCH)
for batch in torch.utils.data.DataLoader(
    rows,
    batch_size=BATCH,
    collate_fn=lambda found: torch.tensor([f["x"] for f in found]),
    generator=torch.Generator(),
):
    loss = net(batch / 50).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 4 == 0:
        torch.save(
            {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "rows": rows.state_dict() if a.bug else None,
                "step": step,
            },
            f"{file}.tmp",
        )
        Path(f"{file}.tmp").replace(file)
