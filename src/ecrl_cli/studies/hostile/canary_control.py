"""Control: each payload must run when unpickled without restriction; otherwise the study could detect nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.studies.hostile.payloads import payloads
from ecrl_cli.supervision.launch.child_environment import child_environment

CONTROL_S = 120.0
# A separate script: nothing in the package may load like this, which a test checks.
_SCRIPT = """
import sys, torch
for path in sys.argv[1:]:
    try:
        torch.load(path, weights_only=False)
    except BaseException:
        pass
"""


def run(folder: Path) -> dict[str, Any]:
    """Names of the payloads that ran."""
    files, canaries = [], {}
    for number, name in enumerate(payloads(Path("x"))):
        canaries[name] = folder / f"canary-{number}"
        files.append(folder / f"payload-{number}.pt")
        files[-1].write_bytes(payloads(canaries[name])[name])
    command = [sys.executable, "-c", _SCRIPT, *map(str, files)]
    subprocess.run(command, capture_output=True, timeout=CONTROL_S, env=child_environment(None, 1), check=False)
    return {"ran": [name for name, canary in canaries.items() if canary.exists()], "of": list(canaries)}
