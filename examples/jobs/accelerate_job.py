"""Hugging Face's Accelerate: save_state, load_state and skip_first_batches. It comes back exactly.

ecrl audit -- accelerate launch --cpu --num_processes 2 examples/jobs/accelerate_job.py --out {dir}
ecrl audit -- python examples/jobs/accelerate_job.py --out {dir}
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from options import parse
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BUGS = {
    "nothing skipped": "the resumed epoch begins anew",
    "epoch not set": "the loader's epoch is not set after the load: it goes on in another permutation",
    "epoch of the skipped": "skip_first_batches makes a loader whose epoch is 0",
    "skipped in each epoch": "the batches are skipped in every later epoch too",
    "one epoch too far": "the epoch is one too high after the load",
    "steps for batches": "optimizer steps are skipped where batches are due",
    "schedule not registered": "the schedule is not handed to prepare: save_state does not know it",
    "generators drawn from": "the loader draws a seed from the generator that load_state has restored",
    "loaded before prepare": "load_state in front of prepare: nothing is registered, nothing is loaded",
}
FROM_THE_START = ("schedule not registered", "generators drawn from")
SAMPLES, BATCH, MICRO, EPOCHS, SAVE_EVERY, SEED = 96, 4, 2, 3, 5, 5


class Counters:
    """Registered for checkpointing: where the job is."""

    def __init__(self):
        self.epoch, self.batch, self.step = 0, 0, 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    seeded = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=SEED)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO, dataloader_config=seeded, step_scheduler_with_optimizer=False)
    set_seed(SEED)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator))
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.8)
    counters = Counters()
    accelerator.register_for_checkpointing(counters)
    found = sorted(Path(out).glob("step-*/done"), key=lambda path: int(path.parent.name[5:]))
    if found and bug == "loaded before prepare":
        accelerator.load_state(str(found[-1].parent))
    # With a generator of its own the loader draws nothing from the one that load_state restores.
    own = None if bug == "generators drawn from" else torch.Generator().manual_seed(SEED)
    loader = DataLoader(data, BATCH // accelerator.num_processes, shuffle=True, generator=own)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if bug != "schedule not registered":
        schedule = accelerator.prepare(schedule)
    if found and bug != "loaded before prepare":
        accelerator.load_state(str(found[-1].parent))
    first, skip = counters.epoch, counters.batch
    if found and bug == "one epoch too far":
        first += 1
    skip = {"nothing skipped": 0, "steps for batches": skip // MICRO}.get(bug, skip)
    for epoch in range(first, EPOCHS):
        if not (found and bug == "epoch not set"):
            loader.set_epoch(epoch)
        batches, skipped = loader, 0
        if skip and (epoch == first or bug == "skipped in each epoch"):
            batches, skipped = accelerator.skip_first_batches(loader, skip), skip
            batches.set_epoch(0 if bug == "epoch of the skipped" else epoch)
        for number, (x, y) in enumerate(batches, start=skipped + 1):
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            counters.step += 1
            counters.epoch, counters.batch = (epoch, number) if number < len(loader) else (epoch + 1, 0)
            if counters.step % SAVE_EVERY == 0:
                folder = Path(out) / f"step-{counters.step}"
                accelerator.save_state(str(folder))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    (folder / "done").touch()


if __name__ == "__main__":
    main()
