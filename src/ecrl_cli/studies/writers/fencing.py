"""Other processes at a store, at every call: a newer attempt that claims and commits while an old
writer stands still; a reader while one saves.

`fence`: the newer writer claims, as a supervisor's next attempt does. `publish`: both belong to one
attempt and neither claims: only the name that both want protects them. `reader`: it looks for the
newest checkpoint while a writer saves and retires: neither blocks nor misleads the other.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.manifest import Components
from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved
from ecrl_cli.config.schema import LAYOUTS, WRITE_MODES
from ecrl_cli.errors import CheckpointConflict, EcrlError, Fenced
from ecrl_cli.studies.frame.study import Trial
from ecrl_cli.studies.frame.watched_fs import InterleavingFs, Unsynced
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

# What the newer writer does: only claims; saves the same state at the old one's step; another state
# there; a later step.
FENCE, PUBLISH = ("claim", "same", "other", "later"), ("same", "other")
# Calls on a descriptor whose result no other writer can change: suspending before them tests
# nothing.
_PRIVATE = ("close", "read_at", "set_direct")
ATOMIC = tuple(mode for mode in WRITE_MODES if mode != "unsafe")


def trials(history: CommittedStore, seed: int, scratch: Path, every: int = 1) -> list[Trial]:
    """One trial per call of a save (or each `every`-th), by write mode, layout and action of the
    newer writer.
    """
    found = []
    for mode in WRITE_MODES:
        for layout in LAYOUTS:
            calls = calls_of(history, seed, scratch, mode, layout)
            for arm, actions in (("fence", FENCE), ("publish", PUBLISH if mode in ATOMIC else ())):
                for action in actions:
                    for at, call in points(calls)[::every]:
                        facts = {
                            "arm": arm,
                            "mode": mode,
                            "layout": layout,
                            "newer": action,
                            "at": at,
                            "call": call,
                        }
                        found.append(Trial(f"{arm}/{mode}/{layout}/{action}/{at:03d}", facts))
    return found


def calls_of(
    history: CommittedStore, seed: int, scratch: Path, mode: str, layout: str
) -> tuple[str, ...]:
    """The calls of an undisturbed save, pointers and retention included."""
    watched = InterleavingFs(Unsynced())
    with (
        history.copied(layout, scratch / "watched") as root,
        closing(PRODUCT.open(root, mode, watched)) as store,
    ):
        one = payload(seed).image(layout, OLD)
        store.update_pointers_and_retire(store.save(one, 0), one)
    return tuple(watched.calls)


def points(calls: tuple[str, ...]) -> list[tuple[int, str]]:
    """Where to suspend: number and name of the call. Of consecutive fstats of an open file only the
    first: the others see the same file.
    """
    repeated = {at for at, call in enumerate(calls) if call == "fstat" and calls[at - 1] == "fstat"}
    return [
        (at, call) for at, call in enumerate(calls) if call not in _PRIVATE and at not in repeated
    ]


def run(
    history: CommittedStore,
    seed: int,
    folder: Path,
    facts: dict[str, Any],
    kind: WriterKind = PRODUCT,
) -> dict[str, Any]:
    """One interleaving: how both writers ended, and what recovery finds."""
    with history.copied(facts["layout"], folder) as root:
        writers = _TwoWriters(root, facts, seed, kind)
        watched = InterleavingFs(Unsynced(), facts["at"], writers.newer)
        with closing(kind.open(root, facts["mode"], watched)) as old:
            writers.old(old)
        outcome = judge(root, facts["mode"], writers.acks(), writers.known())
        return {
            "old": writers.ends["old"],
            "newer": writers.ends.get("newer", "not run"),
            "zombie": writers.zombie(),
            "outcome": outcome,
        }


@dataclass
class _TwoWriters:
    """Two writers in one folder."""

    root: Path
    facts: dict[str, Any]
    seed: int
    kind: WriterKind
    ends: dict[str, str] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)  # writer -> (seed, step)
    seen: str | None = None  # the commit that the newer one recovered from

    @property
    def fenced(self) -> bool:
        return bool(self.facts["arm"] == "fence")

    def old(self, store: CheckpointStore) -> None:
        self._save("old", store, 0, self.seed, OLD)

    def newer(self) -> None:
        action = self.facts["newer"]
        with closing(self.kind.open(self.root, self.facts["mode"])) as store:
            if self.fenced:
                store.claim(1)
                choice = store.newest_valid()
                self.seen = choice.report.commit_sha256 if choice.report else None
                for rejected in choice.rejected:
                    store.quarantine(self.root.parent / rejected.path)
            if action == "claim":
                self.ends["newer"] = "claimed"
            else:
                self._save(
                    "newer",
                    store,
                    1 if self.fenced else 0,
                    self.seed + (action == "other"),
                    LATER if action == "later" else OLD,
                )

    def _save(self, who: str, store: CheckpointStore, attempt: int, seed: int, step: int) -> None:
        one = payload(seed).image(self.facts["layout"], step)
        self.steps[who] = (seed, step)
        try:
            self.saved[who] = saved = store.save(one, attempt)
            self.ends[who] = "saved"
            store.update_pointers_and_retire(saved, one)
        except Fenced:
            self.ends[who] = "fenced"
        except CheckpointConflict:
            self.ends[who] = "conflict"
        except EcrlError as error:
            self.ends[who] = f"refused: {error.key}"
        except Exception as error:
            self.ends[who] = f"untyped: {type(error).__name__}"

    def zombie(self) -> bool:
        """Whether the old writer acknowledged a checkpoint unknown to the newer attempt, which
        already owned the store.
        """
        if not self.fenced or "newer" not in self.ends or "old" not in self.saved:
            return False
        sha, newer = self.saved["old"].commit_sha256, self.saved.get("newer")
        return sha != self.seen and (newer is None or sha != newer.commit_sha256)

    def acks(self) -> list[Ack]:
        first = Ack(FIRST, "", self._content(self.seed, FIRST))
        return [
            first,
            *(
                Ack(self.steps[who][1], saved.commit_sha256, self._content(*self.steps[who]))
                for who, saved in self.saved.items()
            ),
        ]

    def known(self) -> list[tuple[int, Components]]:
        tried = [(self.seed, FIRST), *self.steps.values()]
        return [(step, self._content(seed, step)) for seed, step in tried]

    def _content(self, seed: int, step: int) -> Components:
        return payload(seed).content(self.facts["layout"], step)


def sound(found: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether an interleaving ended as promised: no acknowledged save lost, and the later writer
    got an error.
    """
    typed = not any(str(found[who]).startswith("untyped") for who in ("old", "newer"))
    both = found["old"] == found["newer"] == "saved" and facts["newer"] == "other"
    return typed and found["outcome"] == "new" and not found["zombie"] and not both


