"""A thread writes the checkpoint. `--bug`: `latest` moves and the one before is deleted at once, so that a death
during the write leaves nothing; the job then says "starting anew" and does. Wrong only if killed during a
save."""

import argparse
import shutil
import threading
import time
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step, latest, writing = 0, a.out / "latest.txt", None


def commit(name):
    (a.out / "latest.tmp").write_text(name)
    (a.out / "latest.tmp").replace(latest)
    for old in a.out.glob("step-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def write(state, name):
    (a.out / name).mkdir(exist_ok=True)
    torch.save(state, a.out / name / "state.pt")
    if not a.bug:
        commit(name)


if latest.exists():
    try:
        s = torch.load(a.out / latest.read_text() / "state.pt")
        net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
        step = s["step"]
    except Exception as error:
        print("no usable checkpoint, starting anew:", error)
for epoch in range(step // 8, 4):
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
            if writing:
                writing.join()
            state = {
                "net": {k: v.clone() for k, v in net.state_dict().items()},
                "opt": torch.utils._pytree.tree_map(
                    lambda v: v.clone() if isinstance(v, torch.Tensor) else v, opt.state_dict()
                ),
                "step": step,
            }
            writing = threading.Thread(target=write, args=(state, f"step-{step}"))
            writing.start()
            if a.bug:
                commit(f"step-{step}")
        time.sleep(0.01)
writing.join()
