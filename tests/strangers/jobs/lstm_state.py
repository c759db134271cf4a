"""Character model: an LSTM whose hidden state is carried from batch to batch (truncated back-propagation), dropout, AdamW, warm-up by LambdaLR.
--hidden: the carried state starts at zero after a restart. --dropout: torch's generator is not restored. --warm: the schedule starts over."""

import argparse, os
import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--hidden", action="store_true")
p.add_argument("--dropout", action="store_true")
p.add_argument("--warm", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1234)
os.makedirs(args.out, exist_ok=True)
CKPT = os.path.join(args.out, "checkpoint.pt")

V, B, T = 16, 4, 12
text = torch.randint(V, (B, 12 * T + 1), generator=torch.Generator().manual_seed(3))  # B streams


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 12)
        self.rnn = nn.LSTM(12, 20, num_layers=2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(20, V)

    def forward(self, x, state):
        y, state = self.rnn(self.emb(x), state)
        return self.out(y), state


net = CharRNN()
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
epoch, pos, state, step = 0, 0, None, 0
if os.path.exists(CKPT):
    ck = torch.load(CKPT)
    net.load_state_dict(ck["net"])
    opt.load_state_dict(ck["opt"])
    epoch, pos, step, state = ck["epoch"], ck["pos"], ck["step"], ck["state"]
    if args.hidden:
        state = None
    if not args.dropout:
        torch.set_rng_state(ck["rng"])
    if not args.warm:
        sched.load_state_dict(ck["sched"])
net.train()
while epoch < 2:
    while pos < 12:
        x, y = text[:, pos * T : (pos + 1) * T], text[:, pos * T + 1 : (pos + 1) * T + 1]
        logits, state = net(x, state)
        state = tuple(s.detach() for s in state)
        loss = nn.functional.cross_entropy(logits.reshape(-1, V), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        pos += 1
        if step % 4 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "opt": opt.state_dict(),
                    "sched": sched.state_dict(),
                    "epoch": epoch,
                    "pos": pos,
                    "step": step,
                    "state": state,
                    "rng": torch.get_rng_state(),
                },
                CKPT + ".tmp",
            )
            os.replace(CKPT + ".tmp", CKPT)
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    epoch, pos, state = epoch + 1, 0, None
