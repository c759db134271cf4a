"""A rank that outlives others, and a spare, without torch: they speak the protocol of a live run.
For the supervisor's tests.

`script.json`: as for the stand-in worker, one object per attempt, rank to part `STEPS:END`. STEPS
are logged as done, up to that step; then END: `kill`; `obey` (go on, and stop when all are to);
`spoilt` (say that the state is no good, and end); `done` (the target is reached); an exit code;
`hang`; `leave` (when a rank has died: say so after that step, wait for an Assignment, play the part
that it brings); `leave,stop` (and ask the supervisor to stop before it has heard); `leave,kill`
(and die right afterwards); `leave,last` (when two have died). `spareN`, beside the ranks of the
first object: what that spare does: `kill`; `stop` (ask the supervisor to stop once rank 0 has left,
and never stand by); one without a part stands by.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.records.events import FinalState, RankLine
from ecrl_cli.records.journal import Journal, line_of, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import (
    Assignment,
    AttemptSpec,
    Hello,
    LeftAttempt,
    RankError,
    SpareReady,
)
from ecrl_cli.storage.files import write_json
from ecrl_cli.training.control_client import Control, HeartbeatWriter, _connect
from ecrl_cli.training.rendezvous import Rendezvous, TcpStoreAddress


def run_rank(run_dir: Path, attempt: int, rendezvous: Rendezvous, started: float) -> int:
    return play(RunLayout(run_dir), Assignment(attempt, rendezvous.rank, ""))


def run_spare(run_dir: Path, store: TcpStoreAddress, started: float) -> int:
    layout = RunLayout(run_dir)
    connection = _connect(layout)
    number = claim_number(layout)
    if script(layout, 0).get(f"spare{number}") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if script(layout, 0).get(f"spare{number}") == "stop":
        while not (layout.root / "left0").exists():
            time.sleep(0.001)
        os.kill(os.getppid(), signal.SIGTERM)
        while True:
            signal.pause()
    connection.sendall(line_of(SpareReady(os.getpid())))
    (layout.root / f"standby{number}").write_text(str(os.getpid()))
    told = assignment(connection)
    return play(layout, told) if told else 0


def play(layout: RunLayout, told: Assignment | None) -> int:
    """Attempt after attempt, until there is nothing more to do."""
    while told:
        order = decode(AttemptSpec, read_json(layout.attempt(told.attempt).launch))
        control = Control(layout, Hello(told.rank, os.getpid(), told.attempt, 0.0))
        control.attach()
        (layout.attempt(told.attempt).folder / f"pid{told.rank}").write_text(
            f"{os.getpid()} {told.prefix}"
        )
        steps, _, end = script(layout, told.attempt).get(str(told.rank), "0:leave").rpartition(":")
        step(layout, order, told, control, int(steps or 0), obeys=end == "obey")
        if not end.startswith("leave"):
            return finish(end, layout, told, control)
        assert control.heartbeats is not None
        while control.heartbeats.epoch < (3 if end == "leave,last" else 2):
            time.sleep(0.001)
        if end == "leave,stop":
            os.kill(os.getppid(), signal.SIGTERM)
        control._socket.sendall(
            line_of(
                LeftAttempt(
                    told.rank, os.getpid(), told.attempt, int(steps), control.heartbeats.members
                )
            )
        )
        (layout.root / f"left{told.rank}").touch()
        if end == "leave,kill":
            os.kill(os.getpid(), signal.SIGKILL)
        told = assignment(control._socket)
        control.close()
    return 0


def step(
    layout: RunLayout,
    order: AttemptSpec,
    told: Assignment,
    control: Control,
    last: int,
    obeys: bool,
) -> None:
    journal, heartbeat = (
        Journal(layout.attempt(told.attempt).rank(told.rank)),
        HeartbeatWriter(control.heartbeats, told.rank),
    )
    for number in range(order.resume_step + 1, last + 1):
        heartbeat.step(number)
        heartbeat.phase("logging")
        journal.append(
            RankLine(
                number,
                0,
                number - 1,
                told.rank,
                order.world_size,
                "",
                0,
                0.5,
                told.attempt,
                0.0,
                0.0,
                0.0,
            )
        )
        if obeys and heartbeat.stop_after(number) == number:
            break


def finish(end: str, layout: RunLayout, told: Assignment, control: Control) -> int:
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "spoilt":
        control.trouble(RankError(told.rank, "the loss is nan", 1, peers_corrupted=True))
        return 1
    if end == "obey":
        return 0
    while end == "hang":
        signal.pause()
    if end == "done":
        write_json(
            layout.attempt(told.attempt).final,
            encode(FinalState(1, told.attempt, 0.0, 0.0, "", "", "", "", 0.5)),
        )
        return 0
    return int(end)


def assignment(connection: socket.socket) -> Assignment | None:
    line = connection.makefile("rb").readline()
    return decode(Assignment, json.loads(line)) if line else None


def claim_number(layout: RunLayout) -> int:
    for number in range(100):
        try:
            (layout.root / f"spare{number}").touch(exist_ok=False)
            return number
        except FileExistsError:
            continue
    raise AssertionError("too many spares")


def script(layout: RunLayout, attempt: int) -> dict[str, str]:
    parts: list[dict[str, str]] = json.loads((layout.root / "script.json").read_text())
    return parts[min(attempt, len(parts) - 1)]
