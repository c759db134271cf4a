#!/usr/bin/env bash
# A restored PowerSGD state feeds its errors back to other parameters.
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
import io
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

print("torch", torch.__version__)
print("expected: model, optimizer and PowerSGDState restored: the next step is the same, bit for bit")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.set_num_threads(1)


def start(state=None, passes=0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(24, 24) for _ in range(4)])
    ddp = DistributedDataParallel(model)
    for _ in range(passes):  # lets DDP order its bucket by the arrival of gradients
        ddp(torch.ones(1, 24)).sum().backward()
        ddp.zero_grad()
    if state is None:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
        )
    return model, ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), state


def step(ddp, optimizer, number):
    inputs = torch.randn(8, 24, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    (ddp(inputs) - inputs).pow(2).mean().backward()
    optimizer.step()


model, ddp, optimizer, state = start()
ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
for number in range(6):
    step(ddp, optimizer, number)
saved = io.BytesIO()
torch.save([model.state_dict(), optimizer.state_dict(), state], saved)
step(ddp, optimizer, 6)


def resumed(passes):
    saved.seek(0)
    weights, moments, restored = torch.load(saved, weights_only=False)
    again, ddp, optimizer, _ = start(restored, passes)
    again.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    ddp.register_comm_hook(restored, powerSGD_hook.powerSGD_hook)
    step(ddp, optimizer, 6)
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


plain, ordered = resumed(0), resumed(2)
print(f"seen: the resumed step differs by up to {plain:.2g}, with no error and no warning;")
print(f"      after two passes without the hook, before the restore, by {ordered:.2g}")
dist.destroy_process_group()
if not (plain > 0 and ordered == 0):
    sys.exit("changed")
PY
