"""What a torch.distributed.run agent says of a death: in the table that it prints, and with its own exit code."""

from __future__ import annotations

import re

from ecrl_cli.supervision.launcher import RankExit

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):\s*\[\d+\]:(.*?)(?:={8,}|\Z)", re.DOTALL)


def root_cause(output: str) -> str:
    """What the agent's table says of the rank that failed first; empty where it printed none."""
    found = _ROOT_CAUSE.search(output)
    return found[1] if found else ""


def as_exit(rank: int | None, pid: int, code: int) -> RankExit:
    """From subprocess's convention: -9 is signal 9."""
    return RankExit(rank, pid, None, -code) if code < 0 else RankExit(rank, pid, code, None)
