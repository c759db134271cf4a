"""DDP and torch.distributed.checkpoint (DCP): every rank writes its part, a pointer names the newest. It comes back exactly.

ecrl audit -- torchrun --nproc-per-node 2 examples/jobs/dcp.py --out {dir}
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BUGS = {
    "empty optimizer": "dcp.load into the state of a fresh AdamW: there are no tensors to fill, the moments are dropped without a word",
    "cached pointer": "the pointer is read from a cache: an older checkpoint is loaded",
    "generators of rank 0": "the generators are saved under one name: every rank gets those of rank 0",
    "schedule left out": "the schedule is not part of what is loaded",
    "position left out": "the position in the data is not part of what is loaded",
    "epoch not set": "set_epoch is not called after the load",
    "partial load": "a parameter that the checkpoint does not name keeps its initial value",
    "rank behind": "one rank goes on one batch behind the others",
}
FROM_THE_START = ("generators of rank 0",)
SAMPLES, BATCH, EPOCHS, SAVE_EVERY, SEED = 64, 4, 3, 3, 7


def main():
    out, bug = parse(BUGS)
    out = Path(out)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(SEED + rank)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator))
    sampler = DistributedSampler(data, ranks, rank, seed=3)
    loader = DataLoader(data, BATCH // ranks, sampler=sampler, generator=torch.Generator())
    per_epoch, step = len(loader), 0
    own = "generator" if bug == "generators of rank 0" else f"generator {rank}"

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "schedule": schedule.state_dict(), own: torch.get_rng_state(), "step": step}

    pointer = out / "newest"
    if pointer.exists():
        newest = pointer.read_text()
        if bug == "cached pointer":
            newest = min(out.glob("step-*"), key=lambda path: int(path.name[5:])).name
        loaded = state()
        if bug == "empty optimizer":
            loaded["optimizer"] = {}
        if bug == "partial load":
            del loaded["model"]["3.weight"]
        kept = net.state_dict()["3.weight"].clone()
        dcp.load(loaded, checkpoint_id=str(out / newest))
        if bug == "empty optimizer":
            net.load_state_dict(loaded["model"])
        else:
            set_state_dict(
                model,
                optimizer,
                model_state_dict={**loaded["model"], **({"3.weight": kept} if bug == "partial load" else {})},
                optim_state_dict=loaded["optimizer"],
            )
        if bug != "schedule left out":
            schedule.load_state_dict(loaded["schedule"])
        torch.set_rng_state(loaded[own])
        step = 0 if bug == "position left out" else loaded["step"]
    first, skip = divmod(step, per_epoch)
    resumed = step > 0
    late = int(bug == "rank behind" and resumed and rank == ranks - 1)
    for epoch in range(first, EPOCHS):
        if not (bug == "epoch not set" and resumed):
            sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if epoch == first and not skip - late <= number < per_epoch - late:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % SAVE_EVERY == 0:
                dcp.save(state(), checkpoint_id=str(out / f"step-{step}"))
                if rank == 0:
                    (out / "new").write_text(f"step-{step}")
                    (out / "new").replace(pointer)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
