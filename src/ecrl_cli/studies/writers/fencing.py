"""An old writer is suspended between two calls of its save; a newer attempt claims the store, recovers and commits; the old one continues.

`fence`: the newer one claims, as a supervisor's next attempt does. `publish`: both belong to one attempt and neither claims: only the name that
both want protects them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved
from ecrl_cli.config.schema import LAYOUTS, WRITE_MODES
from ecrl_cli.errors import CheckpointConflict, EcrlError, Fenced
from ecrl_cli.studies.frame.study import Trial
from ecrl_cli.studies.writers.store_fixture import FIRST, LATER, OLD, PRODUCT, Ack, History, InterleavingFs, Kind, Unsynced, content, image, judge

# What the newer writer does: only claims; saves the same state at the old one's step; another state there; a later step.
FENCE, PUBLISH = ("claim", "same", "other", "later"), ("same", "other")
# Calls on a descriptor whose result no other writer can change: suspending before them tests nothing.
_PRIVATE = ("close", "read_at", "set_direct")
ATOMIC = tuple(mode for mode in WRITE_MODES if mode != "unsafe")


def trials(history: History, seed: int, scratch: Path, every: int = 1) -> list[Trial]:
    """One trial per call of a save (or each `every`-th), by write mode, layout and action of the newer writer."""
    found = []
    for mode in WRITE_MODES:
        for layout in LAYOUTS:
            calls = calls_of(history, seed, scratch, mode, layout)
            for arm, deeds in (("fence", FENCE), ("publish", PUBLISH if mode in ATOMIC else ())):
                for deed in deeds:
                    for at, call in points(calls)[::every]:
                        facts = {"arm": arm, "mode": mode, "layout": layout, "newer": deed, "at": at, "call": call}
                        found.append(Trial(f"{arm}/{mode}/{layout}/{deed}/{at:03d}", facts))
    return found


def calls_of(history: History, seed: int, scratch: Path, mode: str, layout: str) -> tuple[str, ...]:
    """The calls of an undisturbed save, pointers and retention included."""
    watched = InterleavingFs(Unsynced())
    with history.copied(layout, scratch / "watched") as root, closing(PRODUCT.open(root, mode, watched)) as store:
        one = image(seed, OLD, layout)
        store.update_pointers_and_retire(store.save(one, 0), one)
    return tuple(watched.calls)


def points(calls: tuple[str, ...]) -> list[tuple[int, str]]:
    """Where to suspend: number and name of the call. Of consecutive fstats of an open file only the first: the others see the same file."""
    repeated = {at for at, call in enumerate(calls) if call == "fstat" and calls[at - 1] == "fstat"}
    return [(at, call) for at, call in enumerate(calls) if call not in _PRIVATE and at not in repeated]


def run(history: History, seed: int, folder: Path, facts: dict[str, Any], kind: Kind = PRODUCT) -> dict[str, Any]:
    """One interleaving: how both writers ended, and what recovery finds."""
    with history.copied(facts["layout"], folder) as root:
        meeting = _Meeting(root, facts, seed, kind)
        watched = InterleavingFs(Unsynced(), facts["at"], meeting.newer)
        with closing(kind.open(root, facts["mode"], watched)) as old:
            meeting.old(old)
        outcome = judge(root, facts["mode"], meeting.acks(), meeting.known())
        return {"old": meeting.ends["old"], "newer": meeting.ends.get("newer", "not run"), "zombie": meeting.zombie(), "outcome": outcome}


@dataclass
class _Meeting:
    """Two writers in one folder."""

    root: Path
    facts: dict[str, Any]
    seed: int
    kind: Kind
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
        deed = self.facts["newer"]
        with closing(self.kind.open(self.root, self.facts["mode"])) as store:
            if self.fenced:
                store.claim(1)
                choice = store.newest_valid()
                self.seen = choice.report.commit_sha256 if choice.report else None
                for rejected in choice.rejected:
                    store.quarantine(self.root.parent / rejected.path)
            if deed == "claim":
                self.ends["newer"] = "claimed"
            else:
                self._save("newer", store, 1 if self.fenced else 0, self.seed + (deed == "other"), LATER if deed == "later" else OLD)

    def _save(self, who: str, store: CheckpointStore, attempt: int, seed: int, step: int) -> None:
        one = image(seed, step, self.facts["layout"])
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
        """Whether the old writer acknowledged a checkpoint unknown to the newer attempt, which already owned the store."""
        if not self.fenced or "newer" not in self.ends or "old" not in self.saved:
            return False
        sha, newer = self.saved["old"].commit_sha256, self.saved.get("newer")
        return sha != self.seen and (newer is None or sha != newer.commit_sha256)

    def acks(self) -> list[Ack]:
        made = [Ack(FIRST, "", content(self.seed, FIRST, self.facts["layout"]))]
        return made + [
            Ack(self.steps[who][1], saved.commit_sha256, content(*self.steps[who], self.facts["layout"])) for who, saved in self.saved.items()
        ]

    def known(self) -> list[tuple[int, Any]]:
        tried = [(self.seed, FIRST), *self.steps.values()]
        return [(step, content(seed, step, self.facts["layout"])) for seed, step in tried]


def sound(found: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether an interleaving ended as promised: no acknowledged save lost, and the later writer got an error."""
    typed = not any(str(found[who]).startswith("untyped") for who in ("old", "newer"))
    both = found["old"] == found["newer"] == "saved" and facts["newer"] == "other"
    return typed and found["outcome"] == "new" and not found["zombie"] and not both


def unexplained(found: dict[str, Any]) -> bool:
    """Whether the old writer ended with an error that is neither Fenced nor CheckpointConflict."""
    return str(found["old"]).startswith("refused")
