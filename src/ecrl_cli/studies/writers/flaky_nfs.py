"""A file system with network faults: a name appears late, a handle is stale once, a reply is lost
and the call repeated.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.errors import EcrlError, StorageError
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.studies.frame.study import Trial
from ecrl_cli.studies.frame.watched_fs import Unsynced
from ecrl_cli.studies.writers.store_fixture import (
    FIRST,
    LATER,
    OLD,
    PRODUCT,
    Ack,
    CommittedStore,
    WriterKind,
    judge,
    payload,
)

T = TypeVar("T")
LOOKUPS = ("open", "open_at", "stat", "listdir")
# Calls that a server may execute twice, and the second one's reply.
REPEATED = {
    "rename": errno.ENOENT,
    "mkdir": errno.EEXIST,
    "unlink": errno.ENOENT,
    "symlink": errno.EEXIST,
}
FAULTS = ("absent", "stale", "delivered twice")
MODE = "atomic_dirsync"


class FlakyNfs(FsWrapper):
    """Fails once: at call number `at` among those that `fault` concerns."""

    def __init__(self, fs: Fs, fault: str = "", at: int = -1) -> None:
        super().__init__(fs)
        self._fault, self._at = fault, at
        self.concerned = 0

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        twice = self._fault == "delivered twice"
        if call not in (REPEATED if twice else LOOKUPS):
            return act()
        number, self.concerned = self.concerned, self.concerned + 1
        if number != self._at:
            return act()
        if twice:
            act()
        error = (
            REPEATED[call] if twice else errno.ENOENT if self._fault == "absent" else errno.ESTALE
        )
        raise StorageError.of(call, path, OSError(error, "as a network file system says it"))


def trials(history: CommittedStore, seed: int, scratch: Path) -> list[Trial]:
    """One trial per call that a fault concerns, in a save and in a recovery."""
    found = []
    for layout in LAYOUTS:
        for phase in ("save", "recovery"):
            for fault in FAULTS:
                watched = FlakyNfs(Unsynced(), fault)
                with history.copied(layout, scratch / "watched") as root:
                    _act(root, seed, layout, phase, watched, PRODUCT)
                facts = {"arm": "remote", "layout": layout, "phase": phase, "fault": fault}
                found += [
                    Trial(f"remote/{layout}/{phase}/{fault}/{at:03d}", facts | {"at": at})
                    for at in range(watched.concerned)
                ]
    return found


def run(
    history: CommittedStore,
    seed: int,
    folder: Path,
    facts: dict[str, Any],
    kind: WriterKind = PRODUCT,
) -> dict[str, Any]:
    """One fault; the outcome class of what recovery then finds, and whether the next save
    succeeds.
    """
    with history.copied(facts["layout"], folder) as root:
        remote = FlakyNfs(Unsynced(), facts["fault"], facts["at"])
        said, acks = _act(root, seed, facts["layout"], facts["phase"], remote, kind)
        known = [(step, payload(seed).content(facts["layout"], step)) for step in (FIRST, OLD)]
        outcome = (
            said
            if said in ("lost_ack", "lost_all", "silent_wrong", "untyped")
            else judge(root, MODE, acks, known)
        )
        return {"said": said, "outcome": outcome, "next": _next_save(root, seed, facts["layout"])}


def sound(found: dict[str, Any]) -> bool:
    return bool(found["outcome"] == "new" and found["next"] == "saved")


def _act(
    root: Path, seed: int, layout: str, phase: str, fs: Fs, kind: WriterKind
) -> tuple[str, list[Ack]]:
    """Save OLD, then, in the phase `recovery`, recover in a later attempt; only the named phase
    goes through `fs`.
    """
    acks = [Ack(FIRST, "", payload(seed).content(layout, FIRST))]
    saving = fs if phase == "save" else Unsynced()
    try:
        with closing(kind.open(root, MODE, saving)) as store:
            one = payload(seed).image(layout, OLD)
            saved = store.save(one, 0)
            acks.append(Ack(OLD, saved.commit_sha256, payload(seed).content(layout, OLD)))
            store.update_pointers_and_retire(saved, one)
        return (_recover(root, fs, kind, acks[-1]) if phase == "recovery" else "saved"), acks
    except EcrlError as error:
        return f"refused: {error.key}", acks
    except Exception:
        return "untyped", acks


def _recover(root: Path, fs: Fs, kind: WriterKind, newest: Ack) -> str:
    with closing(kind.open(root, MODE, fs)) as store:
        store.claim(1)
        choice = store.newest_valid()
    if choice.report is None or choice.report.manifest is None:
        return "lost_all"
    if (choice.report.global_step or 0) < newest.step:
        return "lost_ack"
    return "recovered" if components(choice.report.manifest) == newest.content else "silent_wrong"


def _next_save(root: Path, seed: int, layout: str) -> str:
    """The next attempt on a healthy file system: saves the step of the fault and a later one."""
    try:
        with closing(PRODUCT.open(root, MODE)) as store:
            store.claim(2)
            for rejected in store.newest_valid().rejected:
                store.quarantine(root.parent / rejected.path)
            for step in (OLD, LATER):
                store.save(payload(seed).image(layout, step), 2)
    except EcrlError as error:
        return f"refused: {error.key}"
    return "saved"
