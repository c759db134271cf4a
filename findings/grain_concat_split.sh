#!/usr/bin/env bash
# Grain's own checkpoint of concat-then-split packing loses samples.
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
import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path

import numpy
from grain import MapDataset
from grain.checkpoint import CheckpointHandler
from grain.experimental import ConcatThenSplitIterDataset

logging.disable(logging.WARNING)
print("grain", version("grain"))
print("expected: restored by grain's CheckpointHandler, the packed rows that were due come, as by get_state")


def packed():
    lengths = (3, 5, 2, 4, 6, 1, 7, 2)
    texts = [{"x": numpy.full(length, number)} for number, length in enumerate(lengths, 1)]
    return iter(ConcatThenSplitIterDataset(MapDataset.source(texts).to_iter_dataset(), length_struct={"x": 7}))


def rows(iterator):
    return [row["x"].tolist() for row in iterator]


def resumed(taken):
    iterator, in_memory, by_file = packed(), packed(), packed()
    for _ in range(taken):
        next(iterator)
    in_memory.set_state(iterator.get_state())
    folder = Path(f"after_{taken}")
    folder.mkdir()
    CheckpointHandler().save(folder, iterator)
    CheckpointHandler().restore(folder, by_file)
    return rows(iterator), rows(in_memory), rows(by_file)


due, in_memory, by_file = resumed(1)
print("seen: after one row, in memory:", "exact" if in_memory == due else in_memory)
print("      through the handler's JSON, due", due)
print("                                  got", by_file)
untouched = resumed(0)
print("      not one row taken: due", len(untouched[0]), "rows, got", len(untouched[2]))
holds = in_memory == due and len(by_file) < len(due) and len(untouched[2]) < len(untouched[0])
sys.stdout.flush()
os._exit(0 if holds else 1)
PY
