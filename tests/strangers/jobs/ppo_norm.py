"""PPO: one rollout per iteration, 2 epochs of 3 minibatches over it, running normalisation of observations, entropy bonus that is annealed; saves after whole iterations only (every 6 optimizer steps).
--norm: mean and variance of observations start over. --rng: torch's generator (actions, minibatch order) is not restored. --entropy: the annealing starts over."""

import argparse, os
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("norm", "rng", "entropy"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(6)
os.makedirs(args.out, exist_ok=True)
body, pi, vf = nn.Sequential(nn.Linear(3, 16), nn.Tanh()), nn.Linear(16, 2), nn.Linear(16, 1)
params = [*body.parameters(), *pi.parameters(), *vf.parameters()]
opt = torch.optim.Adam(params, 3e-3, eps=1e-5)


class Norm:
    def __init__(self):
        self.n, self.mean, self.m2 = 1e-4, torch.zeros(3), torch.ones(3)

    def __call__(self, o):
        self.n += 1
        d = o - self.mean
        self.mean = self.mean + d / self.n
        self.m2 = self.m2 + d * (o - self.mean)
        return ((o - self.mean) / (self.m2 / self.n + 1e-6).sqrt()).clamp(-5, 5)


norm, state, it, bonus, path = (
    Norm(),
    torch.tensor([0.1, 0.0, 2.0]),
    0,
    0.05,
    os.path.join(args.out, "ppo.pt"),
)
if os.path.exists(path):
    c = torch.load(path, weights_only=False)
    for m, k in ((body, "body"), (pi, "pi"), (vf, "vf"), (opt, "opt")):
        m.load_state_dict(c[k])
    it, state = c["it"], c["state"]
    if not args.norm:
        norm.__dict__.update(c["norm"])
    if not args.rng:
        torch.set_rng_state(c["rng"])
    if not args.entropy:
        bonus = c["bonus"]
while it < 5:
    obs, act, logp, rew = [], [], [], []
    with torch.no_grad():
        for _ in range(24):  # a pendulum that drifts
            o = norm(state)
            d = torch.distributions.Categorical(logits=pi(body(o)))
            a = d.sample()
            obs.append(o), act.append(a), logp.append(d.log_prob(a))
            state = torch.stack(
                [
                    state[0] + 0.1 * state[1],
                    0.98 * state[1] - 0.1 * state[0] + (0.1 if a else -0.1),
                    state[2] + 0.01 * torch.randn(()),
                ]
            )
            rew.append(-(state[0] ** 2 + 0.1 * state[1] ** 2))
        obs, act, logp, rew = (
            torch.stack(obs),
            torch.stack(act),
            torch.stack(logp),
            torch.stack(rew),
        )
        ret = torch.zeros(24)
        run = torch.zeros(())
        for t in reversed(range(24)):
            run = rew[t] + 0.95 * run
            ret[t] = run
    for _ in range(2):
        for idx in torch.randperm(24).split(8):
            h = body(obs[idx])
            d, v = torch.distributions.Categorical(logits=pi(h)), vf(h)[:, 0]
            adv = ret[idx] - v.detach()
            ratio = (d.log_prob(act[idx]) - logp[idx]).exp()
            loss = (
                -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                + 0.5 * (v - ret[idx]).square().mean()
                - bonus * d.entropy().mean()
            )
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.5)
            opt.step()
    bonus *= 0.7
    it += 1
    torch.save(
        {
            "body": body.state_dict(),
            "pi": pi.state_dict(),
            "vf": vf.state_dict(),
            "opt": opt.state_dict(),
            "norm": norm.__dict__,
            "state": state,
            "rng": torch.get_rng_state(),
            "bonus": bonus,
            "it": it,
        },
        path + ".tmp",
    )
    os.replace(path + ".tmp", path)
