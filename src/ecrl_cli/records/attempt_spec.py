"""What the supervisor gives an attempt: `logs/attempt-NN/launch.json`, read once by every rank."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.records.events import PlannedFailure, ResumedFrom


@dataclass(frozen=True)
class AttemptSpec:
    """The launch parameters of one attempt, beside the run directory.

    `resume_step`: the checkpointed step to resume after; 0: start from scratch. `until`: the step after which the attempt ends so that the run
    can continue with another world size; None: it ends at the target. `max_step_seen`: the highest step that any attempt logged; steps up to it
    are replayed. `pending`: the planned faults that have not fired. `nodes`: the node of each rank in a multi-node run; `silent`: nodes of its
    allocation that did not answer before the launch.

    `continues`, `memory`, `origins`, `joined`, `snapshot_sha256`: see `Attempt`. If `memory` is `survivors`, the lowest rank that is not in
    `joined` holds the state. `restored_digests`: each rank that resumes records the state it then holds (`records.rank_state.RestoredState`);
    False in older records. `at`, `time`, `boot_id`: when this file was written (monotonic and wall seconds) and the boot of the monotonic
    clock; 0 and empty in older records.
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
