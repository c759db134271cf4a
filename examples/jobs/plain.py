"""A training job that comes back exactly: DDP or one process, torch.save, gradient accumulation, a gradient scaler, dropout, augmentation.

    ecrl audit -- torchrun --nproc-per-node 2 examples/jobs/plain.py --out {dir}
    ecrl audit -- python examples/jobs/plain.py --out {dir}

`--bug NAME` plants a recovery bug of the kind that public trackers report; `--bugs` lists them. Without it `ecrl audit` finds the job valid.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BUGS = {
    "position": "a resumed epoch begins anew: its first batches come twice",
    "position off by one": "one batch too many is skipped",
    "batch twice": "the batches of the step before the restart come again",
    "position without accumulation": "batches to skip are not multiplied by the micro-batches of a step",
    "epoch not set": "DistributedSampler.set_epoch is not called again: every epoch has the order of the first",
    "epoch off by one": "the sampler's epoch is one too high after a restart",
    "order": "the sampler has another seed after a restart: the place is right, the order is not",
    "next epoch skipped": "a restart goes on with the epoch after the one it was in",
    "ends early": "a restart takes the job for finished",
    "generators": "no generator is restored",
    "generators drawn from": "the loader draws from the restored generator when its iterator is made",
    "generator one draw on": "something draws from the restored generator before training goes on",
    "generators of rank 0": "every rank gets the generators of rank 0",
    "seeded after the load": "a seed set after the load undoes the restored generators",
    "augmentation": "after a restart the same samples are augmented with another seed",
    "other data set": "a restart filters the data set otherwise: an index names another sample",
    "scheduler twice": "the schedule is stepped once more after each restart",
    "scheduler anew": "the schedule begins anew",
    "lr stale": "the optimizer keeps the learning rate that it was made with until the next step of the schedule",
    "optimizer": "the optimizer's state is not loaded",
    "optimizer of the first save": "every later checkpoint holds the optimizer's state of the first",
    "second moment": "exp_avg_sq is lost",
    "counter": "Adam's step counter begins at 0",
    "state shuffled": "moments go to other parameters of the same shape",
    "state in bf16": "the optimizer's state went through bfloat16",
    "weight decay": "a group comes back without its weight decay",
    "scaler": "the gradient scaler's state is not loaded",
    "buffers": "BatchNorm's running statistics are not loaded",
    "average": "training goes on from the moving average of the parameters",
    "stale masters": "the optimizer's own copies of the parameters were made in bfloat16, and overwrite what was loaded at the first update",
    "frozen again": "a layer that takes part in training is frozen again after a restart",
    "older checkpoint": "the checkpoint before the newest is taken",
    "cold start": "a failed load is swallowed: everything begins anew",
    "one parameter": "a parameter that is missing in the checkpoint keeps its initial value",
}
STEPS_PER_EPOCH, EPOCHS, MICRO, SAVE_EVERY, SEED = 8, 3, 2, 5, 11


class Points(Dataset):
    """96 points; a sample's noise depends on (seed, epoch, index) alone, so that it is the same on any rank and after any restart."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(96, 8, generator=generator), torch.randint(0, 3, (96,), generator=generator)
        self.epoch, self.seed = 0, SEED

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed((self.seed * 1000 + self.epoch) * 1000 + index)
        return self.x[index] + 0.01 * torch.randn(8, generator=generator), self.y[index]


