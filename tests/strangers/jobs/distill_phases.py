"""Two phases in one process: a teacher is trained (10 steps), then a student learns from its soft labels (14 steps); another optimizer per phase; phase files teacher.pt (final) and state.pt.
--teacher: a restart in phase two takes a freshly initialised teacher. --mode: the teacher stays in train mode after a restart, so its dropout draws. --phase: a restart in phase two repeats the end of phase one (its last checkpoint)."""

import argparse, os
import torch
from torch import nn
from torch.nn import functional as F

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("teacher", "mode", "phase"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(61)
os.makedirs(args.out, exist_ok=True)
x, y = torch.randn(40, 6), torch.randint(4, (40,))
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
student = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))


def at(name):
    return os.path.join(args.out, name)


def save(name, **what):
    torch.save(what, at(name) + ".tmp")
    os.replace(at(name) + ".tmp", at(name))


def batch(step):
    order = torch.randperm(40, generator=torch.Generator().manual_seed(step // 10))
    return order[step % 10 * 4 : step % 10 * 4 + 4]


s = torch.load(at("state.pt")) if os.path.exists(at("state.pt")) else None
phase, step = (s["phase"], s["step"]) if s else (1, 0)
if phase == 2 and args.phase:
    s = torch.load(at("phase1.pt"))
    phase, step = 1, s["step"]
if s:
    torch.set_rng_state(s["rng"])
if phase == 1:
    opt = torch.optim.Adam(teacher.parameters(), 0.01)
    if s:
        teacher.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    while step < 10:
        i = batch(step)
        loss = F.cross_entropy(teacher(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 4 == 0:
            for name in ("phase1.pt", "state.pt"):
                save(
                    name,
                    phase=1,
                    step=step,
                    net=teacher.state_dict(),
                    opt=opt.state_dict(),
                    rng=torch.get_rng_state(),
                )
    save("teacher.pt", net=teacher.state_dict())
    teacher.eval()
    s, step = None, 0
elif not args.teacher:
    teacher.load_state_dict(torch.load(at("teacher.pt"))["net"])
    if not args.mode:
        teacher.eval()
opt = torch.optim.SGD(student.parameters(), 0.1, momentum=0.9)
if s:
    student.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
while step < 14:
    i = batch(step)
    with torch.no_grad():
        soft = (teacher(x[i]) / 2).softmax(-1)
    loss = F.kl_div((student(x[i]) / 2).log_softmax(-1), soft, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0 or step == 14:
        save(
            "state.pt",
            phase=2,
            step=step,
            net=student.state_dict(),
            opt=opt.state_dict(),
            rng=torch.get_rng_state(),
        )
