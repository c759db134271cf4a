"""What happened, as frozen data: one class per kind of line or document in a run directory.

Times: `at` is CLOCK_MONOTONIC in seconds (the same for all processes of one boot), `time` is Unix wall time in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ecrl_cli.records.rank_state import RankState

SCHEMA_VERSION = 1

# Where a second of rank 0's wall time can go (promise 4); `spans_rank0.jsonl` and metrics.json use these words.
CATEGORIES = (
    "compute",
    "snapshot",
    "serialize",
    "enqueue",
    "backpressure",
    "write_wait",
    "sync",
    "detect",
    "launch",
    "import",
    "rendezvous",
    "load",
    "warm_up",
    "replay",
    "idle",
)

CHECKPOINT_ENDS = ("committed", "failed", "lost")

# What a stall consists of, and the category of rank 0's spans that each part lies in: write (the files), hash (waiting for their hashes), commit
# (everything else up to the acknowledgement), settle (the journal, the pointers, retention), barrier (waiting for the other ranks).
STALL_PARTS = {
    "snapshot": "snapshot",
    "serialize": "serialize",
    "backpressure": "backpressure",
    "enqueue": "enqueue",
    "write": "write_wait",
    "hash": "write_wait",
    "commit": "write_wait",
    "settle": "write_wait",
    "barrier": "sync",
}

# Reasons that recovery writes and verify reads: of a refusal, where an acknowledged checkpoint is not there; of an acknowledgement that
# came after the save was recorded as failed (its name was not known to be durable, and is there).
GONE, FOUND = "is gone", "found after a failed save"


@dataclass(frozen=True)
class RankLine:
    """One committed step of one rank: a line of `logs/attempt-NN/rankR.jsonl`.

    `cursor_step` is the 0-based step in `epoch` just consumed; `sample_ids_hash` is the SHA-256 hex of the shard's ids as
    little-endian int64, in order; `loss` is the rank's own mean loss, full precision, or with replicas the mean loss of each that it owns;
    `seconds` is the step's duration.

    What follows the step, on this rank: `lr`, the learning rate that the schedule left for the next step; `loss_scale` and `growth_tracker`, the
    gradient scaler's (fp16 only); and, behind the steps whose digests are due (`records.state_digests`), `state_digest` over parameters, buffers and
    optimizer, and `components`: a digest each of parameters, buffers, optimizer, rng (this rank's generators) and train (see `RankState`).
    """

    global_step: int
    epoch: int
    cursor_step: int
    rank: int
    world_size: int
    sample_ids_hash: str
    sample_ids_count: int
    loss: float | tuple[float, ...]
    attempt: int
    seconds: float
    at: float
    time: float
    state_digest: str | None = None
    inputs_hash: str | None = None
    components: dict[str, str] | None = None
    lr: float | None = None
    loss_scale: float | None = None
    growth_tracker: int | None = None


@dataclass(frozen=True)
class CheckpointLine:
    """One event in the life of one checkpoint: a line of `logs/attempt-NN/checkpoint_rank0.jsonl`.

    submitted: the training thread hands it over (`bytes`, `snapshot_s`, `serialize_s`, `backpressure_s`, `inflight` with this one);
    received: the writer has all of it; released: the training thread goes on (`enqueue_s`, `stall_s`, and `stall_parts`, which add up to it); then
    exactly one of committed (durable as the write mode promises: `write_s`, `hash_s`, `commit_s`, `commit_sha256`, `path`), failed (`reason`,
    `write_s`), lost (`reason`); later perhaps retired (retention removed it) and pointer_failed (latest.json or latest_ok could not be moved:
    `reason`). Rank 0 and the background writer share the file.
    Older records have no `stall_parts`, and waiting for hashes is in their `write_s`.
    """

    SHARED: ClassVar[bool] = True

    event: str
    global_step: int
    attempt: int
    at: float
    time: float
    snapshot_s: float = 0.0
    serialize_s: float = 0.0
    enqueue_s: float = 0.0
    backpressure_s: float = 0.0
    write_s: float = 0.0
    hash_s: float = 0.0
    commit_s: float = 0.0
    stall_s: float = 0.0
    stall_parts: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    inflight: int = 0
    path: str | None = None
    commit_sha256: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Span:
    """A stretch of one rank's time spent in one category: a line of `logs/attempt-NN/spans_rankR.jsonl`.

    The spans of a rank touch: each starts where the one before ended. `global_step` is the step being worked on.
    """

    category: str
    start: float
    end: float
    attempt: int
    global_step: int


@dataclass(frozen=True)
class InjectedFault:
    """`fired/NNN.json`: entry `index` of the plan struck; written and synced before the blow.

    `at_step`: the step that its victim was in or behind; `detail`: what exactly is hit, where the plan leaves that open.
    """

    index: int
    kind: str
    rank: int
    global_step: int
    attempt: int
    at: float
    time: float
    at_step: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class FinalState:
    """`logs/attempt-NN/final.json`: the target is reached and everything in flight is durable.

    `at` is the end of the goodput clock. Digests are SHA-256 over the sorted (name, tensor sha256) pairs of a component: rank 0's, and of all ranks'
    generators. `ranks`: what each rank ends in, gathered from all; empty in records of earlier versions.
    """

    global_step: int
    attempt: int
    at: float
    time: float
    parameters_digest: str
    buffers_digest: str
    optimizer_digest: str
    rng_digest: str
    loss: float
    accuracy: float | None = None
    ranks: tuple[RankState, ...] = ()


@dataclass(frozen=True)
class ResumedFrom:
    path: str
    commit_sha256: str


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that recovery refused, and the guard's layer that caught it."""

    path: str
    layer: str
    reason: str


@dataclass(frozen=True)
class SkippedSnapshot:
    """A whole snapshot in memory, of `attempt` behind `global_step`, that recovery refused, and why."""

    global_step: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Hang:
    """Why the supervisor took an attempt for hung: nothing moved for `waited_s` seconds where `limit_s` were allowed.

    `ranks`: who is to blame (empty: nobody in particular), `phase` and `global_step` where they are; `text` says it in words.
    """

    ranks: tuple[int, ...]
    phase: str
    global_step: int
    waited_s: float
    limit_s: float
    text: str


@dataclass(frozen=True)
class Straggler:
    """A rank that held the others up, reported and not killed: its own seconds per step before it met them, and theirs (median)."""

    rank: int
    global_step: int
    own_s: float
    others_s: float


@dataclass(frozen=True)
class Attempt:
    """One launch, or one going on of ranks that outlived others. `outcome`: running, completed, died, stopped, resized, hung, survived (ranks died,
    the others took the state in their memory along). `phases` in seconds.

    `exit_code` and `signal` are the first casualty's (an injected exit: 137 and none; a SIGKILL: none and 9).
    `first_step` and `last_step` are the first and last step that rank 0 logged, or None. `launched_at`, `ended_at`: monotonic.
    `continues`: the attempt whose state in memory this one began with, behind `resumed_from_step`; `memory`: whose memory that was: `survivors`
    (the ranks' own) or `snapshot` (kept beside them). `origins`: by rank, its rank in the attempt before (a newcomer: -1, or the rank whose place it
    takes); `joined`: the ranks that were warm spares. All empty where every process was started for this attempt.
    `snapshot_sha256`, `snapshot_state`: with memory `snapshot`, the SHA-256 of all that was gone on with, and the digest of parameters, buffers and
    optimizer in it (of the definition of a rank line's `state_digest`). `forgone`: snapshots that were whole, newer, and refused: never loaded.
    `resumed_state`: what the checkpoint or snapshot holds, a digest per component (`checkpoint.format.saved_state`), as the supervisor read it;
    empty where there was none, and in records of earlier versions.
    """

    attempt: int
    world_size: int
    exit_code: int | None = None
    signal: int | None = None
    rank: int | None = None
    outcome: str = "running"
    resumed_from_step: int = 0
    resumed_from: ResumedFrom | None = None
    rejected: tuple[Rejected, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    launched_at: float = 0.0
    ended_at: float | None = None
    session: int = 0
    hang: Hang | None = None
    stragglers: tuple[Straggler, ...] = ()
    continues: int | None = None
    memory: str = ""
    origins: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    snapshot_sha256: str = ""
    snapshot_state: str = ""
    forgone: tuple[SkippedSnapshot, ...] = ()
    resumed_state: dict[str, str] = field(default_factory=dict)


WRITERS_PER_ATTEMPT = 4  # background writers that one attempt starts at most: the first, and three replacements


@dataclass(frozen=True)
class SupervisorSession:
    """One supervisor's stay: monotonic `started_at`/`ended_at` (None: it was killed), wall `time`, `boot_id` of the clock.
    `code`: the SHA-256 of ECRL's source that ran (empty: its version did not record it).

    Written at its end (None: it was killed, or its version did not record it): `signals`, the stop signals that it received, in order,
    `writer_deaths`, how many background writers died without being told to, and `ended_time`, the wall time at `ended_at`.
    """

    started_at: float
    time: float
    boot_id: str
    ended_at: float | None = None
    signals: tuple[int, ...] | None = None
    writer_deaths: int | None = None
    code: str = ""
    ended_time: float | None = None


@dataclass(frozen=True)
class SupervisorRecord:
    """supervisor.json. `terminal_status`: running, completed, stopped, gave_up, refused; `reason` says why in words."""

    schema_version: int
    run_id: str
    target_steps: int
    terminal_status: str
    restarts: int
    attempts: tuple[Attempt, ...]
    sessions: tuple[SupervisorSession, ...]
    reason: str = ""


@dataclass(frozen=True)
class PlannedFailure:
    """One entry of the plan (failures.json): kind (`what`), rank (`who`), global step and moment (`when`).

    `others`: the ranks that go with `rank`; `node`: the agent goes too. `share`: how far into the moment, 0 to 1; `point`: where in the store's
    protocol; `seconds`: how long (slow kinds), or after how much supervised time (moment wall, whose global step is 0).
    """

    index: int
    kind: str
    rank: int
    global_step: int
    moment: str = "boundary"
    others: tuple[int, ...] = ()
    node: bool = False
    share: float = 0.0
    point: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class DatasetRecord:
    """dataset.json: `size` samples, `classes`, `shape` of one input (channels, height, width)."""

    name: str
    size: int
    classes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class DiskLine:
    """A line of disk.jsonl: what the device has done since it came up. `at`: monotonic; `time`: wall, to tell two boots apart.

    SHARED: a torn line in the middle, left by a full disk or a killed supervisor, is passed over.
    """

    SHARED: ClassVar[bool] = True

    at: float
    time: float
    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    busy_ms: int
