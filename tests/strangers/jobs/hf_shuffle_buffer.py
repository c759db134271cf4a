"""datasets 5.2.0, streaming with a shuffle buffer: its state does not hold the buffer. `--bug`: the job trusts it, and
after a restart what lay in the buffer is lost or comes twice (a warning says so). Without it rows are skipped, which
fills the buffer as before."""

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
table = Dataset.from_dict({"x": [[float(i), float(i * i % 7), 1.0] for i in range(BATCH * STEPS)]})
rows = table.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=12)
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
loader = torch.utils.data.DataLoader(
    rows,
    BATCH,
    collate_fn=lambda batch: torch.tensor([row["x"] for row in batch]),
    generator=torch.Generator(),
)
for batch in loader:
    loss = net(batch / 90).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 4 == 0:
        state = {
            "net": net.state_dict(),
            "opt": opt.state_dict(),
            "rows": rows.state_dict() if a.bug else None,
            "step": step,
        }
        torch.save(state, f"{file}.tmp")
        Path(f"{file}.tmp").replace(file)
