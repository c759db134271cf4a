"""Fails one file call of an operation on an in-memory store, and checks every invariant
afterwards.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.format.names import LEASE, TRASH_PREFIX
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import EcrlError, StorageError
from ecrl_cli.storage.fault_injecting_fs import SHORT, ZERO, Fault, FaultyFs, TooManyCalls
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.studies.frame.store_fixture import litter
from ecrl_cli.studies.io_errors.operations import (
    ATTEMPT,
    CHECKPOINTS,
    LATER,
    MOUNT,
    OPERATIONS,
    PAYLOAD,
    Operation,
    StoreSetup,
    beginning,
    plain,
    signature,
    store_on,
)

LIMIT = 3000  # calls per operation, far above any correct one
CALLS = 400  # an operation with a call of this number counts as endless
# if these, or the rename into the trash, fail, space cannot be freed
_UNDOING = ("unlink", "rmdir", "list")
# errors that say nothing about the file and so do not rule it out
_TRANSIENT = ("EINTR", "EMFILE", "ENOMEM")

Seen = dict[object, list[str]]
# Wraps the failing disk below the store: a planted bug.
Wrapper = Callable[[Fs], Fs]


@dataclass
class CaseCounts:
    """Results of one trial's cases. `errors`: typed ones; `successes`: legal ones; `stepped_back`:
    successes in which recovery skipped, and reported, a checkpoint that the disk refused to read.
    `first`: the first violation.
    """

    cases: int = 0
    errors: int = 0
    successes: int = 0
    stepped_back: int = 0
    violations: int = 0
    first: str = ""


@dataclass
class After:
    """The disk after an operation, and the operation's result. `gave`: its return value, 0 after an
    error.
    """

    cell: StoreSetup
    operation: Operation
    fault: Fault
    fs: FaultyFs
    disk: ModelFs
    gave: int = 0
    error: BaseException | None = None

    @property
    def acknowledged(self) -> int:
        """The newest acknowledged step."""
        return max(self.gave if self.operation.saves else 0, *self.operation.intact)

    @property
    def stepped_back(self) -> bool:
        return self.operation.recovers and self.error is None and self.gave < self.acknowledged

    @property
    def excused(self) -> tuple[bool, bool]:
        """Whether the fault hit a call that frees space, or one that tells whether a final name
        still belongs to this attempt.
        """
        injected = self.fs.injected
        stuck = any(
            s.call in _UNDOING or (s.call == "rename" and s.path.name.startswith(TRASH_PREFIX))
            for s in injected
        )
        return stuck, any(s.path in (CHECKPOINTS, CHECKPOINTS / LEASE) for s in injected)


def run_cases(
    operation: str, cell: StoreSetup, fault: Fault, seen: Seen, wrap: Wrapper | None = None
) -> CaseCounts:
    """Fail the first call, then the second, and so on until the operation completes without a
    fault. With `wrap`, up to the first violation.
    """
    counts = CaseCounts()
    for at in range(1, CALLS + 1):
        after = run_case(OPERATIONS[operation], cell, replace(fault, at=at), wrap)
        injected, wrong = bool(after.fs.injected), judge(after, seen)
        counts.cases += injected
        if wrong:
            counts.violations += 1
            call = after.fs.injected[0].call if injected else "none failed"
            counts.first = counts.first or f"call {at} ({call}): {plain('; '.join(wrong[:2]))}"
        elif injected:
            counts.errors += after.error is not None
            counts.successes += after.error is None
            counts.stepped_back += after.stepped_back
        if not injected or (wrong and wrap is not None):
            return counts
    return replace(
        counts,
        violations=counts.violations + 1,
        first=counts.first or f"hung: calls still fail at call {CALLS}",
    )


def run_case(
    operation: Operation, cell: StoreSetup, fault: Fault, wrap: Wrapper | None = None
) -> After:
    disk = ModelFs(MOUNT, beginning(operation.name, cell))
    fs = FaultyFs(disk, LIMIT)
    store = store_on(wrap(fs) if wrap else fs, cell)
    after = After(cell, operation, fault, fs, disk)
    fs.arm(fault)
    try:
        after.gave = operation.act(store, cell)
    except (Exception, TooManyCalls) as error:
        after.error = error
    store.close()
    fs.fault = None
    return after


def judge(after: After, seen: Seen) -> list[str]:
    """Every broken promise, in words."""
    wrong = list(_said(after))
    if after.fs.open_files:
        wrong.append(
            f"{len(after.fs.open_files)} descriptors stay open, the first of"
            f" {next(iter(after.fs.open_files.values())).name}"
        )
    known = (
        after.cell,
        after.operation.name,
        after.acknowledged,
        after.error is None,
        after.excused,
        signature(after.disk),
    )
    if known not in seen:  # most cases end in a disk state that was judged before
        seen[known] = [*_left_behind(after), *_on_a_healthy_disk(after)]
    return wrong + seen[known]


def _said(after: After) -> Iterator[str]:
    """The error must name the call and the errno; nothing may be acknowledged if a sync, or the
    close of a written file, failed.
    """
    error, injected = after.error, after.fs.injected
    if isinstance(error, TooManyCalls):
        yield f"hung: {error}"
    elif isinstance(error, StorageError):
        yield from _misnamed(after, error)
    elif error is not None:
        yield f"untyped: {type(error).__name__}: {error}"
    if error is not None and not injected:
        yield f"fails untouched: {error}"
    if after.gave and after.operation.saves:
        hit = next(
            (
                s
                for s in injected
                if s.call in ("fsync", "fsyncdir") or (s.call == "close" and s.written)
            ),
            None,
        )
        if hit is not None:
            yield f"acknowledged after a failed {hit.call} of {hit.path.name}"
    if after.stepped_back and after.fault.kind in _TRANSIENT:
        yield (
            f"lost_ack: {after.fault.kind} makes recovery pass over step {after.acknowledged} and"
            f" give {after.gave}"
        )


def _misnamed(after: After, error: StorageError) -> Iterator[str]:
    if after.fault.kind not in (SHORT, ZERO) and error.errno != getattr(errno, after.fault.kind):
        yield f"does not name {after.fault.kind}: {error.line()}"
    elif error.key not in {each.call for each in after.fs.injected}:
        yield f"names another call: {error.line()}"


def _left_behind(after: After) -> Iterator[str]:
    """Leftover stages, trash and temporary files; a partial checkpoint under its final name.
    Excused if their removal failed.
    """
    stuck, unsure = after.excused
    if stuck or (after.operation.stale and after.error is not None):
        return
    store = store_on(after.disk, after.cell)
    left = litter(after.disk.listdir(store.root))
    if not (unsure or after.operation.damaged):
        left += [entry.path.name for entry in store.entries() if not store.verify(entry.path).ok]
    store.close()
    if left:
        yield f"left behind: {left[0]}"


def _on_a_healthy_disk(after: After) -> Iterator[str]:
    """Recovery must return exactly the last acknowledged step or a later one, what counts must be
    whole, and the next attempt must save.
    """
    store = store_on(after.disk, after.cell)
    try:
        yield from _recovered(store, after)
        yield from _goes_on(store, after)
    except EcrlError as error:
        yield f"on a healthy disk: {error.line()}"
    finally:
        store.close()


def _recovered(store: CheckpointStore, after: After) -> Iterator[str]:
    choice = store.newest_valid().report
    found = choice.global_step or 0 if choice else 0
    if found < after.acknowledged:
        yield (
            f"{'lost_ack' if found else 'lost_all'}: step {after.acknowledged} was acknowledged,"
            f" step {found} is found"
        )
    for entry in store.entries():
        report = store.verify(entry.path)
        if (
            report.ok
            and report.manifest
            and components(report.manifest) != PAYLOAD.content(after.cell.layout, entry.global_step)
        ):
            yield f"silent_wrong: step {entry.global_step} holds another state"
    whole = [
        step
        for step in after.operation.intact
        if store.verify(store.root / after.cell.name(step)).ok
    ]
    if len(whole) < len(after.operation.intact):
        yield f"of the steps {after.operation.intact} only {whole} are still whole"


def _goes_on(store: CheckpointStore, after: After) -> Iterator[str]:
    """The next attempt claims the store, sweeps leftovers, saves, and finds its save."""
    attempt = ATTEMPT + 2
    store.claim(attempt)
    store.save(PAYLOAD.image(after.cell.layout, LATER), attempt)
    report = store.newest_valid().report
    if (
        report is None
        or report.global_step != LATER
        or report.manifest is None
        or components(report.manifest) != PAYLOAD.content(after.cell.layout, LATER)
    ):
        yield "the next save is not what recovery finds"
    if left := litter(after.disk.listdir(store.root)):
        yield f"the next attempt leaves {left[0]}"


FAULTS = {
    "any": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EMFILE", "ENOMEM", "EROFS", "ESTALE"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "EINTR", SHORT, ZERO),
    "sync": ("EIO", "ENOSPC", "EDQUOT"),
    "open": ("EMFILE", "ENOMEM"),
    "read": ("EIO", "ESTALE"),
    "change": ("ENOSPC", "EROFS"),
    "close": ("EIO", "EDQUOT"),
}
