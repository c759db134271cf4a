"""A generator that steps after every third step of its critic, by a counter. `--bug`: the counter is not saved."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(2)
critic = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
maker = torch.nn.Linear(4, 2)
parts = {
    "critic": critic,
    "maker": maker,
    "opt_c": torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.9)),
    "opt_m": torch.optim.SGD(maker.parameters(), 1e-3, momentum=0.9),
}
real = torch.randn(200, 2)
a.out.mkdir(parents=True, exist_ok=True)
step, since = 0, 0
found = sorted(a.out.glob("ckpt_*.pt"))
if found:
    state = torch.load(found[-1])
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["rng"])
    step, since = state["step"], 0 if a.bug else state["since"]
while step < 20:
    batch = real[torch.randint(200, (16,))]
    score = critic(maker(torch.randn(16, 4)).detach()).mean() - critic(batch).mean()
    parts["opt_c"].zero_grad(), score.backward(), parts["opt_c"].step()
    since += 1
    if since == 3:
        since = 0
        score = -critic(maker(torch.randn(16, 4))).mean()
        parts["opt_m"].zero_grad(), score.backward(), parts["opt_m"].step()
    step += 1
    if step % 4 == 0:
        path = a.out / f"ckpt_{step:03d}.pt"
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(
            state | {"rng": torch.get_rng_state(), "step": step, "since": since}, f"{path}.tmp"
        )
        Path(f"{path}.tmp").replace(path)
        for old in sorted(a.out.glob("ckpt_*.pt"))[:-2]:
            old.unlink()
