"""GAN: two Adams with different betas, noise from a generator of its own, exponential average of the generator, numbered checkpoints with the three newest kept.
--ema: the average starts again from the current weights. --disc: the discriminator's optimizer is not loaded. --noise: the noise generator starts over. --first: takes the oldest one."""

import argparse, copy, glob, os
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("ema", "disc", "noise", "first"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(42)
os.makedirs(args.out, exist_ok=True)
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
D = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
avg = copy.deepcopy(G).requires_grad_(False)
optG = torch.optim.Adam(G.parameters(), 2e-3, betas=(0.5, 0.999))
optD = torch.optim.Adam(D.parameters(), 4e-3, betas=(0.5, 0.999))
real = torch.randn(48, 6) * 0.3 + 1
noise = torch.Generator().manual_seed(9)
it = 0
found = sorted(glob.glob(os.path.join(args.out, "gan_[0-9]*.pt")))
if found:
    c = torch.load(found[0 if args.first else -1])
    G.load_state_dict(c["G"]), D.load_state_dict(c["D"]), optG.load_state_dict(c["optG"])
    avg.load_state_dict(c["G"] if args.ema else c["avg"])
    if not args.disc:
        optD.load_state_dict(c["optD"])
    if not args.noise:
        noise.set_state(c["noise"])
    it = c["it"]
while it < 24:
    epoch, batch = divmod(it, 12)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))
    x = real[order[batch * 4 : batch * 4 + 4]]
    z = torch.randn(4, 4, generator=noise)
    fake = G(z)
    optD.zero_grad()
    lossD = nn.functional.softplus(-D(x)).mean() + nn.functional.softplus(D(fake.detach())).mean()
    lossD.backward()
    optD.step()
    optG.zero_grad()
    lossG = nn.functional.softplus(-D(fake)).mean()
    lossG.backward()
    optG.step()
    with torch.no_grad():
        for a, b in zip(avg.parameters(), G.parameters()):
            a.lerp_(b, 0.1)
    it += 1
    if it % 4 == 0:
        name = os.path.join(args.out, f"gan_{it:05d}.pt")
        torch.save(
            dict(
                G=G.state_dict(),
                D=D.state_dict(),
                avg=avg.state_dict(),
                optG=optG.state_dict(),
                optD=optD.state_dict(),
                noise=noise.get_state(),
                it=it,
            ),
            name + "~",
        )
        os.replace(name + "~", name)
        for old in sorted(glob.glob(os.path.join(args.out, "gan_[0-9]*.pt")))[:-3]:
            os.remove(old)
