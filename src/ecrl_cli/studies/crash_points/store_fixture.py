"""A run whose store holds two checkpoints, for a crash, and the inspection of what is left.
Torch-free.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import parse_canonical
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST
from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import EcrlError
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.frame.store_fixture import Payload, files_of, litter, store_config

HISTORY, STEP = (10, 20), 30
# the attempts: the one with the history, the killed one, and the next one
BEFORE, VICTIM, AFTER = 0, 1, 2
BACK_TO_BACK = 24  # more saves than a writer finishes before the latest kill


@dataclass(frozen=True)
class Expected:
    """The checkpoint that recovery must find for a step: the digests in its manifest and the exact
    bytes of its files, without records and sidecars.
    """

    components: Components
    files: dict[str, bytes]

    def lies_at(self, path: Path) -> bool:
        try:
            return all(
                (path if path.suffix else path / name).read_bytes() == data
                for name, data in self.files.items()
            )
        except OSError:
            return False


@cache
def expected_of(payload: Payload, layout: str, step: int) -> Expected:
    return Expected(payload.content(layout, step), files_of(payload.image(layout, step)))


def log_of(layout: RunLayout, attempt: int) -> CheckpointLog:
    return CheckpointLog(Journal(layout.attempt(attempt).checkpoints), layout, attempt)


class CommittedRun:
    """The files of a run that has committed the steps of HISTORY, in memory: every trial gets its
    own copy.
    """

    def __init__(self, folder: Path, payload: Payload, layout: str) -> None:
        folder.mkdir()
        run = RunLayout(folder)
        with (
            closing(CheckpointStore(run.checkpoints, store_config("atomic_dirsync"))) as store,
            closing(log_of(run, BEFORE)) as log,
        ):
            store.claim(BEFORE)
            for step in HISTORY:
                assert save_and_record(store, payload.image(layout, step), BEFORE, log)
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*"))
        self._folders = [
            path for path in paths if (folder / path).is_dir() and not (folder / path).is_symlink()
        ]
        self._links = [
            (path, (folder / path).readlink()) for path in paths if (folder / path).is_symlink()
        ]
        self._files = [
            (path, (folder / path).read_bytes())
            for path in paths
            if (folder / path).is_file() and not (folder / path).is_symlink()
        ]

    def lay(self, root: Path) -> None:
        """Write a fresh copy to `root`."""
        for folder in (root, *(root / path for path in self._folders)):
            folder.mkdir(0o700)
        for path, target in self._links:
            (root / path).symlink_to(target)
        for path, data in self._files:
            fd = os.open(root / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, data)
            os.close(fd)


@dataclass
class Found:
    """The result of recovery. `rejected`: layer and reason of each rejection, and the state of the
    files (`remains`).

    `half`: names that count but are no whole checkpoints, in atomic modes (groups). `again`: how
    the next attempt's save of the same step failed (empty: it succeeded); `left`: leftovers besides
    checkpoints.
    """

    outcome: str
    step: int | None = None
    acknowledged: int = -1
    reason: str = ""
    rejected: list[dict[str, str]] = field(default_factory=list)
    half: list[str] = field(default_factory=list)
    again: str = ""
    left: list[str] = field(default_factory=list)


def acknowledged(run: RunLayout) -> int:
    """The newest step recorded as committed; recovery may not return an older one."""
    lines = (
        line
        for attempt in run.attempts()
        for line in read_journal(run.attempt(attempt).checkpoints, CheckpointLine).events
    )
    return max(line.global_step for line in lines if line.event == "committed")


def recover(
    run: RunLayout, store: CheckpointStore, expected: Callable[[int], Expected | None]
) -> Found:
    """Recover as the supervisor does before a relaunch: claim the store, choose with the integrity
    check. `expected` gives what a really saved step must hold, else None; the check's verdict is
    not relied on.
    """
    acked = acknowledged(run)
    try:
        store.claim(AFTER)
        choice = store.newest_valid()
    except EcrlError as error:
        return Found("detected", acknowledged=acked, reason=_plain(error.line(), run))
    except Exception as error:
        return Found("untyped", acknowledged=acked, reason=f"{type(error).__name__}: {error}")
    rejected = [
        {"path": Path(r.path).name, "layer": r.layer, "reason": _plain(r.reason, run)}
        for r in choice.rejected
    ]
    report = choice.report
    if report is None or report.global_step is None:
        return Found("lost_all", None, acked, rejected=rejected)
    step = report.global_step
    wanted = expected(step)
    if (
        wanted is None
        or report.manifest is None
        or components(report.manifest) != wanted.components
        or not wanted.lies_at(report.path)
    ):
        outcome = "silent_wrong"
    elif step < acked:
        outcome = "lost_ack"
    else:
        outcome = "new" if step >= STEP else "previous"
    return Found(outcome, step, acked, rejected=rejected)


def half_written(store: CheckpointStore, found: Found) -> list[str]:
    """Names in the store that claim to be checkpoints but are not: the rejected ones, and older
    ones with a missing part.
    """
    newest = STEP if found.step is None else found.step
    quick = replace(store.config.integrity, contents=False)
    older = [entry.path for entry in store.entries() if entry.global_step < newest]
    return [rejected["path"] for rejected in found.rejected] + [
        path.name for path in older if not verify_checkpoint(path, quick).ok
    ]


def go_on(run: RunLayout, store: CheckpointStore, found: Found, image: CheckpointImage) -> None:
    """The next attempt: quarantine what was rejected, save `image`, leave nothing behind."""
    try:
        for rejected in found.rejected:
            store.quarantine(store.root / rejected["path"])
        with closing(log_of(run, AFTER)) as log:
            saved = save_and_record(store, image, AFTER, log)
        choice = store.newest_valid()
        if not saved:
            found.again = "not saved"
        elif (
            choice.report is None
            or choice.report.global_step != image.stamp.global_step
            or choice.rejected
        ):
            found.again = "saved, but not what recovery finds"
    except EcrlError as error:
        found.again = _plain(error.line(), run)
    except Exception as error:
        found.again = f"untyped: {type(error).__name__}: {error}"
    found.left = sorted(litter(store.fs.listdir(store.root)))


def leak_check(path: Path, image: CheckpointImage) -> str:
    """The fault in the files of a rejected checkpoint, in the published study's words; the first
    that applies.
    """
    sizes = {part.name: part.nbytes for part in image.parts} | {
        name: len(data) for name, data in image.documents.items()
    }
    entry = entry_of(path)
    records, folder = {MANIFEST: "manifest", COMMIT: "commit"}, path
    if entry.single:
        sidecar, data = entry.files
        sizes = {data.name: sizes[data.name]}
        records, folder = {sidecar.name: "commit"}, path.parent
    lengths = {
        name: path.stat().st_size if (path := folder / name).exists() else -1
        for name in [*sizes, *records]
    }
    if any(0 <= lengths[name] < size for name, size in sizes.items()):
        return "size mismatch"
    if any(lengths[name] < 0 for name in sizes):
        return "missing parts"
    wrong = [name for name in records if not _whole(folder / name)]
    if not wrong:
        return "other"
    return (
        f"missing {records[wrong[0]]}" if lengths[wrong[0]] < 0 else f"{records[wrong[0]]} cut off"
    )


def _whole(path: Path) -> bool:
    """Whether the record is there and is JSON; a truncated one is not."""
    try:
        parse_canonical(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _plain(text: str, run: RunLayout) -> str:
    """The text without the trial's folder, so that equal reasons compare equal."""
    return text.replace(f"{run.root}/", "")
