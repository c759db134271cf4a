"""Runs each planted bug against the crashes that could expose it, until one does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecrl_cli.studies.crash_points.crash_targets import Save
from ecrl_cli.studies.crash_points.trial import Bench
from ecrl_cli.studies.mutants.registry import PLANTED, Planted

_SYNC = "a kill keeps the page cache: what was written is there, synced or not (the study power-loss finds it)"
_BEHIND = "a killed writer leaves no commit record beside a damaged file: the first layer refuses it (the study corruption finds it)"
# Why no kill can expose it: by name, or by kind.
UNSEEN = {
    "sync": _SYNC,
    **dict.fromkeys(("ack_before_root_sync", "retire_before_root_sync", "pointer_trusted"), _SYNC),
    **dict.fromkeys(("guard_sizes_only", "guard_skips_manifest", "guard_skips_parts", "guard_skips_hash"), _BEHIND),
}


def unseen(planted: Planted) -> str:
    """Why no kill can expose `planted`; empty if one can."""
    return UNSEEN.get(planted.name) or UNSEEN.get(planted.kind, "")


def search(bench: Bench, name: str) -> dict[str, Any]:
    """Kill the broken store before each of its calls, one crash per call; returns the first crash that exposes the bug."""
    planted = next(planted for planted in PLANTED if planted.name == name)
    alive = Save(planted.mode, planted.layout, planted=name)
    calls = bench.visited(alive)[1]
    for number, call in enumerate(calls):
        if wrong := violation(bench.crash(replace(alive, call=number), "blocking")):
            return {"found": True, "crashes": number + 1, "at": f"before {call.partition(' ')[0]}", "wrong": wrong}
    return {"found": False, "crashes": len(calls), "at": "", "wrong": ""}


def violation(found: dict[str, Any]) -> str:
    """The promise that a crash has broken; empty if none."""
    if found["outcome"] not in ("new", "previous"):
        return str(found["outcome"])
    if found["half"]:
        return "half a checkpoint under a name that counts"
    if found["again"] and found["outcome"] == "previous":  # broken stores do not handle an existing step
        return f"the next attempt: {found['again']}"
    return ""
