"""torch.distributed.checkpoint.state_dict.get_optimizer_state_dict on an optimizer that has made no step yet makes one:
with gradients of zero and a rate of zero, but AdamW's and NAdam's counters go to 1 and SGD's momentum begins with a
zero, which dampening tells from none. Here a head's optimizer starts at step 10; `--bug`: after a restart the job asks
for its state before that, as a template to load into. `--kind`: which optimizer."""

import argparse
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

KINDS = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.02),
    "adam": lambda p: torch.optim.Adam(p, 0.02),
    "nadam": lambda p: torch.optim.NAdam(p, 0.02),
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.5),
    "decayed": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
}
a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--kind", choices=KINDS, default="adamw")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
body, head = torch.nn.Linear(5, 5), torch.nn.Linear(5, 1)
first, late = torch.optim.AdamW(body.parameters(), 0.02), KINDS[a.kind](head.parameters())
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    template = get_optimizer_state_dict(head, late) if a.bug else None
    (
        body.load_state_dict(s["body"]),
        head.load_state_dict(s["head"]),
        first.load_state_dict(s["first"]),
    )
    if s["late"]["state"]:
        late.load_state_dict(s["late"])
    step = s["step"]
for epoch in range(step // 8, 3):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        first.zero_grad(), late.zero_grad()
        (head(body(batch)) - batch[:, :1]).square().mean().backward()
        first.step()
        if step >= 10:
            late.step()
        step += 1
        if step % 4 == 0:
            state = {
                "body": body.state_dict(),
                "head": head.state_dict(),
                "first": first.state_dict(),
            }
            torch.save({**state, "late": late.state_dict(), "step": step}, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
