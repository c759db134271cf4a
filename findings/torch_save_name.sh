#!/usr/bin/env bash
# torch.save writes the file's own name into the file: a copy under another name is no equal.
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
import hashlib
import sys
from pathlib import Path

import torch

print("torch", torch.__version__)
print("expected: the same state, saved twice, gives the same bytes, whatever the files are called")
state = {"weight": torch.ones(3), "step": 7}
Path("other").mkdir()


def digest(path):
    torch.save(state, path)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


first, again, elsewhere = digest("last.pt"), digest("last.pt"), digest("other/last.pt")
renamed, temporary = digest("step7.pt"), digest("last.pt.tmp")
print("seen: last.pt", first, "again", again, "in another folder", elsewhere)
print("      step7.pt", renamed, "last.pt.tmp", temporary)
if not first == again == elsewhere or renamed == first or temporary == first:
    sys.exit("changed")
PY
