#!/usr/bin/env bash
# Zarr's next append writes over the rows of the append before it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check zarr==3.1.6 numpy==2.4.6
fi
cd "$work"
"$python" -W ignore - <<'PY'
import sys

import numpy
import zarr

print("zarr", zarr.__version__)
print("expected: a log that is opened again with mode='a' and appended to keeps all its rows")


def attempt(values):
    group = zarr.open_group("log.zarr", mode="a")
    group["loss"].append(numpy.array(values, dtype="f4"))


def rows():
    return zarr.open_array("log.zarr/loss", mode="r")[:].tolist()


def log(consolidated):
    group = zarr.open_group("log.zarr", mode="w")
    group.create_array("loss", shape=(0,), chunks=(2,), dtype="f4")
    attempt([1, 2])
    if consolidated:
        zarr.consolidate_metadata("log.zarr")
    attempt([3, 4])
    attempt([5, 6])
    return rows()


plain, consolidated = log(False), log(True)
seen = zarr.open_group("log.zarr", mode="r")["loss"].shape
print("seen: three attempts append two rows each:", plain)
print("      with metadata consolidated after the first:", consolidated, "(no error)")
print("      and a reader of the group sees", seen[0], "rows")
if plain != [1, 2, 3, 4, 5, 6] or consolidated != [1, 2, 5, 6] or seen != (2,):
    sys.exit("changed")
PY
