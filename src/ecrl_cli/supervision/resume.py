"""Before a launch: claim the store, choose the newest checkpoint that passes the integrity check,
write launch.json, quarantine rejected checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ecrl_cli.checkpoint.capture.shared_memory import (
    InvalidSnapshot,
    Snapshot,
    SnapshotContent,
    SnapshotPair,
)
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.names import DIGEST, step_name
from ecrl_cli.checkpoint.format.train_document import state_in
from ecrl_cli.checkpoint.store.catalog import ResumeChoice, newest_valid
from ecrl_cli.checkpoint.store.examination import CheckpointPrevalidator, Examination
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.config.codec import decode
from ecrl_cli.config.elastic import next_change, world_size_after
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import NoValidCheckpoint
from ecrl_cli.records.events import GONE, Attempt, RankLine, Rejected, ResumedFrom, SkippedSnapshot
from ecrl_cli.records.journal import read_journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.state_digests import Unloadable
from ecrl_cli.records.survivor_records import SNAPSHOT
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import acknowledge, still_kept
from ecrl_cli.supervision.in_place.regroup_plan import RegroupPlan, begin, write_order
from ecrl_cli.supervision.launch.slurm_allocation import NodePlacement

NOT_NAMED = "it is not the checkpoint that config.json names"


@dataclass(frozen=True)
class MemorySnapshotChoice:
    """A snapshot in memory to resume from: its attempt, step and content."""

    attempt: int
    global_step: int
    content: SnapshotContent


@dataclass(frozen=True)
class ResumePlan(ResumeChoice):
    """The state that an attempt resumes from. `snapshot`: one in memory that is newer than the
    checkpoint. `skipped`: newer ones that were rejected.
    """

    snapshot: MemorySnapshotChoice | None = None
    skipped: tuple[SkippedSnapshot, ...] = ()


def choose(
    layout: RunLayout,
    store: CheckpointStore,
    earlier: tuple[Attempt, ...],
    snapshots: SnapshotPair | None = None,
    session: int | None = None,
    ahead: CheckpointPrevalidator | None = None,
) -> ResumePlan:
    """Chooses the state that the attempt after `earlier` resumes from, acknowledged as committed.
    Newer acknowledged checkpoints that are gone count as rejected.

    With `snapshots`, a newer state in memory is preferred. Checkpoints acknowledged in `session`,
    this supervisor's own, are checked in one pass: all ranks wait for it, and each of them hashes
    what it loads. `ahead`: may have started that check already.

    NoValidCheckpoint (exit 4) if checkpoints were acknowledged and none can be loaded.
    """
    store.claim(len(earlier))
    kept = still_kept(layout, earlier)
    mine = {a.attempt for a in earlier if a.session == session}
    ours = {step_name(step) for step, line in kept.items() if line.attempt in mine}

    unloadable = _unloadable(layout) if store.config.integrity.checkpointer else {}
    examination = Examination(
        store, {step: line.commit_sha256 for step, line in kept.items()}, ours, unloadable, ahead
    )
    choice = newest_valid(store.fs, store.root, examination.verify)
    there = {entry.global_step for entry in store.entries()}
    newest = choice.report.global_step or 0 if choice.report else 0
    lost = [step for step in sorted(kept, reverse=True) if step > newest and step not in there]
    gone = tuple(
        Rejected(kept[step].path or f"checkpoints/{step_name(step)}", "file", GONE) for step in lost
    )
    snapshot, skipped = (
        newest_snapshot(
            layout, snapshots, newest, store.config.integrity.finite, store.config.digest
        )
        if snapshots
        else (None, ())
    )
    if choice.report is None and kept and snapshot is None:
        remedy = "restore them or start a new run; `ecrl verify` tells more, nothing was changed"
        raise NoValidCheckpoint("checkpoints", _refused(choice.rejected, gone), remedy)
    # what is kept is on the log, with this commit
    if choice.report and choice.report.global_step not in kept:
        acknowledge(layout, choice.report)
    return ResumePlan(choice.report, choice.rejected + gone, snapshot, skipped)


def or_initial(
    choice: ResumePlan, layout: RunLayout, config: RunConfig, store: CheckpointStore
) -> ResumePlan:
    """`choice`; where it has nothing to resume from, the checkpoint of another run that this one
    begins with, if it begins with one.

    NoValidCheckpoint (exit 4) if that is not the one that config.json names, or is damaged.
    """
    if not config.begins_from or choice.report or choice.snapshot:
        return choice
    path, commit_sha256, run_id = config.begins_from
    report = verify_checkpoint(
        layout.root / path, replace(store.config.integrity, run_id=run_id), store.fs
    )
    if not report.ok or report.commit_sha256 != commit_sha256:
        fact = f"the run begins with it, and {report.reason or NOT_NAMED}"
        raise NoValidCheckpoint(path, fact, f"remove {layout.root} and train it again")
    return replace(choice, report=report)


def _unloadable(layout: RunLayout) -> dict[str, str]:
    """Why a rank of an earlier attempt could not load a checkpoint, by its SHA-256."""
    folders = [layout.attempt(number) for number in layout.attempts()]
    found = [
        decode(Unloadable, read_json(logs.unloadable(rank)))
        for logs in folders
        for rank in logs.with_unloadable()
    ]
    return {each.commit_sha256: each.reason for each in found}


def quarantine_rejected(
    layout: RunLayout, store: CheckpointStore, rejected: tuple[Rejected, ...]
) -> None:
    """Quarantine the rejected checkpoints, because those steps will be saved again. Call after the
    rejection is recorded.
    """
    for each in rejected:
        store.quarantine(layout.root / each.path)


def order(
    layout: RunLayout,
    config: RunConfig,
    earlier: tuple[Attempt, ...],
    choice: ResumePlan,
    placement: NodePlacement | None = None,
    regroup: RegroupPlan | None = None,
) -> AttemptSpec:
    """Write launch.json of the next attempt, durably, and return its content.

    The world size is the schedule's at the resumed step (a run that falls back to before a planned
    change reaches it again), or with several nodes that of `placement`. `regroup`: the processes
    that are already there.
    """
    report, snapshot = choice.report, choice.snapshot
    step = snapshot.global_step if snapshot else report.global_step or 0 if report else 0
    begun = begin(
        layout,
        earlier,
        placement.world_size if placement and placement.nodes else world_size_after(config, step),
        step,
    )
    spec = replace(
        begun,
        resume_from=(
            ResumedFrom(layout.relative(report.path), report.commit_sha256 or "")
            if report and not snapshot
            else None
        ),
        until=next_change(config, step),
        nodes=placement.nodes if placement else (),
        silent=placement.silent if placement else (),
        continues=snapshot.attempt if snapshot else None,
        memory=SNAPSHOT if snapshot else "",
        snapshot_sha256=snapshot.content.sha256 if snapshot else "",
        origins=regroup.origins if regroup else (),
        joined=regroup.joined if regroup else (),
    )
    return write_order(layout, spec)


def state_of(layout: RunLayout, choice: ResumePlan) -> dict[str, str]:
    """Digests by component of the state that is resumed from; empty if there is none.

    Of what another checkpointer wrote: what the ranks logged after the step that they saved; empty
    if they logged none after that step.
    """
    if choice.snapshot:
        return choice.snapshot.content.state
    if (
        choice.report
        and choice.report.ok
        and choice.report.manifest is None
        and choice.report.attempt is not None
    ):
        return _logged(layout, choice.report.attempt, choice.report.global_step or 0)
    if choice.report is None or choice.report.manifest is None:
        return {}
    return state_in(choice.report.manifest, choice.report.train)


def _logged(layout: RunLayout, attempt: int, step: int) -> dict[str, str]:
    """The state after `step` as the ranks of `attempt` logged it: rank 0's, and each rank's
    generators. Empty unless rank 0 logged it.
    """
    logs = layout.attempt(attempt)
    lines = {
        rank: line
        for rank in logs.ranks()
        for line in read_journal(logs.rank(rank), RankLine).events
        if line.global_step == step
    }
    own = {rank: line.components for rank, line in lines.items() if line.components}
    if 0 not in own:
        return {}
    return {
        **{name: value for name, value in own[0].items() if name != "rng"},
        **{f"rng.rank{rank}": each["rng"] for rank, each in own.items()},
    }


def _refused(rejected: tuple[Rejected, ...], gone: tuple[Rejected, ...]) -> str:
    each = "; ".join(f"{r.path} ({r.layer}: {r.reason})" for r in (*rejected, *gone)[:3])
    return f"{len(rejected)} found, 0 valid: {each}"


def newest_snapshot(
    layout: RunLayout,
    snapshots: SnapshotPair,
    behind: int,
    finite: str = "all",
    digest: str = DIGEST,
) -> tuple[MemorySnapshotChoice | None, tuple[SkippedSnapshot, ...]]:
    """The newest valid snapshot of a step after `behind`, and the newer ones that were rejected,
    which are withdrawn.

    `finite`, `digest`: as in CheckpointConfig.

    Only while no rank lives, so that nothing writes to the snapshots.
    """
    skipped: list[SkippedSnapshot] = []
    for snapshot in snapshots.whole():
        if snapshot.global_step <= behind:
            break
        try:
            return MemorySnapshotChoice(
                snapshot.attempt, snapshot.global_step, _sound(layout, snapshot, finite, digest)
            ), tuple(skipped)
        except InvalidSnapshot as unsound:
            snapshots.withdraw(snapshot.number)
            skipped.append(SkippedSnapshot(snapshot.global_step, snapshot.attempt, str(unsound)))
    return None, tuple(skipped)


def _sound(layout: RunLayout, snapshot: Snapshot, finite: str, digest: str) -> SnapshotContent:
    """The snapshot's content.

    InvalidSnapshot if it is not finite, or differs from the state that rank 0 logged for its step
    (`state_digests`; not compared where not logged).
    """
    snapshot.check_finite(finite)
    try:
        step = parse(snapshot.train)["global_step"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSnapshot(f"its train.json cannot be read ({error})") from error
    if step != snapshot.global_step:
        raise InvalidSnapshot(f"its train.json is of step {step}")
    content = snapshot.content(digest)
    lines = read_journal(layout.attempt(snapshot.attempt).rank(0), RankLine).events
    line = next(
        (line for line in reversed(lines) if line.global_step == snapshot.global_step), None
    )
    if line is None:
        raise InvalidSnapshot("rank 0 logged no such step")
    if line.state_digest not in (None, content.state_digest):
        raise InvalidSnapshot("its state is not the one that rank 0 logged")
    return content
