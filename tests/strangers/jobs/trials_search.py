"""A search over learning rates, successive halving: a model and an optimizer a trial, all in one process. The
state is a plain pickle, written before the table of its rows; groups come back through JSON, betas as lists.
`--peak`: the highest loss is not in it. `--counts`: a count of turns, of no use to the training, begins at zero."""

import argparse
import json
import pickle
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--peak", action="store_true")
a.add_argument("--counts", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
a.out.mkdir(parents=True, exist_ok=True)
x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
nets, opts = [], []
for rate in (0.003, 0.01, 0.03, 0.1):
    torch.manual_seed(len(nets))
    nets.append(torch.nn.Linear(4, 1))
    opts.append(torch.optim.Adam(nets[-1].parameters(), rate))
state = {
    "alive": [0, 1, 2, 3],
    "rung": 0,
    "place": 0,
    "rows": [],
    "peak": 0.0,
    "turns": torch.zeros(4),
}
file = a.out / "search.pkl"
if file.exists():
    state, saved, groups = pickle.loads(file.read_bytes())
    for net, opt, (weights, moments), group in zip(nets, opts, saved, json.loads(groups)):
        net.load_state_dict(weights)
        opt.load_state_dict({"state": moments, "param_groups": group})
    state["peak"] = 0.0 if a.peak else state["peak"]
    state["turns"] = torch.zeros(4) if a.counts else state["turns"]


def replace(path, data):
    Path(f"{path}.tmp").write_bytes(data)
    Path(f"{path}.tmp").replace(path)


while state["rung"] < 3:
    while state["place"] < len(state["alive"]):
        trial = state["alive"][state["place"]]
        for _ in range(4):
            loss = (nets[trial](x) - x[:, :1]).square().mean()
            opts[trial].zero_grad()
            loss.backward()
            opts[trial].step()
        state["place"] += 1
        state["rows"].append([state["rung"], trial, loss.item()])
        state["turns"][trial] += 1
        state["peak"] = max(state["peak"], loss.item())
        saved = [(net.state_dict(), opt.state_dict()["state"]) for net, opt in zip(nets, opts)]
        groups = json.dumps([opt.state_dict()["param_groups"] for opt in opts])
        replace(file, pickle.dumps((state, saved, groups)))
        replace(a.out / "rows.csv", "".join(f"{row}\n" for row in state["rows"]).encode())
    last = {trial: loss for _, trial, loss in state["rows"]}
    state["alive"] = sorted(state["alive"], key=last.get)[: max(1, len(state["alive"]) // 2)]
    state["rung"], state["place"] = state["rung"] + 1, 0
replace(a.out / "peak.json", json.dumps(state["peak"]).encode())
replace(a.out / "rows.csv", "".join(f"{row}\n" for row in state["rows"]).encode())
