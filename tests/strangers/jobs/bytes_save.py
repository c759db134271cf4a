"""Checkpoints go through io.BytesIO and Path.write_bytes, as ultralytics' YOLO, fsspec and uploads do it; the
job resumes exactly. `--bug`: the generator is not restored."""

import io
import os
import sys
from pathlib import Path

import torch

out = Path(sys.argv[1]) / "last.pt"
out.parent.mkdir(exist_ok=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
opt = torch.optim.Adam(model.parameters(), 1e-2)
step = 0
if out.exists():
    state = torch.load(io.BytesIO(out.read_bytes()))
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    if "--bug" not in sys.argv:
        torch.set_rng_state(state["rng"])
    step = state["step"]
while step < 16:
    opt.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        buffer = io.BytesIO()
        torch.save(
            {
                "model": model.state_dict(),
                "opt": opt.state_dict(),
                "rng": torch.get_rng_state(),
                "step": step,
            },
            buffer,
        )
        part = out.with_suffix(".part")
        part.write_bytes(buffer.getvalue())
        os.replace(part, out)
