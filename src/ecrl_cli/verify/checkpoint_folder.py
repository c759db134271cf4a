"""Compares the checkpoint folder with the journals: no unaccounted checkpoint, sizes as recorded,
pointers that name existing checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import LATEST, LATEST_OK, LEASE, STAGE_PREFIX, STEP_NAME
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import RecordError, plural, shown
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.safe_read import parsed, read_whole
from ecrl_cli.verify.disk_state import names_in
from ecrl_cli.verify.rank_spans import APART_S
from ecrl_cli.verify.retention import step_of
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events

_MAX_POINTER = 4096


def check_folder(case: Case, notes: FindingBuilder) -> None:
    """Check every checkpoint name, sizes, the two pointers and the fencing file."""
    if not case.ended or not case.run.layout.checkpoints.is_dir():
        return
    _check_names(case, notes)
    _check_sizes(case, notes)
    _check_pointers(case, notes)
    _check_lease(case, notes)


def writer_died(case: Case) -> bool:
    """Whether a background writer may have died without a trace in the journals. A count of None: a
    record from before deaths were counted.
    """
    return strategy_of(case.run.stored.config).needs_writer and any(
        session.writer_deaths != 0 for session in case.run.sessions
    )


def lost_power(case: Case) -> bool:
    """Whether the machine rebooted during the run: a name removed but not yet synced may be
    back.
    """
    return len({session.boot_id for session in case.run.sessions}) > 1


def tail_may_be_lost(case: Case, attempt: int) -> bool:
    """Whether the last lines of the attempt's logs may never have reached the disk, as where the
    disk failed or power was lost: nothing records the end of its supervisor. Not in a run that is
    still running.
    """
    a = case.attempt(attempt)
    session = case.run.session_of(a) if a else None
    running = case.live and session is not None and session is case.run.sessions[-1]
    return session is not None and session.ended_at is None and not running


def tails_may_be_lost(case: Case, until: int) -> bool:
    """Whether that may be so of any attempt up to `until`."""
    return any(a.attempt <= until and tail_may_be_lost(case, a.attempt) for a in case.attempts)


def _check_names(case: Case, notes: FindingBuilder) -> None:
    mode, history = case.run.stored.config.write_mode, case.checkpoints
    installed_whole = (
        mode.atomic
        and mode.sync_directories
        and case.run.stored.config.checkpoint.layout == "group"
    )
    refused = {step_of(rejected.path) for a in case.attempts for rejected in a.rejected}
    failed = {
        line.global_step for line in checkpoint_events(case.run) if line.event in ("failed", "lost")
    }
    _check_superfluous(case, failed, notes)
    # each attempt removes what others left, and each save its own
    left = [name for name in names_in(case.run) if name.startswith(STAGE_PREFIX)]
    if left and case.completed and not writer_died(case):
        notes.missing(f"checkpoints/{left[0]} is there, of a save that had ended")
    for c in case.disk:
        if c.step in history.end.retired and not lost_power(case):
            notes.broken(
                f"{c.path} is there, attempt {history.end.retired[c.step].attempt} says that it was"
                " retired"
            )
        elif (
            not c.report.ok
            and c.step not in history.end.live
            and c.step not in refused | failed
            and installed_whole
        ):
            notes.broken(
                f"{c.path} lies there, no line accounts for it, and the integrity check refuses it:"
                f" {c.report.layer}: {c.report.reason}"
            )


def _check_superfluous(case: Case, failed: set[int], notes: FindingBuilder) -> None:
    """A run that came to its end kept no more than it was to: retention removes all others with the
    last save, unless a writer or the disk failed.
    """
    if (
        not case.completed
        or failed
        or writer_died(case)
        or any(line.event == "pointer_failed" for line in checkpoint_events(case.run))
    ):
        return
    for step, attempt in sorted(case.checkpoints.end.superfluous.items()):
        a, there = (
            case.attempt(attempt),
            next((c for c in case.disk if c.step == step and c.report.ok), None),
        )
        if there and step in case.checkpoints.end.live and a is case.attempts[-1]:
            notes.broken(
                f"{there.path} is there, and {case.checkpoints.end.keep} newer ones are: retention"
                " was to remove it"
            )


def _check_sizes(case: Case, notes: FindingBuilder) -> None:
    """The manifest has the attempt that committed it, and as many bytes as were submitted and
    committed, if the journal line is of the checkpoint on disk.
    """
    submitted = {
        (line.attempt, line.global_step): line.bytes
        for line in checkpoint_events(case.run)
        if line.event == "submitted"
    }
    for c in case.disk:
        line = case.checkpoints.end.live.get(c.step)
        if (
            line is None
            or not c.report.ok
            or c.report.manifest is None
            or line.commit_sha256 != c.report.commit_sha256
        ):
            continue
        if line.reason is None and c.report.manifest.attempt != line.attempt:
            notes.broken(
                f"step {c.step} was committed in attempt {line.attempt}, the manifest of {c.path}"
                f" says attempt {c.report.manifest.attempt}"
            )
        size = sum(part.bytes for part in c.report.manifest.parts.values())
        recorded = {"submitted": submitted.get((line.attempt, c.step), 0), "committed": line.bytes}
        for event, count in recorded.items():
            # 0: reconciliation, or a save without a writer, did not know the size
            if count and count != size:
                notes.broken(
                    f"step {c.step} was {event} with {count} bytes, the manifest of {c.path} says"
                    f" {size}"
                )
        if line.reason is None and not line.bytes:
            notes.broken(
                f"step {c.step} was committed with no bytes, the manifest of {c.path} says {size}"
            )


def _check_pointers(case: Case, notes: FindingBuilder) -> None:
    """latest.json and latest_ok are hints, but must not be wrong: what they name exists, or was
    rejected since.

    After a completed run they name the newest checkpoint, unless a line says that they could not be
    updated.
    """
    folder = case.run.layout.checkpoints
    pointers: dict[str, str] = {}
    if (folder / LATEST).exists():
        document = _small(folder / LATEST)
        name = document.get("path") if isinstance(document, dict) else None
        if (
            not isinstance(name, str)
            or not STEP_NAME.match(name)
            or document.get("global_step") != step_of(name)
        ):
            notes.broken(f"{LATEST} is no pointer to a checkpoint and its step")
        else:
            pointers[LATEST] = name
            _check_facts(case, name, document, notes)
    elif _pointed_to(case) and not strategy_of(case.run.stored.config).checkpointer:
        notes.missing(f"{LATEST} is not there, and no line says that it could not be written")
    if (folder / LATEST_OK).is_symlink():  # a copy of the run may have followed the link
        pointers[LATEST_OK] = str((folder / LATEST_OK).readlink())
    there = {Path(c.path).name for c in case.disk}
    refused = {Path(rejected.path).name for a in case.attempts for rejected in a.rejected}
    due = _pointed_to(case)
    for pointer, name in pointers.items():
        if name not in there | refused:
            notes.broken(
                f"{pointer} names {name[:80]!r}, which is not there and was refused by no attempt"
            )
        elif due is not None and name != due:
            notes.broken(
                f"{pointer} names {name[:80]}, the newest checkpoint of the completed run is {due}"
            )


def _check_facts(case: Case, name: str, document: dict[str, Any], notes: FindingBuilder) -> None:
    """Checks that latest.json agrees with the manifest of its checkpoint, and was written after the
    commit, before the end of the run.
    """
    manifest = next(
        (c.report.manifest for c in case.disk if Path(c.path).name == name and c.report.ok), None
    )
    for key in ("epoch", "world_size") if manifest else ():
        if document.get(key) != getattr(manifest, key) or type(document.get(key)) is not int:
            notes.broken(
                f"{LATEST} says {key} {shown(document.get(key))}, {name} is of"
                f" {getattr(manifest, key)}"
            )
    written, ends = document.get("timestamp"), [session.ended_time for session in case.run.sessions]
    since = [
        line.time
        for line in checkpoint_events(case.run)
        if line.event == "committed" and line.path and Path(line.path).name == name
    ]
    if not isinstance(written, (int, float)) or isinstance(written, bool):
        notes.broken(f"{LATEST} says that it was written at {shown(written)}")
    elif (since and written < min(since) - APART_S) or (
        ends and ends[-1] and written > ends[-1] + APART_S
    ):
        notes.missing(
            f"{LATEST} says that it was written at {written:.3f}, {name} was committed at"
            f" {min(since, default=0.0):.3f} by the wall clock"
        )


def _pointed_to(case: Case) -> str | None:
    """The name that the pointers must have, or None if they may lag behind."""
    if not case.completed or writer_died(case):
        return None
    lines = case.run.logs(case.attempts[-1].attempt).checkpoints.events if case.attempts else ()
    newest: CheckpointLine | None = None
    for line in lines:
        if line.event == "committed":
            newest = line
        elif line.event == "pointer_failed":
            newest = None
    return Path(newest.path).name if newest and newest.path and newest.reason is None else None


def _check_lease(case: Case, notes: FindingBuilder) -> None:
    """The fencing file names the newest attempt that claimed the store: not older than one that
    committed, nor one that never existed.
    """
    path = case.run.layout.checkpoints / LEASE
    if not path.exists():
        return
    document = _small(path)
    holder = document.get("attempt") if isinstance(document, dict) else None
    committed = [
        line.attempt
        for line in checkpoint_events(case.run)
        if line.event == "committed" and line.reason is None
    ]
    if type(holder) is not int:
        notes.broken(f"checkpoints/{LEASE} names no attempt")
    elif not max(committed, default=0) <= holder <= len(case.attempts):
        known = (
            f"attempt {max(committed, default=0)} has committed, and"
            f" {plural(len(case.attempts), 'attempt is', 'attempts are')} on record"
        )
        notes.broken(f"checkpoints/{LEASE} names attempt {holder}, {known}")


def _small(path: Path) -> Any:
    try:
        return parsed(read_whole(path, _MAX_POINTER))
    except (RecordError, OSError, ValueError):
        return None