# three saves retire everything the reader has listed
READER_MODE, BURSTS = "atomic_dirsync", (1, 3)


def reader_trials(history: CommittedStore, seed: int, scratch: Path, saves: int) -> list[Trial]:
    """One trial per call of a read at which the writer saves once or three times, and one writer of
    `saves` checkpoints in parallel with a reader, per layout.
    """
    found = []
    for layout in LAYOUTS:
        watched = InterleavingFs(Unsynced())
        with (
            history.copied(layout, scratch / "watched") as root,
            closing(PRODUCT.open(root, READER_MODE, watched)) as store,
        ):
            store.newest_valid()
        for burst in BURSTS:
            facts = {"arm": "reader", "layout": layout, "saves": burst}
            found += [
                Trial(f"reader/{layout}/{burst}/{at:03d}", facts | {"at": at})
                for at, _ in points(tuple(watched.calls))
            ]
        found.append(
            Trial(
                f"reader/{layout}/beside",
                {"arm": "reader", "layout": layout, "saves": saves, "at": -1},
            )
        )
    return found


def run_reader(
    history: CommittedStore,
    seed: int,
    folder: Path,
    facts: dict[str, Any],
    kind: WriterKind = PRODUCT,
) -> dict[str, Any]:
    with history.copied(facts["layout"], folder) as root:
        writer = _Writer(root, seed, facts["layout"])
        if facts["at"] < 0:
            return _beside(root, writer, facts["saves"], kind)
        watched = InterleavingFs(Unsynced(), facts["at"], lambda: writer.save(facts["saves"]))
        return {"looks": 1, "misled": _look(root, kind, watched, writer)}


class _Writer:
    def __init__(self, root: Path, seed: int, layout: str) -> None:
        self._root, self._seed, self._layout, self.acked = root, seed, layout, FIRST

    def save(self, count: int) -> None:
        with closing(PRODUCT.open(self._root, READER_MODE)) as store:
            for step in range(self.acked + 1, self.acked + 1 + count):
                one = payload(self._seed).image(self._layout, step)
                store.update_pointers_and_retire(store.save(one, 0), one)
                self.acked = step


def _look(root: Path, kind: WriterKind, watched: InterleavingFs, writer: _Writer) -> str:
    """How the reader was misled: by an exception, a rejection, or a checkpoint older than the
    acknowledged one; empty if not.

    A single file whose sidecar is not yet there may be rejected: it does not count yet.
    """
    before = writer.acked
    try:
        with closing(kind.open(root, READER_MODE, watched)) as reader:
            choice = reader.newest_valid()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    if choice.report is None:
        return "found nothing"
    if (
        choice.rejected
        and entry_of(root / Path(choice.rejected[0].path).name).global_step <= before
    ):
        return f"refused {choice.rejected[0].path}: {choice.rejected[0].reason[:60]}"
    return (
        ""
        if (choice.report.global_step or 0) >= before
        else f"step {choice.report.global_step}, {before} was acknowledged"
    )


def _beside(root: Path, writer: _Writer, saves: int, kind: WriterKind) -> dict[str, Any]:
    """Read as often as possible while a thread saves."""
    thread, looks, misled = threading.Thread(target=writer.save, args=(saves,)), 0, ""
    thread.start()
    while thread.is_alive() and not misled:
        misled = _look(root, kind, InterleavingFs(Unsynced()), writer)
        looks += 1
    thread.join()
    return {
        "looks": looks,
        "misled": (
            misled
            or ("" if writer.acked == FIRST + saves else f"the writer came to {writer.acked}")
        ),
    }
