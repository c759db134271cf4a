"""torchdata's StatefulDataLoader with two workers that augment. It comes back exactly, in the middle of an epoch.

ecrl audit -- python examples/jobs/stateful_loader.py --out {dir}
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

BUGS = {
    "loader not saved": "the checkpoint holds no state of the loader: the epoch begins anew",
    "iterator first": "the iterator is made in front of load_state_dict: it goes on with the position that it had",
    "workers ahead": "the position is what the workers have fetched, not what was trained on",
    "remainder": "every later epoch has only what was left of the resumed one",
    "epoch dropped": "the rest of the resumed epoch is dropped",
    "workers' seed": "the workers draw with another seed: the same samples, augmented otherwise",
}
SAMPLES, BATCH, EPOCHS, SAVE_EVERY, WORKERS, SEED = 48, 4, 3, 5, 2, 9


class Noisy(Dataset):
    """A sample's noise depends on (seed, epoch, index) alone: the same in any worker and after any restart."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)
        self.epoch, self.seed = 0, SEED

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed((self.seed * 100 + self.epoch) * 1000 + index)
        return self.x[index] + 0.1 * torch.randn(8, generator=generator), self.y[index]


def main():
    out, bug = parse(BUGS)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    data = Noisy()
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    newest, step, first = Path(out) / "last.pt", 0, 0

    def loader_of(epoch):
        order = torch.Generator().manual_seed(SEED + epoch)
        return StatefulDataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, generator=order)

    state = torch.load(newest, weights_only=False) if newest.exists() else None
    if state:
        first, step = state["epoch"], state["step"]
        if bug == "workers' seed":
            data.seed += 1
    if state and bug == "epoch dropped":
        first += 1
    data.epoch = first
    loader, left_out = loader_of(first), 0
    if state:
        if bug == "iterator first":
            iter(loader)
        position = state["loader"]
        if bug == "workers ahead":
            fetched = loader_of(first)
            for _, _ in zip(range(step % len(loader) + 2 * WORKERS), fetched):
                position = fetched.state_dict()
        if bug not in ("loader not saved", "iterator first", "epoch dropped"):
            loader.load_state_dict(position)
        if bug == "remainder":
            left_out = step % len(loader)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])
    for epoch in range(first, EPOCHS):
        if epoch > first:
            data.epoch = epoch
            loader = loader_of(epoch)
        for number, (x, y) in enumerate(loader):
            if epoch > first and number < left_out:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "epoch": epoch, "step": step}
                torch.save({**held, "generator": torch.get_rng_state()}, f"{newest}.new")
                Path(f"{newest}.new").replace(newest)


if __name__ == "__main__":
    main()
