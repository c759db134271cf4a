"""A resumable sampler (state_dict / load_state_dict) that shuffles with one generator over all epochs; DataLoader with two workers that prefetch. Saves what was consumed, not what was fetched.
--ahead: saves the sampler's own position, which the prefetching loader has moved ahead (samples lost). --repeat: goes on one batch too early. --epoch1: the shuffle of each resumed epoch is that of epoch one."""

import argparse, os
import torch
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("ahead", "repeat", "epoch1"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()


class ResumableSampler:
    def __init__(self, n, seed):
        self.n, self.g, self.pos = n, torch.Generator().manual_seed(seed), 0
        self.start = self.g.get_state()

    def __iter__(self):
        self.start = self.g.get_state()
        order = torch.randperm(self.n, generator=self.g).tolist()
        skip, self.pos = self.pos, 0
        for k, i in enumerate(order):
            if k >= skip:
                self.pos = k + 1
                yield i
        self.pos = 0

    def __len__(self):
        return self.n

    def state_dict(self, consumed):
        return {"generator": self.start, "pos": self.pos if args.ahead else consumed}

    def load_state_dict(self, s):
        if not args.epoch1:
            self.g.set_state(s["generator"])
        self.pos = s["pos"]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    os.makedirs(args.out, exist_ok=True)
    x = torch.randn(48, 5)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))
    opt = torch.optim.NAdam(net.parameters(), 0.01)
    sampler, path = ResumableSampler(48, 99), os.path.join(args.out, "state.pt")
    epoch, consumed, step = 0, 0, 0
    if os.path.exists(path):
        s = torch.load(path)
        net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
        epoch, consumed, step = s["epoch"], s["consumed"], s["step"]
        sampler.load_state_dict(s["sampler"])
        if args.repeat and consumed:
            sampler.pos = consumed = consumed - 4
    loader = DataLoader(
        TensorDataset(x, x.sum(1, keepdim=True)),
        batch_size=4,
        sampler=sampler,
        num_workers=2,
        prefetch_factor=2,
    )
    while epoch < 2:
        for bx, by in loader:
            loss = torch.nn.functional.huber_loss(net(bx), by)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            consumed += len(bx)
            if step % 5 == 0:
                done = consumed >= 48
                state = sampler.state_dict(consumed)
                torch.save(
                    {
                        "net": net.state_dict(),
                        "opt": opt.state_dict(),
                        "epoch": epoch,
                        "consumed": consumed,
                        "step": step,
                        "sampler": state,
                    },
                    path + ".tmp",
                )
                os.replace(path + ".tmp", path)
        epoch, consumed = epoch + 1, 0
    torch.save(net.state_dict(), os.path.join(args.out, "final.pt"))


if __name__ == "__main__":
    main()
