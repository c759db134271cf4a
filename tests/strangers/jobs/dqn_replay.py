"""DQN on a small grid world: replay buffer (deque), epsilon that decays, target network copied every 6 updates; numpy generator for exploration, Python's random for the replay; metrics in jsonl.
--replay: the buffer starts empty. --target: the target network is set to the online one at restart. --epsilon: exploration starts over. --env: the environment is reset at restart instead of continued."""

import argparse, json, os, random
from collections import deque
import numpy as np
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("replay", "target", "epsilon", "env"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
rng, pick = np.random.default_rng(0), random.Random(0)
os.makedirs(args.out, exist_ok=True)
path, log = os.path.join(args.out, "agent.pt"), os.path.join(args.out, "metrics.jsonl")


class Grid:
    def __init__(self):
        self.pos, self.t = [0, 0], 0

    def obs(self):
        return [self.pos[0] / 4, self.pos[1] / 4, self.t / 20]

    def step(self, a):
        d = [(0, 1), (1, 0), (0, -1), (-1, 0)][a]
        self.pos = [min(4, max(0, u + v)) for u, v in zip(self.pos, d)]
        self.t += 1
        win = self.pos == [4, 4]
        done = win or self.t >= 18
        o = self.obs()
        if done:
            self.pos, self.t = [0, 0], 0
        return o, float(win) - 0.05, done


q, target = [nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2)]
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), 5e-3)
env, memory, eps, step, frames = Grid(), deque(maxlen=60), 1.0, 0, 0
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    q.load_state_dict(s["q"]), opt.load_state_dict(s["opt"])
    target.load_state_dict(s["q"] if args.target else s["target"])
    step, frames = s["step"], s["frames"]
    rng.bit_generator.state = s["rng"]
    pick.setstate(s["pick"])
    if not args.replay:
        memory = deque(s["memory"], maxlen=60)
    if not args.epsilon:
        eps = s["eps"]
    if not args.env:
        env.pos, env.t = s["env"]
    lines = open(log).read().splitlines()[:step]
    with open(log + ".tmp", "w") as f:
        f.write("".join(l + "\n" for l in lines))
    os.replace(log + ".tmp", log)
while step < 24:
    for _ in range(5):
        o = env.obs()
        a = int(rng.integers(4)) if rng.random() < eps else int(q(torch.tensor(o)).argmax())
        o2, r, done = env.step(a)
        memory.append((o, a, r, o2, done))
        frames += 1
    eps = max(0.1, eps * 0.93)
    batch = pick.sample(list(memory), min(8, len(memory)))
    o, a, r, o2, d = [torch.tensor(v) for v in zip(*batch)]
    with torch.no_grad():
        goal = r + 0.97 * target(o2).max(1).values * (~d)
    loss = nn.functional.smooth_l1_loss(q(o).gather(1, a[:, None])[:, 0], goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    with open(log, "a") as f:
        f.write(
            json.dumps({"step": step, "frames": frames, "loss": loss.item(), "eps": eps}) + "\n"
        )
    if step % 6 == 0:
        target.load_state_dict(q.state_dict())
    if step % 4 == 0:
        torch.save(
            {
                "q": q.state_dict(),
                "target": target.state_dict(),
                "opt": opt.state_dict(),
                "memory": list(memory),
                "eps": eps,
                "env": (env.pos, env.t),
                "rng": rng.bit_generator.state,
                "pick": pick.getstate(),
                "step": step,
                "frames": frames,
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
