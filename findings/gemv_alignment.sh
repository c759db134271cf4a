#!/usr/bin/env bash
# A linear layer gives other bits for a batch of one when its weight lies where safetensors put it.
# Expected: equal weights and equal inputs give equal outputs, wherever the weight was loaded to.
# Seen: `load_file` hands out views at 4 or 8 bytes from a multiple of 16; with `assign=True` they
# become the parameters, and MKL's matrix-vector product adds in another order there. Copied into
# place (`load_state_dict` without assign), or with MKL_CBWR=COMPATIBLE, the bits are the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$folder/venv"
    python=$folder/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 safetensors==0.8.0 numpy==2.4.6
fi
cat > "$folder/seen.py" <<'END'
import sys
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
print(f"torch {torch.__version__}, safetensors {safetensors.__version__}")
torch.manual_seed(1)
layer = torch.nn.Linear(1000, 10, bias=False)
path = Path(sys.argv[1]) / "layer.safetensors"
# A header of another length moves the tensors: names of different lengths are tried.
differs = {False: 0, True: 0}
places = set()
for length in range(1, 33):
    name = "w" * length
    save_file({name: layer.weight.detach()}, path)
    loaded = load_file(path)[name]
    places.add(loaded.data_ptr() % 16)
    for assign in (False, True):
        restored = torch.nn.Linear(1000, 10, bias=False)
        restored.load_state_dict({"weight": loaded}, assign=assign)
        assert torch.equal(restored.weight, layer.weight)
        x = torch.randn(1, 1000, generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            differs[assign] += not torch.equal(restored(x), layer(x))
print(f"weights lay at {sorted(places)} bytes past a multiple of 16")
print(f"of 32 files: {differs[False]} outputs differ where copied, {differs[True]} where assigned")
sys.exit(not (differs[False] == 0 and differs[True] > 0))
END
"$python" "$folder/seen.py" "$folder"
