"""A rank that needs no torch: says hello, plays its part, ends. For the launchers' contract and the
supervisor's tests.

`script.json` holds one object per attempt (the last one serves all later ones) that maps a rank to
its part, `END` or `STEPS:END`: STEPS are beaten and logged as done; then END: an exit code; `kill`
(SIGKILL itself); `wait` (for ever); `done` (the target is reached); `late` (it is, then `kill`);
`trouble` (say that the input is bad, then exit 2); the name of a signal (it sends that to itself).
A rank without a part waits. `kernels` prints which torch would compute with, and ends well. Those
that hang do so in the forward pass of the step after STEPS, the others wait in its backward pass:
`freeze` (SIGSTOP itself), `spin`, `grasp` (sleep, and never give back Python's lock). `obey_stop`
goes on stepping until it learns where to stop, and ends there, well.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ecrl_cli.config.codec import encode
from ecrl_cli.records.events import FinalState, RankLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import Hello, Progress, RankError
from ecrl_cli.storage.files import write_json
from ecrl_cli.training import control_client
from ecrl_cli.training.control_client import Control, HeartbeatWriter
from ecrl_cli.training.rendezvous import Rendezvous

HANGING = ("freeze", "spin", "grasp")


def run_rank(run_dir: Path, attempt: int, rendezvous: Rendezvous, started: float) -> int:
    layout, rank = RunLayout(run_dir), rendezvous.rank
    control = Control(
        layout,
        Hello(rank, os.getpid(), attempt, started, stacks=control_client.answer_stack_dumps()),
    )
    control.attach()
    heartbeat = HeartbeatWriter(control.heartbeats, rank)
    sys.stdout.write(f"rank {rank} of {rendezvous.world_size} prints\n")
    sys.stdout.flush()
    wait_for_peers(layout.attempt(attempt).folder, "up", rank, rendezvous.world_size)
    script = json.loads((run_dir / "script.json").read_text())
    steps, _, end = script[min(attempt, len(script) - 1)].get(str(rank), "wait").rpartition(":")
    journal = Journal(layout.attempt(attempt).rank(rank))

    def do(step: int) -> None:
        heartbeat.step(step)
        heartbeat.phase("backward")
        heartbeat.phase("logging")
        journal.append(
            RankLine(
                step, 0, step - 1, rank, rendezvous.world_size, "", 0, 0.5, attempt, 0.0, 0.0, 0.0
            )
        )

    for step in range(1, int(steps or 0) + 1):
        do(step)
    wait_for_peers(layout.attempt(attempt).folder, "stepped", rank, rendezvous.world_size)
    if steps and end in (*HANGING, "wait"):
        heartbeat.step(int(steps) + 1)
        heartbeat.phase("forward" if end in HANGING else "backward")
    if rank == 0:
        control.progress(Progress(int(steps or 0), "training", 0.0, 0.5))
    if end in HANGING:
        hang(end)
    if end == "obey stop":
        return obey_stop(rank, int(steps), heartbeat, do)
    return finish(end, layout, attempt, rank, control)


def hang(how: str) -> NoReturn:
    if how == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "grasp":
        ctypes.PyDLL(None).sleep(3600)
    while True:
        pass


def obey_stop(rank: int, step: int, heartbeat: HeartbeatWriter, do: Callable[[int], None]) -> int:
    """Rank 0 steps until the word comes; the others, which nothing keeps in step with it, wait for
    it and then catch up.
    """
    while (until := heartbeat.stop_after(step)) is None:
        time.sleep(0.001)
        if rank == 0:
            step += 1
            do(step)
    for missing in range(step + 1, until + 1):
        do(missing)
    return 0


def finish(end: str, layout: RunLayout, attempt: int, rank: int, control: Control) -> int:
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[end])
    if end == "trouble":
        control.trouble(RankError(rank, "E-dataset dataset: is missing", 2))
        return 2
    if end == "kernels":
        import torch  # the other parts need none

        sys.stdout.write(f"computes with {torch.backends.cpu.get_cpu_capability()}\n")
        return 0
    if end in ("done", "late"):
        write_json(
            layout.attempt(attempt).final,
            encode(FinalState(1, attempt, 0.0, 0.0, "", "", "", "", 0.5)),
        )
        if end == "late":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
    if end == "wait":
        (layout.root / f"waiting{rank}").write_text(str(os.getpid()))
        while True:
            signal.pause()
    return int(end)


def wait_for_peers(folder: Path, where: str, rank: int, world_size: int) -> None:
    """All are up before any acts, so that a test knows who is alive; all have done their steps
    before any ends: how far they came is known then.
    """
    (folder / f".{where}{rank}").write_text(str(os.getpid()))
    (folder / f".{where}{rank}").rename(folder / f"{where}{rank}")
    while not all((folder / f"{where}{peer}").exists() for peer in range(world_size)):
        time.sleep(0.001)
