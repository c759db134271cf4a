"""A writer thread, a folder a step, a pointer to the newest. `--bug`: the pointer is moved before the folder is
written."""

import argparse
import copy
import os
import threading

import torch

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
os.makedirs(a.out, exist_ok=True)
pointer = os.path.join(a.out, "latest")


def point(name):
    with open(pointer + ".tmp", "w") as file:
        file.write(name)
    os.replace(pointer + ".tmp", pointer)


def write(name, state):
    os.makedirs(os.path.join(a.out, name), exist_ok=True)
    torch.save(state, os.path.join(a.out, name, "model.pt"))
    if not a.bug:
        point(name)


x = torch.randn(80, 6)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True)
step, writer = 0, None
if os.path.exists(pointer):
    with open(pointer) as file:
        state = torch.load(os.path.join(a.out, file.read(), "model.pt"))
    net.load_state_dict(state["net"]), opt.load_state_dict(state["opt"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
while step < 30:
    batch = x[torch.randint(80, (8,))]
    loss = (net(batch) - batch.sum(1, keepdim=True)).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 6 == 0:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
        state = copy.deepcopy(state | {"rng": torch.get_rng_state()})
        if writer:
            writer.join()  # one save at a time
        if a.bug:
            point(f"step_{step}")
        writer = threading.Thread(target=write, args=(f"step_{step}", state))
        writer.start()
