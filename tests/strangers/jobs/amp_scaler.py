"""Mixed precision on CPU: bfloat16 autocast and a GradScaler that grows every 3 steps and backs off on overflows (one batch holds a huge value); exponential schedule; own format: bytes with a JSON header (like safetensors).
--scaler: scale and growth count are not restored. --bf16: weights are stored as bfloat16. --exp: the exponential schedule is stepped once more at restart."""

import argparse, json, os, struct
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("scaler", "bf16", "exp"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(2)
os.makedirs(args.out, exist_ok=True)
x, y = torch.randn(40, 8), torch.randn(40, 2)
x[7] = 1e30  # this one overflows
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(net.parameters(), 5e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.95)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)


def write(path, tensors, meta):
    head, blob = {"__meta__": meta}, b""
    for k, t in tensors.items():
        raw = t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        head[k] = [str(t.dtype)[6:], list(t.shape), len(blob), len(blob) + len(raw)]
        blob += raw
    h = json.dumps(head).encode()
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h + blob)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)


def read(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    head = json.loads(b[8 : 8 + n])
    meta = head.pop("__meta__")
    return {
        k: torch.frombuffer(bytearray(b[8 + n + s : 8 + n + e]), dtype=getattr(torch, d)).view(
            shape
        )
        for k, (d, shape, s, e) in head.items()
    }, meta


path, step = os.path.join(args.out, "model.tensors"), 0
if os.path.exists(path):
    t, m = read(path)
    net.load_state_dict({k[4:]: v.float() for k, v in t.items() if k.startswith("net.")})
    o = opt.state_dict()
    o["state"] = {
        i: {k: t[f"opt.{i}.{k}"].clone() for k in ("step", "exp_avg", "exp_avg_sq")}
        for i in range(4)
    }
    o["param_groups"][0]["lr"] = m["lr"]
    opt.load_state_dict(o)
    sched.load_state_dict(m["sched"])
    step = m["step"]
    if not args.scaler:
        scaler.load_state_dict(m["scaler"])
    if args.exp:
        sched.step()
while step < 20:
    epoch, b = divmod(step, 10)
    idx = torch.randperm(40, generator=torch.Generator().manual_seed(epoch))[4 * b : 4 * b + 4]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(net(x[idx]).float(), y[idx])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    step += 1
    if step % 4 == 0:
        t = {"net." + k: v.bfloat16() if args.bf16 else v for k, v in net.state_dict().items()}
        t |= {f"opt.{i}.{k}": v for i, s in opt.state_dict()["state"].items() for k, v in s.items()}
        write(
            path,
            t,
            {
                "step": step,
                "lr": opt.param_groups[0]["lr"],
                "sched": sched.state_dict(),
                "scaler": scaler.state_dict(),
            },
        )