class Job:
    def __init__(self, out, bug):
        self.bug, self.out = bug, Path(out)
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        torch.manual_seed(SEED + self.rank)
        self.net = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 24), nn.Linear(24, 3))
        self.model = nn.parallel.DistributedDataParallel(self.net) if self.ranks > 1 else self.net
        decayed = [p for p in self.net.parameters() if p.dim() > 1]
        others = [p for p in self.net.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS_PER_EPOCH * EPOCHS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.average = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.data = Points()
        self.sampler = DistributedSampler(self.data, self.ranks, self.rank, shuffle=True, seed=3)
        # With a generator of its own the loader draws nothing from the one that is restored; without, `iter(loader)` after the restore would.
        own = None if bug == "generators drawn from" else torch.Generator()
        self.loader = DataLoader(self.data, 96 // (STEPS_PER_EPOCH * MICRO * self.ranks), sampler=self.sampler, generator=own)
        self.step, self.resumed, self.masters = 0, False, []

    def generators(self):
        """Of every rank."""
        own = torch.get_rng_state()
        if self.ranks == 1:
            return [own]
        states = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(states, own)
        return states

    def save(self):
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": self.average,
            "generators": self.generators(),
            "step": self.step,
        }
        if self.rank == 0:
            path = self.out / f"step-{self.step}.pt"
            torch.save(state, f"{path}.tmp")
            Path(f"{path}.tmp").replace(path)

    def resume(self):
        found = sorted(self.out.glob("step-*.pt"), key=lambda path: int(path.stem[5:]))
        if not found:
            return
        bug = self.bug
        path = found[-2] if bug == "older checkpoint" and len(found) > 1 else found[-1]
        state = torch.load(path, weights_only=True)
        if bug == "cold start":
            print("no checkpoint could be read, starting anew", file=sys.stderr)
            return
        self.load_model(state)
        first = torch.load(found[0], weights_only=True) if bug == "optimizer of the first save" else state
        self.load_optimizer(first)
        if bug != "scheduler anew":
            self.schedule.load_state_dict(state["schedule"])
        if bug == "scheduler twice":
            self.schedule.step()
        if bug != "scaler":
            self.scaler.load_state_dict(state["scaler"])
        self.average, self.step, self.resumed = state["average"], state["step"], True
        if bug != "generators":
            torch.set_rng_state(state["generators"][0 if bug == "generators of rank 0" else self.rank])
        if bug == "generator one draw on":
            torch.rand(1)
        if bug == "seeded after the load":
            torch.manual_seed(SEED + self.rank)
        if bug == "augmentation":
            self.data.seed += 1
        if bug == "order":
            self.sampler.seed += 1
        if bug == "stale masters":
            self.masters = [parameter.detach().bfloat16() for parameter in self.net.parameters()]
        if bug == "other data set":
            self.data.x, self.data.y = self.data.x.roll(-8, 0), self.data.y.roll(-8, 0)

    def load_model(self, state):
        values = state["average" if self.bug == "average" else "net"]
        if self.bug == "buffers":
            values = {name: value for name, value in values.items() if "running" not in name and "batches" not in name}
        if self.bug == "one parameter":
            values = {name: value for name, value in values.items() if name != "4.weight"}
        self.net.load_state_dict(values, strict=self.bug not in ("buffers", "one parameter"))

    def load_optimizer(self, state):
        bug, loaded = self.bug, state["optimizer"]
        if bug == "optimizer":
            return
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(loaded)
        states = list(self.optimizer.state.values())
        for entry in states:
            if bug == "second moment":
                entry["exp_avg_sq"].zero_()
            if bug == "counter":
                entry["step"].zero_()
            if bug == "state in bf16":
                entry["exp_avg"].copy_(entry["exp_avg"].bfloat16().float())
        if bug == "state shuffled":
            alike = [entry for entry in states if entry["exp_avg"].shape == (24,)]
            held = [entry["exp_avg"].clone() for entry in alike]
            for entry, value in zip(alike, held[1:] + held[:1]):
                entry["exp_avg"].copy_(value)
        for group, rate in zip(self.optimizer.param_groups, rates):
            if bug == "weight decay":
                group["weight_decay"] = 0.0
            if bug == "lr stale":
                group["lr"] = rate

    def skipped(self):
        """(epoch, batches of it that are done)."""
        epoch, steps = divmod(self.step, STEPS_PER_EPOCH)
        batches = steps * MICRO
        if not self.step:
            return 0, 0
        wrong = {
            "position": (epoch, 0),
            "position off by one": (epoch, batches + MICRO if batches + MICRO < STEPS_PER_EPOCH * MICRO else batches),
            "batch twice": (epoch, batches - MICRO),
            "position without accumulation": (epoch, steps),
            "next epoch skipped": (epoch + 1, 0),
            "ends early": (EPOCHS, 0),
        }
        return wrong.get(self.bug, (epoch, batches))

    def train(self):
        self.resume()
        first, skip = self.skipped()
        for epoch in range(first, EPOCHS):
            self.data.epoch = epoch
            if not (self.bug == "epoch not set" and self.resumed):
                self.sampler.set_epoch(epoch + (1 if self.bug == "epoch off by one" and first else 0))
            for number, (x, y) in enumerate(self.loader):
                if epoch == first and number < skip:
                    continue
                loss = F.cross_entropy(self.model(x), y) / MICRO
                self.scaler.scale(loss).backward()
                if number % MICRO == MICRO - 1:
                    self.update()
        self.save()

    def update(self):
        with torch.no_grad():
            for parameter, master in zip(self.net.parameters(), self.masters):
                parameter.copy_(master)
        self.masters = []
        if self.bug == "frozen again" and self.resumed:
            self.net[4].zero_grad()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        for name, value in self.net.state_dict().items():
            self.average[name] = 0.9 * self.average[name] + 0.1 * value if value.is_floating_point() else value.clone()
        if self.step % SAVE_EVERY == 0:
            self.save()


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    Job(out, bug).train()
    if dist.is_initialized():
        dist.barrier()  # a rank that ends right after `all_gather` may be aborted: gloo's thread still holds tensors while Python ends
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
