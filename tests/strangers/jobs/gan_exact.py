"""Two optimizers that step one after the other in each iteration, as every GAN does; all of it is saved and
restored, generators included. `--no-optimizers`: their state is not loaded. `--oldest` (after a restart): the
oldest checkpoint is taken."""

import glob
import os
import sys

import torch

out, flags = sys.argv[1], sys.argv[2:]
torch.manual_seed(0)
gen, dis = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)
opt_d, opt_g = torch.optim.Adam(dis.parameters(), 1e-2), torch.optim.Adam(gen.parameters(), 1e-2)
data, step = torch.randn(64, 6), 0
found = sorted(glob.glob(f"{out}/at_*.pt"))
if found:
    state = torch.load(found[0 if "--oldest" in flags else -1])
    gen.load_state_dict(state["gen"])
    dis.load_state_dict(state["dis"])
    if "--no-optimizers" not in flags:
        opt_d.load_state_dict(state["opt_d"])
        opt_g.load_state_dict(state["opt_g"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
loss = torch.nn.BCEWithLogitsLoss()
while step < 16:
    real = data[torch.randint(64, (8,))]
    fake = gen(torch.randn(8, 4))
    opt_d.zero_grad()
    (loss(dis(real), torch.ones(8, 1)) + loss(dis(fake.detach()), torch.zeros(8, 1))).backward()
    opt_d.step()
    opt_g.zero_grad()
    loss(dis(fake), torch.ones(8, 1)).backward()
    opt_g.step()
    step += 1
    if step % 4 == 0:
        path = f"{out}/at_{step:03d}.pt"
        torch.save(
            {
                "gen": gen.state_dict(),
                "dis": dis.state_dict(),
                "opt_d": opt_d.state_dict(),
                "opt_g": opt_g.state_dict(),
                "rng": torch.get_rng_state(),
                "step": step,
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
