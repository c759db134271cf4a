#!/usr/bin/env bash
# Loaded with assign=True, tied weights share memory and are two parameters.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys

import torch

print("torch", torch.__version__)
print("expected: load_state_dict(assign=True) leaves a tied model tied, or says that it does not")


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def trained(assign):
    torch.manual_seed(0)
    model = Tied()
    torch.save(model.state_dict(), "tied.pt")
    result = model.load_state_dict(torch.load("tied.pt"), assign=assign)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(5)).square().sum().backward()
    optimizer.step()
    together = model.embedding.weight.data_ptr() == model.head.weight.data_ptr()
    return len(list(model.parameters())), together, str(result), model.head.weight.detach().clone()


copied, assigned = trained(False), trained(True)
same = torch.equal(copied[3], assigned[3])
print("seen: copied:   parameters", copied[0], "on one memory:", copied[1])
print("      assigned: parameters", assigned[0], "on one memory:", assigned[1], assigned[2])
print("      each has its own gradient and its own update; after one step the weights agree:", same)
if (copied[0], assigned[0], assigned[1], same) != (1, 2, True, False):
    sys.exit("changed")
PY
