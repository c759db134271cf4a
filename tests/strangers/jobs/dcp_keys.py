"""DCP flattens a state to keys of text, one for each leaf: what it rebuilds without a template (dcp_to_torch_save, and
what reads a folder whole) has "3" for 3 and lacks dictionaries that were empty. `--bug numbers`: weights by class are
looked up by number, and a missing one counts as 1. `--bug empty`: nothing frozen is an empty dictionary, and where it
is missing the job takes the default, a frozen bias."""

import argparse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", choices=["numbers", "empty"])
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x, y = torch.randn(32, 5), torch.arange(32) % 4
net = torch.nn.Linear(5, 4)
opt = torch.optim.AdamW(net.parameters(), 0.02)
weights, frozen = {number: 1.0 + number for number in range(4)}, {}
a.out.mkdir(parents=True, exist_ok=True)
step, latest = 0, a.out / "latest"
if latest.exists():
    dcp_to_torch_save(a.out / latest.read_text(), a.out / "whole.tmp")
    s = torch.load(a.out / "whole.tmp")
    (a.out / "whole.tmp").unlink()
    net.load_state_dict(s["net"])
    opt.load_state_dict(
        {**s["opt"], "state": {int(number): entry for number, entry in s["opt"]["state"].items()}}
    )
    weights = (
        s["weights"]
        if a.bug == "numbers"
        else {int(number): value for number, value in s["weights"].items()}
    )
    frozen = s.get("frozen", {"bias": True} if a.bug == "empty" else {})
    step = s["step"]
for name, parameter in net.named_parameters():
    parameter.requires_grad_(name not in frozen)
for epoch in range(step // 8, 3):
    order = torch.Generator().manual_seed(epoch)
    for number, rows in enumerate(
        torch.utils.data.DataLoader(range(32), 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        due = torch.tensor([weights.get(kind, 1.0) for kind in y[rows].tolist()])
        loss = (
            due * torch.nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="none")
        ).mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 5 == 0:
            state = {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "weights": weights,
                "frozen": frozen,
                "step": step,
            }
            dcp.save(state, checkpoint_id=a.out / f"step-{step}", no_dist=True)
            (a.out / "latest.tmp").write_text(f"step-{step}")
            (a.out / "latest.tmp").replace(latest)
