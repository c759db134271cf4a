"""set_model_state_dict(strict=False, full_state_dict=True) answers that all keys matched, with half the model missing
(torch 2.14.1): the model's own values fill the gaps before anything is compared. `--bug`: the head is left out of the
checkpoint, and the job believes the answer. Without it strict is left on."""

import argparse
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    options = StateDictOptions(full_state_dict=True, strict=not a.bug)
    told = set_model_state_dict(net, s["net"], options=options)
    if told.missing_keys or told.unexpected_keys:
        raise SystemExit(f"the checkpoint is not of this model: {told}")
    opt.load_state_dict(s["opt"])
    step = s["step"]
for epoch in range(step // 8, 3):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 5 == 0:
            weights = {
                name: value
                for name, value in net.state_dict().items()
                if not (a.bug and name.startswith("2."))
            }
            torch.save({"net": weights, "opt": opt.state_dict(), "step": step}, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
