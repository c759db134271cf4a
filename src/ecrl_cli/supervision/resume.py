"""Before a launch: own the store, choose the newest checkpoint that passes the guard, write the order, set aside what did not pass."""

from __future__ import annotations

from ecrl_cli.checkpoint.catalog import Choice
from ecrl_cli.checkpoint.store import CheckpointStore
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import NoValidCheckpoint
from ecrl_cli.failures.fired import fired_indices
from ecrl_cli.failures.plan import pending, read_plan
from ecrl_cli.records.events import Attempt, Rejected, ResumedFrom
from ecrl_cli.records.launch import LaunchOrder
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.books import still_kept


def choose(layout: RunLayout, store: CheckpointStore, attempt: int) -> Choice:
    """What `attempt` resumes from. NoValidCheckpoint (exit 4) where acknowledged checkpoints are there and none may be loaded."""
    store.claim(attempt)
    choice = store.newest_valid()
    if choice.report is None and choice.rejected and still_kept(layout):
        raise NoValidCheckpoint("checkpoints", _refused(choice.rejected), "run `ecrl verify` on the run directory; nothing was changed")
    return choice


def set_aside(layout: RunLayout, store: CheckpointStore, rejected: tuple[Rejected, ...]) -> None:
    """Move what was refused out of the way of the replay that will commit those steps again; after the refusal is on record."""
    for each in rejected:
        store.set_aside(layout.root / each.path)


def order(layout: RunLayout, world_size: int, earlier: tuple[Attempt, ...], choice: Choice) -> LaunchOrder:
    """Write what the next attempt is to do to its launch.json, durably, and give it."""
    report, attempt = choice.report, len(earlier)
    made = LaunchOrder(
        attempt=attempt,
        world_size=world_size,
        resume_step=report.global_step or 0 if report else 0,
        resume_from=ResumedFrom(layout.relative(report.path), report.commit_sha256 or "") if report else None,
        max_step_seen=max((a.last_step or 0 for a in earlier), default=0),
        pending=pending(read_plan(layout), fired_indices(layout)),
    )
    logs = layout.attempt(attempt)
    logs.folder.mkdir(parents=True, exist_ok=True)
    write_json(logs.launch, encode(made))
    return made


def _refused(rejected: tuple[Rejected, ...]) -> str:
    each = "; ".join(f"{r.path} ({r.layer}: {r.reason})" for r in rejected[:3])
    return f"{len(rejected)} found, 0 valid: {each}"
