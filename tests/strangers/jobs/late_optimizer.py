"""A second optimizer takes part only from step 6 on (a head unfrozen later, a discriminator that waits for its
generator); all restored exactly. `--bug`: not that optimizer's
state."""

import os
import sys

import torch

out = sys.argv[1] + "/last.pt"
os.makedirs(sys.argv[1], exist_ok=True)
torch.manual_seed(0)
body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
one, two = torch.optim.Adam(body.parameters(), 1e-2), torch.optim.Adam(head.parameters(), 1e-2)
step = 0
if os.path.exists(out):
    s = torch.load(out)
    body.load_state_dict(s["body"])
    head.load_state_dict(s["head"])
    one.load_state_dict(s["one"])
    if "--bug" not in sys.argv:
        two.load_state_dict(s["two"])
    torch.set_rng_state(s["rng"])
    step = s["step"]
while step < 16:
    one.zero_grad()
    two.zero_grad()
    head(body(torch.randn(8, 4))).square().mean().backward()
    one.step()
    if step >= 6:
        two.step()
    step += 1
    if step % 3 == 0:
        torch.save(
            {
                "body": body.state_dict(),
                "head": head.state_dict(),
                "one": one.state_dict(),
                "two": two.state_dict(),
                "rng": torch.get_rng_state(),
                "step": step,
            },
            out + ".t",
        )
        os.replace(out + ".t", out)
