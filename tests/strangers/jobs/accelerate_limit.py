"""Accelerate with automatic names of checkpoints and a limit of two. The count of saves is not restored: after a restart new
checkpoints get low numbers, are the first that the limit deletes, and `load_state()` takes the old ones again.
Default: the count is set to what lies there. --bug: not."""

import argparse, os, re

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

a = argparse.ArgumentParser()
a.add_argument("--out")
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
set_seed(4)
data = torch.randn(32, 5)
project = ProjectConfiguration(a.out, automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(cpu=True, project_config=project)
net = torch.nn.Linear(5, 1)
net, opt = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 0.02))


class Count:
    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


count = Count()
accelerator.register_for_checkpointing(count)
folder = os.path.join(a.out, "checkpoints")
if os.path.isdir(folder) and os.listdir(folder):
    if not a.bug:
        numbers = [int(re.findall(r"\d+", name)[-1]) for name in os.listdir(folder)]
        project.iteration = max(numbers) + 1
    accelerator.load_state()
for step in range(count.step, 24):
    order = torch.randperm(32, generator=torch.Generator().manual_seed(step // 8))
    batch = data[order[step % 8 * 4 :][:4]]
    opt.zero_grad()
    accelerator.backward((net(batch) - batch[:, :1]).square().mean())
    opt.step()
    count.step = step + 1
    if count.step % 3 == 0:
        accelerator.save_state()
