"""Documents packed into rows of an iterable data set. `--bug`: the one that did not fit is held by the generator
alone and is lost at a restart."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
ROW = 12


class Packed(torch.utils.data.IterableDataset):
    document, pending = 0, ()

    def __iter__(self):
        row, self.pending = list(self.pending), ()
        while self.document < 150:
            length = 3 + (self.document * 7) % 6
            tokens = [self.document % 50] * length
            self.document += 1
            if len(row) + length > ROW:
                self.pending = () if a.bug else tokens
                yield torch.tensor(row + [0] * (ROW - len(row)))
                row = []
                self.pending = ()
            row += tokens

    def state(self):
        return {"document": self.document, "pending": list(self.pending)}


data = Packed()
net = torch.nn.Sequential(
    torch.nn.Embedding(50, 4), torch.nn.Flatten(), torch.nn.Linear(4 * ROW, 1)
)
opt = torch.optim.AdamW(net.parameters(), 0.01)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step, data.document, data.pending = s["step"], s["data"]["document"], s["data"]["pending"]
for batch in torch.utils.data.DataLoader(data, 2, generator=torch.Generator()):
    loss = net(batch).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 5 == 0:
        torch.save(
            {"net": net.state_dict(), "opt": opt.state_dict(), "step": step, "data": data.state()},
            f"{file}.tmp",
        )
        Path(f"{file}.tmp").replace(file)
