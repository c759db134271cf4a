"""Gradient accumulation and a gradient scaler, in float16 on the CPU: overflows are skipped and retried with a smaller scale. It comes back exactly.

ecrl audit -- python examples/jobs/accumulation.py --out {dir}
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BUGS = {
    "window": "a checkpoint in the middle of a window holds no gradients: its first update has fewer micro-batches, divided by the full count",
    "micro-batches": "batches to skip are not multiplied by the micro-batches of a step",
    "epochs times windows": "the first epoch is multiplied by the micro-batches: training takes itself for finished",
    "scale": "the scaler begins at its first scale again",
    "growth counter": "the scale comes back, the count of good steps since it grew does not",
    "schedule per micro-batch": "the schedule is stepped once per micro-batch that is skipped",
    "skipped step counted": "a restart sets the schedule by the number of windows, overflows included",
}
FROM_THE_START = ("window",)  # these bugs are in what is saved
SAMPLES, BATCH, MICRO, EPOCHS, SAVE_EVERY, SEED = 96, 4, 3, 3, 3, 3
WINDOWS = SAMPLES // (BATCH * MICRO)  # of an epoch


class Trainer:
    def __init__(self, out, bug):
        self.out, self.bug = Path(out), bug
        torch.manual_seed(SEED)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, WINDOWS * EPOCHS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=5)
        generator = torch.Generator().manual_seed(1)
        self.data = TensorDataset(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 4, (SAMPLES,), generator=generator))
        self.windows = 0  # done, skipped ones included

    def save(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "windows": self.windows}, self.out / "new.pt")
        (self.out / "new.pt").replace(self.out / "last.pt")

    def resume(self):
        if not (self.out / "last.pt").exists():
            return
        state, bug = torch.load(self.out / "last.pt", weights_only=True), self.bug
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if bug != "scale":
            self.scaler.load_state_dict({**state["scaler"], **({"_growth_tracker": 0} if bug == "growth counter" else {})})
        self.windows = state["windows"]
        if bug in ("skipped step counted", "schedule per micro-batch"):
            done = self.windows if bug == "skipped step counted" else self.schedule.last_epoch * MICRO
            while self.schedule.last_epoch < done:
                self.schedule.step()

    def train(self):
        self.resume()
        first, skip = divmod(self.windows, WINDOWS)
        skip *= 1 if self.bug == "micro-batches" else MICRO
        if self.bug == "window" and self.windows:
            skip += 1  # the micro-batch of the open window is done, and nothing holds its gradients
        for epoch in range(first * (MICRO if self.bug == "epochs times windows" else 1), EPOCHS):
            order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
            batches = DataLoader(self.data, BATCH, sampler=order, generator=torch.Generator())
            for number, (x, y) in enumerate(batches):
                if epoch == first and number < skip:
                    continue
                with torch.autocast("cpu", torch.float16):
                    loss = F.cross_entropy(self.model(x).float(), y) / MICRO
                self.scaler.scale(loss).backward()
                if self.bug == "window" and number % MICRO == 0 and self.windows and self.windows % SAVE_EVERY == 0:
                    self.save()
                if number % MICRO == MICRO - 1:
                    self.update()

    def update(self):
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.scaler.get_scale() >= before:  # not skipped
            self.schedule.step()
        self.windows += 1
        if self.windows % SAVE_EVERY == 0 and self.bug != "window":
            self.save()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(*parse(BUGS)).train()
