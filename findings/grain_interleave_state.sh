#!/usr/bin/env bash
# Grain's interleave changes the state that it was restored from.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check grain==0.2.18 numpy==2.4.6
fi
cd "$work"
"$python" -W ignore - <<'PY'
import copy
import logging
import os
import sys
from importlib.metadata import version

from grain import MapDataset
from grain.experimental import InterleaveIterDataset

logging.disable(logging.WARNING)
print("grain", version("grain"))
print("expected: a snapshot can be restored twice, say after a second bad step: get_state gives a copy")


def stream():
    files = MapDataset.source([0, 10, 20, 30])
    return iter(InterleaveIterDataset(files.map(lambda start: numbers(start)), cycle_length=2))


def numbers(start):
    return MapDataset.source(range(start, start + 4)).to_iter_dataset()


iterator = stream()
for _ in range(3):
    next(iterator)
snapshot = iterator.get_state()
kept = copy.deepcopy(snapshot)
due = list(iterator)
unharmed = snapshot == kept
back = []
for _ in range(2):
    iterator = stream()
    iterator.set_state(snapshot)
    back.append(list(iterator))
print("seen: the snapshot as taken, after going on:", "unchanged" if unharmed else "changed")
print("      restored once: ", "exact" if back[0] == due else back[0])
print("      restored twice:", "exact" if back[1] == due else back[1])
print("                 due:", due)
sys.stdout.flush()
os._exit(0 if unharmed and back[0] == due and back[1] != due else 1)
PY
