"""Recordings of a small imagined job, written as any recorder would write them: each a folder with
`ref`, `ref2` and `struck`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ecrl_cli.audit.records import Process, read_arm

LAST, SAVE_EVERY, EPOCH, RANKS = 16, 4, 8, 2
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def told(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()[:32]


def ids(step: int, rank: int) -> list[int]:
    """Each sample once an epoch."""
    epoch, place = divmod(step - 1, EPOCH)
    return [(place * 4 + rank * 2 + item) * 7 % 32 + 0 * epoch for item in range(2)]


def state(step: int, rank: int) -> dict[str, Any]:
    """What the undisturbed job is behind `step`."""
    return {
        "params": told("params", step),
        "buffers": told("buffers", step),
        "optimizer": told("optimizer", step),
        "settings": told("settings", step),
        "rng": told("rng", step, rank),
        "lr": [0.1 / step],
        "scale": 8.0,
    }


def attempt_lines(
    rank: int, first: int, last: int, *, resumed: bool = False
) -> list[dict[str, Any]]:
    """One process that goes on after `first` and does the steps up to `last`."""
    lines: list[dict[str, Any]] = [
        {"type": "process", "format": 1, "rank": rank, "world_size": RANKS, "attempt": int(resumed)}
    ]
    if resumed:
        lines.append({"type": "load", "path": f"out/step-{first}.pt", "after_step": 0})
    ahead = state(first + 1, rank)
    start = {
        "params": told("params", first),
        "optimizer": told("optimizer", first),
        "entries": 4 if first else 0,
    }
    lines.append(
        {
            "type": "start",
            **start,
            "settings": ahead["settings"],
            "rng": ahead["rng"],
            "lr": ahead["lr"],
        }
    )
    for number, step in enumerate(range(first + 1, last + 1), start=1):
        lines.append(
            {
                "type": "batch",
                "n": number,
                "ids": ids(step, rank),
                "hash": told("input", step, rank),
            }
        )
        losses = [float(int(told("loss", step, rank)[:6], 16))]
        lines.append(
            {
                "type": "step",
                "step": number,
                "batches": [number],
                "losses": losses,
                "seconds": 0.5,
                **state(step, rank),
            }
        )
        if step % SAVE_EVERY == 0 and rank == 0:
            lines += [
                {"type": "save", "path": f"out/step-{step}.pt", "done": done, "after_step": number}
                for done in (False, True)
            ]
        if step % EPOCH == 0:
            lines.append({"type": "epoch", "loader": 0, "after_step": number})
    return lines


def write(folder: Path, attempt: int, rank: int, lines: list[dict[str, Any]]) -> Path:
    path = folder / f"attempt-{attempt:02d}" / f"rank{rank}-{100 * attempt + rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_arm(folder: Path, *parts: tuple[int, int]) -> None:
    """`parts`: (resumed after, killed after) of each attempt; the last one ends by itself. Rank 1
    dies before it records the last step.
    """
    for attempt, (first, last) in enumerate(parts):
        for rank in range(RANKS):
            write(folder, attempt, rank, attempt_lines(rank, first, last, resumed=attempt > 0))
    ends = [{"exit_code": 1, "signal": None, "planned": True} for _ in parts[:-1]] + [
        {"exit_code": 0, "signal": None}
    ]
    launches = [{"attempt": number, "seconds": 2.0, **end} for number, end in enumerate(ends)]
    (folder / "arm.json").write_text(json.dumps({"launches": launches}))


def healthy(folder: Path) -> Path:
    """Killed after step 10, back at the checkpoint of step 8, killed again after step 12, its
    checkpoint just finished.
    """
    for name in ("ref", "ref2"):
        write_arm(folder / name, (0, LAST))
    write_arm(folder / "struck", (0, 10), (8, 12), (12, LAST))
    return folder


def change(folder: Path, attempt: int, edit: Change, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Pass each line of an attempt of the struck arm through `edit`; None drops it. Other samples
    are other tensors.
    """

    def fed(line: dict[str, Any]) -> dict[str, Any] | None:
        edited = edit(line)
        if edited and edited.get("ids") != line.get("ids") and edited["hash"] == line["hash"]:
            edited["hash"] = told("samples", edited["ids"])
        return edited

    for rank in ranks:
        (path,) = (folder / "struck" / f"attempt-{attempt:02d}").glob(f"rank{rank}-*.jsonl")
        edited = [fed(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in edited if line is not None))


def record_loops(module: str, folder: Path) -> Path:
    """Run the training loops of `module` in a process of their own; each is recorded in a folder of
    its name under `folder`.
    """
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    environment.pop("ECRL_RECORD", None)
    command = [sys.executable, "-m", module, str(folder)]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def process(folder: Path, loop: str) -> Process:
    """The one process that was recorded of `loop`, without trouble."""
    (only,) = read_arm(folder / loop).processes
    assert only.troubles == []
    return only
