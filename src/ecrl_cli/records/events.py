"""The events of a run as frozen data: one class per kind of line or document in a run directory.

Times: `at` is CLOCK_MONOTONIC in seconds (shared by all processes of one boot), `time` is Unix wall
time in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ecrl_cli.records.state_digests import RankState
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVED, SURVIVORS

SCHEMA_VERSION = 1

# The categories of rank 0's wall time (promise 4), as used in `spans_rank0.jsonl` and metrics.json.
CATEGORIES = (
    "compute",
    "snapshot",
    "serialize",
    "enqueue",
    "backpressure",
    "write_wait",
    "sync",
    "evaluate",
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

# The parts of a stall, and the category of rank 0's spans that holds each: write (the files), hash
# (waiting for their hashes), commit (everything else up to the acknowledgement), settle (the
# journal, the pointers, retention), barrier (waiting for the other ranks), copy_wait (with
# checkpoint.capture=deferred: waiting, right before the next update, until the writer has copied
# the state).
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
    "copy_wait": "write_wait",
}
COPY_WAIT = "copy_wait"

# Reasons that recovery writes and verify reads. GONE: of a rejection, an acknowledged checkpoint is
# missing. FOUND: of an acknowledgement made after the save was recorded as failed (its name was not
# known to be durable, but it is there).
GONE, FOUND = "is gone", "found after a failed save"
# How a save ended whose writer had died: by what the store held when the supervisor, or the next
# writer, looked. FOUND too is written then.
LEFT_WHOLE, LEFT_UNCOMMITTED = "found after the death of who wrote it", "died before the commit"
RECONCILED = (FOUND, LEFT_WHOLE, LEFT_UNCOMMITTED)
# the layer of a rejection: the checkpointer that wrote the files could not load them
# (`records.state_digests.Unloadable`)
LOADER = "loader"

# The words allowed in records; any other is an error.
OUTCOMES = ("running", "completed", "died", "stopped", "resized", "hung", SURVIVED)
TERMINAL_STATUSES = ("running", "completed", "stopped", "gave_up", "refused")
MEMORIES = ("", SURVIVORS, SNAPSHOT)
CHECKPOINT_EVENTS = (
    "submitted",
    "received",
    "released",
    "waited",
    *CHECKPOINT_ENDS,
    "retired",
    "pointer_failed",
)

# Categories that no rank records: derived from the supervisor's record, or from which steps are
# replayed.
DERIVED = ("launch", "detect", "replay")
RANK_CATEGORIES = tuple(category for category in CATEGORIES if category not in DERIVED)

TARGET_REACHED = "target reached"  # the reason of every completed run


@dataclass(frozen=True)
class RankLine:
    """One committed step of one rank: a line of `logs/attempt-NN/rankR.jsonl`.

    `cursor_step`: the 0-based step in `epoch` just consumed. `sample_ids_hash`: SHA-256 hex of the
    shard's sample ids as little-endian int64, in order. `inputs_hash`: of its inputs, see
    `data.loading`; `targets_hash`: likewise of what they are to give, None in older records.
    `loss`: the rank's own mean loss at full precision, or with replicas the mean loss of each
    replica that it owns. `seconds`: the step's duration.

    State after the step, on this rank: `lr`, the learning rate set for the next step; `loss_scale`
    and `growth_tracker` of the gradient scaler (fp16 only). After steps whose digests are due
    (`records.state_digests`): `state_digest` over parameters, buffers and optimizer, and
    `components`, one digest each of parameters, buffers, optimizer, rng (this rank's generators)
    and train (see `RankState`).
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
    targets_hash: str | None = None


@dataclass(frozen=True)
class CheckpointLine:
    """One event in the life of one checkpoint: a line of `logs/attempt-NN/checkpoint_rank0.jsonl`.

    submitted: the training thread hands it over (`bytes`, `snapshot_s` and, of it, `copy_s` in
    copying the tensors, on a GPU from device to host; `serialize_s`, `backpressure_s`, `inflight`
    with this one); received: the writer has all of it; released: the training thread goes on
    (`enqueue_s`, `stall_s`, and `stall_parts`, which add up to it). With
    checkpoint.capture=deferred `submitted` says how many bytes the writer copies while training
    goes on (`deferred_bytes`), or why none (`reason`); waited: the training thread stood before the
    next update until they were copied (`stall_s`, `stall_parts`), more of the same stall. Then
    exactly one of committed (durable as the write mode promises: `write_s`, `hash_s`, `commit_s`,
    `commit_sha256`, `path`; `saved_state`, one digest per component as in `Attempt.resumed_state`,
    empty in older records and where another checkpointer wrote), failed (`reason`, `write_s`), lost
    (`reason`). Later possibly retired (removed by retention) and pointer_failed (latest.json or
    latest_ok could not be updated: `reason`).

    Rank 0 and the background writer share the file. Older records have no `stall_parts`, and their
    `write_s` includes waiting for hashes.
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
    deferred_bytes: int = 0
    inflight: int = 0
    path: str | None = None
    commit_sha256: str | None = None
    reason: str | None = None
    copy_s: float = 0.0
    saved_state: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """A stretch of one rank's time spent in one category: a line of
    `logs/attempt-NN/spans_rankR.jsonl`.

    The spans of a rank are contiguous: each starts where the previous one ended. `global_step` is
    the step being worked on.
    """

    category: str
    start: float
    end: float
    attempt: int
    global_step: int


@dataclass(frozen=True)
class InjectedFault:
    """`fired/NNN.json`: entry `index` of the plan fired; written and synced before the fault is
    injected.

    `at_step`: the step that the target rank was in or had just finished; `detail`: what exactly is
    hit, where the plan leaves that open.
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

    `at` ends the goodput clock. Digests are SHA-256 over the sorted (name, tensor's digest) pairs
    of a component on rank 0; `rng_digest` covers the generators of all ranks. `accuracy`: on
    held-out data at the target, where it was measured. `ranks`: the final state of each rank,
    gathered from all; empty in older records.
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
    """A checkpoint that recovery rejected, and the layer of the integrity check that caught it."""

    path: str
    layer: str
    reason: str


@dataclass(frozen=True)
class SkippedSnapshot:
    """A complete in-memory snapshot, taken by `attempt` after `global_step`, that recovery
    rejected, and why.
    """

    global_step: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Hang:
    """Why the supervisor judged an attempt hung: no progress for `waited_s` seconds where `limit_s`
    were allowed.

    `ranks`: the ranks to blame (empty: none identified); `phase` and `global_step`: where they are;
    `text`: a description.
    """

    ranks: tuple[int, ...]
    phase: str
    global_step: int
    waited_s: float
    limit_s: float
    text: str


@dataclass(frozen=True)
class Straggler:
    """A rank that held the others up, reported but not killed: its own seconds per step before it
    waits for the others, and theirs (median).
    """

    rank: int
    global_step: int
    own_s: float
    others_s: float


@dataclass(frozen=True)
class Attempt:
    """One attempt: a launch, or an in-place continuation by surviving ranks.

    `outcome`: running, completed, died, stopped, resized, hung, survived (ranks died, the others
    kept their state in memory and continued). `phases` in seconds.

    `exit_code` and `signal` are those of the first rank that died (an injected exit: 137 and none;
    a SIGKILL: none and 9). `first_step` and
    `last_step`: the first and last step that rank 0 logged, or None. `launched_at`, `ended_at`:
    monotonic seconds.

    `continues`: the attempt whose in-memory state this one started from, after `resumed_from_step`.
    `memory`: the source of that state: `survivors` (the ranks' own memory) or `snapshot` (a copy
    kept beside them). `origins`: by rank, its rank in the previous attempt (a new rank: -1, or the
    rank that it replaces); `joined`: the ranks that were warm spares. All empty if every process
    was started for this attempt.

    `snapshot_sha256`, `snapshot_state`: with memory `snapshot`, the SHA-256 of everything that was
    resumed from, and the digest of its parameters, buffers and optimizer (as a rank line's
    `state_digest`). `forgone`: newer complete snapshots that were rejected and never loaded.
    `resumed_state`: one digest per component of the checkpoint or snapshot
    (`checkpoint.format.saved_state`), as the supervisor read it; empty if there was none, and in
    older records.
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


# background writers that one attempt starts at most: the first, and three replacements
WRITERS_PER_ATTEMPT = 4


@dataclass(frozen=True)
class SupervisorSession:
    """One supervisor process: monotonic `started_at`/`ended_at` (None: it was killed), wall `time`,
    `boot_id` of the clock.

    `code`: SHA-256 of the ECRL source that ran (empty: not recorded by that version). Written at
    its end (None: it was killed, or not recorded by that version): `signals`, the stop signals
    received, in order; `writer_deaths`, how many background writers died without being told to;
    `ended_time`, the wall time at `ended_at`.

    `composed`: SHA-256 of what Hydra composed for the run (`records.digests.composed_sha256`) when
    the session began; empty: it was made without Hydra, or not recorded by that version.
    """

    started_at: float
    time: float
    boot_id: str
    ended_at: float | None = None
    signals: tuple[int, ...] | None = None
    writer_deaths: int | None = None
    code: str = ""
    ended_time: float | None = None
    composed: str = ""


@dataclass(frozen=True)
class SupervisorRecord:
    """supervisor.json. `terminal_status`: running, completed, stopped, gave_up, refused; `reason`:
    why, as text.
    """

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
    """One entry of the fault plan (failures.json): kind (`what`), rank (`who`), global step and
    moment (`when`).

    `others`: the ranks that fail with `rank`; `node`: the node's agent fails too. `share`: how far
    into the moment, 0 to 1; `point`: where in the store's protocol; `seconds`: duration (slow
    kinds), or after how much supervised time (moment wall, whose global step is 0).
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
    """dataset.json: `size` samples, `classes`, `shape` of one input (of a picture: channels,
    height, width).

    `inputs`, `targets`: their dtypes; `target_shape`: of one target. Records of earlier versions do
    not have these: all were pictures with classes.
    """

    name: str
    size: int
    classes: int
    shape: tuple[int, ...]
    inputs: str = "float32"
    targets: str = "int64"
    target_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class DiskLine:
    """A line of disk.jsonl: the device's counters since it came up. `at`: monotonic; `time`: wall,
    to distinguish two boots.

    SHARED: a torn line in the middle, left by a full disk or a killed supervisor, is skipped.
    """

    SHARED: ClassVar[bool] = True

    at: float
    time: float
    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    busy_ms: int


@dataclass(frozen=True)
class ScrubLine:
    """A line of scrub.jsonl: a scrub that took `seconds` and read `looked` checkpoints; `damaged`:
    what was refused and why, and wrong pointers.
    """

    SHARED: ClassVar[bool] = True

    at: float
    time: float
    seconds: float
    looked: int
    damaged: tuple[str, ...] = ()
