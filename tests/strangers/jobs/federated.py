"""Three clients that train in turn from a server's weights, each with its optimizer and its loader. The clients' own
weights are dead at a round's end and are not saved. `--bug`: the second client's optimizer is not loaded."""

import argparse
import copy
import os

import torch
from torch.utils.data import DataLoader

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(11)
os.makedirs(a.out, exist_ok=True)
server = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
clients = [copy.deepcopy(server) for _ in range(3)]
opts = [torch.optim.Adam(client.parameters(), 5e-3) for client in clients]
gens = [torch.Generator().manual_seed(number) for number in range(3)]
data = [torch.randn(16, 5) + number for number in range(3)]
first, path = 0, os.path.join(a.out, "round.pt")
if os.path.exists(path):
    state = torch.load(path)
    server.load_state_dict(state["server"])
    first = state["round"]
    for number in range(3):
        gens[number].set_state(state["gens"][number])
        if number != 1 or not a.bug:
            opts[number].load_state_dict(state["opts"][number])
for round_ in range(first, 5):
    for client, opt, gen, x in zip(clients, opts, gens, data, strict=True):
        client.load_state_dict(server.state_dict())
        for batch in DataLoader(x, 8, shuffle=True, generator=gen):
            loss = (client(batch) - batch.sum(1, keepdim=True)).square().mean()
            opt.zero_grad(), loss.backward(), opt.step()
    states = [client.state_dict() for client in clients]
    server.load_state_dict(
        {key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]}
    )
    state = {"server": server.state_dict(), "round": round_ + 1}
    state["opts"] = [opt.state_dict() for opt in opts]
    torch.save(state | {"gens": [gen.get_state() for gen in gens]}, path + ".tmp")
    os.replace(path + ".tmp", path)
