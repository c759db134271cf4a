"""L-BFGS with a strong Wolfe line search, several closure calls per step, physics-like regression on mini batches that change each epoch; sqlite holds the checkpoints (blob) and the loss history in one transaction.
--history: L-BFGS's curvature history is not restored. --two: the loss row is committed before the checkpoint, so a row is there twice after a death in between."""

import argparse, io, os, sqlite3
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--history", action="store_true")
p.add_argument("--two", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(13)
torch.set_default_dtype(torch.float64)
os.makedirs(args.out, exist_ok=True)
db = sqlite3.connect(os.path.join(args.out, "run.sqlite"), isolation_level=None)
db.execute("create table if not exists state (id integer primary key, step integer, blob blob)")
db.execute("create table if not exists history (step integer, loss real)")
x = torch.linspace(-1, 1, 64)[:, None]
y = torch.sin(3 * x)
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.LBFGS(
    net.parameters(), lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe"
)
step, pending = 0, []
row = db.execute("select step, blob from state order by id desc limit 1").fetchone()
if row:
    s = torch.load(io.BytesIO(row[1]))
    net.load_state_dict(s["net"])
    if not args.history:
        opt.load_state_dict(s["opt"])
    step = row[0]
while step < 16:
    epoch, half = divmod(step, 2)
    idx = torch.randperm(64, generator=torch.Generator().manual_seed(step // 8))[
        half * 32 : half * 32 + 32
    ]

    def closure():
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x[idx]), y[idx])
        loss.backward()
        return loss

    loss = opt.step(closure)
    step += 1
    pending.append((step, loss.item()))
    if args.two:
        db.execute("insert into history values (?, ?)", pending.pop())
    if step % 3 == 0 or step == 16:
        b = io.BytesIO()
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, b)
        db.execute("begin")
        db.executemany("insert into history values (?, ?)", pending)
        db.execute("insert into state (step, blob) values (?, ?)", (step, b.getvalue()))
        db.execute("delete from state where id < (select max(id) from state)")
        db.execute("commit")
        pending = []
db.close()
