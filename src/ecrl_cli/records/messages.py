"""Messages between supervisor and ranks: JSON lines on the control socket, one object each, with a
`kind`; and an attempt's launch.json.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.config.codec import decode
from ecrl_cli.errors import EcrlError
from ecrl_cli.records.events import PlannedFailure, ResumedFrom
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import SURVIVORS

TENTHS = 10  # into which progress is divided: each is reported


@dataclass(frozen=True)
class Hello:
    """First message of every rank: it identifies the connection, so that the rank's death is
    noticed at once. `at`: the process's first instant (monotonic).

    `stacks`: the descriptor number of the memory file for its stack dump on request; -1: none.
    """

    rank: int
    pid: int
    attempt: int
    at: float
    kind: str = "hello"
    stacks: int = -1


@dataclass(frozen=True)
class Progress:
    """From rank 0, at each change of phase (starting, loading, training, saving, flushing, done)
    and after steps: each that ends a tenth of the run, and others at intervals.
    """

    global_step: int
    phase: str
    at: float
    loss: float | None = None
    kind: str = "progress"


@dataclass(frozen=True)
class RankError:
    """Why a rank is about to exit: one line of text, and the exit code (2: the user's input is
    wrong).

    `peers_corrupted`: the state in the other ranks' memory is unusable too, because they exchanged
    gradients with this rank.
    """

    rank: int
    text: str
    exit_code: int
    kind: str = "trouble"
    peers_corrupted: bool = False


@dataclass(frozen=True)
class Notice:
    """One line that the user should read; nothing follows from it."""

    rank: int
    text: str
    kind: str = "notice"


@dataclass(frozen=True)
class LeftAttempt:
    """From a surviving rank: it left its attempt after `global_step` with its state in memory and
    waits for an Assignment on this connection.

    Its records are durable. `alive`: the surviving ranks, as far as it knows.
    """

    rank: int
    pid: int
    attempt: int
    global_step: int
    alive: tuple[int, ...]
    kind: str = "left"


@dataclass(frozen=True)
class SpareReady:
    """First message of a warm spare: it has imported and loaded what it can, and waits for an
    Assignment on this connection.
    """

    pid: int
    kind: str = "standby"


@dataclass(frozen=True)
class Assignment:
    """From the supervisor to a surviving rank or a spare: become `rank` of `attempt`, whose
    launch.json exists; send Hello on a new connection.

    `prefix`: prefix of the attempt's keys in the store. If the connection ends instead, there is
    nothing more to do.
    """

    attempt: int
    rank: int
    prefix: str
    kind: str = "assignment"


@dataclass(frozen=True)
class AttemptSpec:
    """`logs/attempt-NN/launch.json`, read once by every rank: the launch parameters of one attempt,
    beside the run directory.

    `resume_step`: the checkpointed step to resume after; 0: start from scratch. `until`: the step
    after which the attempt ends so that the run can continue with another world size; None: it ends
    at the target. `max_step_seen`: the highest step that any attempt logged; steps up to it are
    replayed. `pending`: the planned faults that have not fired. `nodes`: the node of each rank in a
    multi-node run; `silent`: nodes of its allocation that did not answer before the launch.

    `continues`, `memory`, `origins`, `joined`, `snapshot_sha256`: see `Attempt`. If `memory` is
    `survivors`, the lowest rank that is not in `joined` holds the state. `restored_digests`: each
    rank that resumes records the state it then holds (`records.state_digests.RestoredState`); False
    in older records. `at`, `time`, `boot_id`: when this file was written (monotonic and wall
    seconds) and the boot of the monotonic clock; 0 and empty in older records. `launched_at`: as in
    `Attempt`, from the same reading of the clock; 0 in older records.
    """

    attempt: int
    world_size: int
    resume_step: int
    resume_from: ResumedFrom | None
    max_step_seen: int
    pending: tuple[PlannedFailure, ...]
    until: int | None = None
    nodes: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    continues: int | None = None
    memory: str = ""
    origins: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    snapshot_sha256: str = ""
    restored_digests: bool = False
    at: float = 0.0
    time: float = 0.0
    boot_id: str = ""
    launched_at: float = 0.0


def held_from(attempt: int, spec_of: Callable[[int], AttemptSpec | None]) -> int | None:
    """The first step behind the last death that ranks survived: with reference=always retention
    spares the oldest checkpoint from there on during `attempt`, with which an undisturbed run of
    the rest may begin (`history.rest_start`). None: it spares none. `spec_of`: by attempt.
    """
    specs = map(spec_of, range(attempt, -1, -1))
    return next((s.resume_step + 1 for s in specs if s and s.memory == SURVIVORS), None)


def launch_of(run: Path, attempt: int) -> AttemptSpec | None:
    """The attempt's launch.json; None where there is none that can be read."""
    with suppress(EcrlError, OSError):
        return decode(AttemptSpec, read_json(RunLayout(run).attempt(attempt).launch))
    return None
