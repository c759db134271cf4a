#!/usr/bin/env bash
# An optimizer's own whole-number counter comes back as bfloat16: 257 updates become 256.
# Expected: `load_state_dict` gives back the state that `state_dict` gave out.
# Seen: each tensor of a parameter's state, of whatever kind, is turned into the parameter's type if
# the parameter is floating; only the key `step` is spared. A float32 master copy is rounded as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$folder/venv"
    python=$folder/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6
fi
cat > "$folder/seen.py" <<'END'
import sys

import torch


class Counting(torch.optim.Optimizer):
    """Plain descent on a float32 copy that counts its updates in an int64."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["master"] = parameter.detach().float()
                state["updates"] = torch.tensor(0)
            state["updates"] += 1
            state["master"] -= 1e-3 * parameter.grad.float()
            parameter.data.copy_(state["master"])


print(f"torch {torch.__version__}")
weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
first, second = Counting([weight]), Counting([weight])
for _ in range(257):
    weight.grad = torch.ones_like(weight)
    first.step()
second.load_state_dict(first.state_dict())
given, back = first.state[weight], second.state[weight]
for name in ("updates", "master"):
    print(f"{name}: saved {given[name].tolist()} {given[name].dtype},", end=" ")
    print(f"loaded {back[name].tolist()} {back[name].dtype}")
changed = back["updates"].item() == 256 and not torch.equal(back["master"].float(), given["master"])
sys.exit(not changed)
END
"$python" "$folder/seen.py"
