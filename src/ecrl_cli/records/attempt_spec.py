"""What the supervisor tells an attempt: `logs/attempt-NN/launch.json`, read once by every rank."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.records.events import PlannedFailure, ResumedFrom


@dataclass(frozen=True)
class AttemptSpec:
    """The one argument of an attempt beside the run directory.

    `resume_step` 0 means from the beginning. `until`: the step behind which the attempt ends so that another number of ranks can go on;
    None: it ends at the target. `max_step_seen` is the highest step any attempt logged: steps up to it are replayed.
    `pending` are the planned failures that have not fired. `nodes`: where the ranks sit, in a run with several nodes; `silent`: which nodes
    of its allocation did not answer before the launch.
    `continues`, `memory`, `origins`, `joined`, `snapshot_sha256`: see `Attempt`. Where `memory` is `survivors`, the lowest rank that has not joined
    has the state. `restored_digests`: each rank that resumes from something records what it then holds (`records.rank_state.RestoredState`); False in
    older records. `at`, `time`, `boot_id`: when the order was written, by both clocks, and the boot of the former; 0 and empty in older records.
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
