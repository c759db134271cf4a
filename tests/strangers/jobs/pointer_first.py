"""A writer thread, a folder a step, a pointer to the newest. `--bug`: the pointer is moved before the folder is
written."""

import argparse, copy, os, queue, random, shutil, threading, numpy as np, torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--steps", type=int, default=36)
p.add_argument("--every", type=int, default=6)
p.add_argument("--keep", type=int, default=2)
p.add_argument("--bug", action="store_true")
a = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)
os.makedirs(a.out, exist_ok=True)


def point(name):
    with open(os.path.join(a.out, "latest.tmp"), "w") as f:
        f.write(name)
    os.replace(os.path.join(a.out, "latest.tmp"), os.path.join(a.out, "latest"))


class Writer(threading.Thread):
    """Writes checkpoints beside the training; the last one is waited for at the end."""

    def __init__(self):
        super().__init__()
        self.q = queue.Queue()
        self.start()

    def run(self):
        while (job := self.q.get()) is not None:
            name, state = job
            folder = os.path.join(a.out, name)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            torch.save(state["model"], os.path.join(folder, "model.pt"))
            torch.save(state["rest"], os.path.join(folder, "trainer.pt"))
            if not a.bug:
                point(name)
            old = sorted(
                (d for d in os.listdir(a.out) if d.startswith("step_")), key=lambda d: int(d[5:])
            )
            for d in old[: -a.keep]:
                shutil.rmtree(os.path.join(a.out, d))
            self.q.task_done()
        self.q.task_done()

    def submit(self, name, state):
        self.q.join()  # one save at a time
        if a.bug:
            point(name)
        self.q.put((name, state))

    def close(self):
        self.q.put(None)
        self.join()


g = torch.Generator().manual_seed(6)
X = torch.randn(400, 10, generator=g)
Y = torch.sin(X[:, :2]).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=12)
step = 0
order = list(range(len(X)))
pos = len(order)
pointer = os.path.join(a.out, "latest")
if os.path.exists(pointer):
    folder = os.path.join(a.out, open(pointer).read().strip())
    model.load_state_dict(torch.load(os.path.join(folder, "model.pt")))
    ck = torch.load(os.path.join(folder, "trainer.pt"), weights_only=False)
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    step, order, pos = ck["step"], ck["order"], ck["pos"]
    random.setstate(ck["random"])
    torch.set_rng_state(ck["torch"])
    print("resumed at step", step)
writer = Writer()
try:
    while step < a.steps:
        if pos + 20 > len(order):
            random.shuffle(order)
            pos = 0
        batch = order[pos : pos + 20]
        pos += 20
        loss = F.mse_loss(model(X[batch]), Y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step % a.every == 0:
            state = {
                "model": model.state_dict(),
                "rest": {
                    "opt": opt.state_dict(),
                    "sched": sched.state_dict(),
                    "step": step,
                    "order": order,
                    "pos": pos,
                    "random": random.getstate(),
                    "torch": torch.get_rng_state(),
                },
            }
            writer.submit(f"step_{step}", copy.deepcopy(state))
            print("step", step, "loss", round(loss.item(), 4), flush=True)
finally:
    writer.close()
