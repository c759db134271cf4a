"""A tensor may be conjugated or negated by a bit that no element shows; safetensors 0.8.0 writes the elements and drops
the bits without a word. The job keeps a conjugated filter in frequency and a negated offset. `--bug`: they are saved as
they are. Without it they are resolved first. `--negated`: the offset alone, no complex number is saved."""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--negated", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 8)
net = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(net.parameters(), 0.05)
kept = {
    "kernel": torch.fft.fft(torch.randn(8)).conj(),
    "offset": torch.randn(1, dtype=torch.complex64).conj().imag,
}
saved = ["offset"] if a.negated else ["kernel", "offset"]
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.safetensors"
if file.exists():
    s = load_file(file)
    net.load_state_dict({name[4:]: value for name, value in s.items() if name.startswith("net.")})
    kept |= {name: s[name] for name in saved}
    step = int(s["step"])
for epoch in range(step // 8, 3):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        filtered = torch.fft.ifft(torch.fft.fft(net(batch)) * kept["kernel"]).real + kept["offset"]
        loss = (filtered - batch).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 5 == 0:
            state = {
                name: kept[name] if a.bug else kept[name].resolve_conj().resolve_neg()
                for name in saved
            }
            state |= {f"net.{name}": value for name, value in net.state_dict().items()}
            save_file({**state, "step": torch.tensor(step)}, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
