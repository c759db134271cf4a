#!/usr/bin/env bash
# A checkpoint of torch.distributed.checkpoint that cannot be read is not caught by
# `except Exception`: a job that would fall back to an older one ends instead.
# Expected: what `dcp.load` raises is an Exception, as all errors of torch.load are.
# Seen: CheckpointException derives from BaseException, beside KeyboardInterrupt and SystemExit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDINGS_VENV:+$FINDINGS_VENV/bin/python}
if [ -z "$python" ]; then
    python3 -m venv "$folder/venv"
    python=$folder/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check torch==2.14.1 numpy==2.4.6
fi
cat > "$folder/seen.py" <<'END'
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")
print(f"torch {torch.__version__}")
folder = Path(sys.argv[1])
for step in (1, 2):
    dcp.save({"weight": torch.full((4,), float(step))}, checkpoint_id=folder / f"step-{step}")
(folder / "step-2" / "__0_0.distcp").unlink()  # lost, as by a full disk


def newest_that_loads():
    for step in (2, 1):
        state = {"weight": torch.zeros(4)}
        try:
            dcp.load(state, checkpoint_id=folder / f"step-{step}")
            return step
        except Exception:
            print(f"step {step} cannot be read: taking an older one")
    return 0


try:
    print(f"went on from step {newest_that_loads()}")
    sys.exit(1)
except dcp.api.CheckpointException as error:
    print(f"the job ends: {type(error).__name__} is no Exception: {not isinstance(error, Exception)}")
    sys.exit(isinstance(error, Exception))
END
"$python" "$folder/seen.py" "$folder" 2>/dev/null
