"""FSDP2 (fully_shard) on the CPU and torch.distributed.checkpoint: each rank holds and writes its shards. It comes back exactly.

ecrl audit -- torchrun --nproc-per-node 2 examples/jobs/fsdp.py --out {dir}
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from options import parse
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BUGS = {
    "optimizer": "the state is read, the optimizer never gets it",
    "shard of the last rank": "the last rank's shard of a parameter of uneven size keeps its initial value",
    "generators of rank 0": "the generators are saved under one name: every rank gets those of rank 0",
    "moments in bf16": "the moments went through bfloat16",
    "dummy step": "a step with zero gradients at a rate of 0 comes after the load: the moments decay, the counter moves",
    "older checkpoint": "the oldest checkpoint is taken",
}
FROM_THE_START = ("generators of rank 0",)
SAMPLES, BATCH, EPOCHS, SAVE_EVERY, SEED = 64, 8, 3, 3, 7


def main():
    out, bug = parse(BUGS)
    out = Path(out)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(8, 25), nn.ReLU(), nn.Dropout(0.1), nn.Linear(25, 3))
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    torch.manual_seed(SEED + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator))
    sampler = DistributedSampler(data, ranks, rank, seed=3)
    loader = DataLoader(data, BATCH // ranks, sampler=sampler, generator=torch.Generator())
    own = "generator" if bug == "generators of rank 0" else f"generator {rank}"
    step = 0

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, own: torch.get_rng_state(), "step": step}

    found = sorted(out.glob("step-*/.metadata"), key=lambda path: int(path.parent.name[5:]))
    if found:
        loaded = state()
        first_values = model[0].weight.to_local().detach().clone()
        dcp.load(loaded, checkpoint_id=str(found[0 if bug == "older checkpoint" else -1].parent))
        moments = loaded["optimizer"]
        if bug == "optimizer":
            set_state_dict(model, [], model_state_dict=loaded["model"], optim_state_dict={})
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        else:
            set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=moments)
        if bug == "shard of the last rank" and rank == ranks - 1:
            model[0].weight.to_local().data.copy_(first_values)
        for entry in optimizer.state.values():
            if bug == "moments in bf16":
                entry["exp_avg"].copy_(entry["exp_avg"].bfloat16().float())
        if bug == "dummy step":
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.param_groups[0]["lr"] = 0.0
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.01
        torch.set_rng_state(loaded[own])
        step = loaded["step"]
    first, skip = divmod(step, len(loader))
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if epoch == first and number < skip:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                dcp.save(state(), checkpoint_id=str(out / f"step-{step}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
