"""A reader looks for the newest checkpoint while a writer saves and retires: neither blocks nor misleads the other."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.studies.frame.study import Trial
from ecrl_cli.studies.writers.fencing import points
from ecrl_cli.studies.writers.store_fixture import FIRST, PRODUCT, History, InterleavingFs, Kind, Unsynced, image

MODE, BURSTS = "atomic_dirsync", (1, 3)  # three saves retire everything the reader has listed


def trials(history: History, seed: int, scratch: Path, saves: int) -> list[Trial]:
    """One trial per call of a read at which the writer saves once or three times, and one writer of `saves` checkpoints in parallel with a reader,
    per layout."""
    found = []
    for layout in LAYOUTS:
        watched = InterleavingFs(Unsynced())
        with history.copied(layout, scratch / "watched") as root, closing(PRODUCT.open(root, MODE, watched)) as store:
            store.newest_valid()
        for burst in BURSTS:
            facts = {"arm": "reader", "layout": layout, "saves": burst}
            found += [Trial(f"reader/{layout}/{burst}/{at:03d}", facts | {"at": at}) for at, _ in points(tuple(watched.calls))]
        found.append(Trial(f"reader/{layout}/beside", {"arm": "reader", "layout": layout, "saves": saves, "at": -1}))
    return found


def run(history: History, seed: int, folder: Path, facts: dict[str, Any], kind: Kind = PRODUCT) -> dict[str, Any]:
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
        with closing(PRODUCT.open(self._root, MODE)) as store:
            for step in range(self.acked + 1, self.acked + 1 + count):
                one = image(self._seed, step, self._layout)
                store.update_pointers_and_retire(store.save(one, 0), one)
                self.acked = step


def _look(root: Path, kind: Kind, watched: InterleavingFs, writer: _Writer) -> str:
    """How the reader was misled: by an exception, a rejection, or a checkpoint older than the acknowledged one; empty if not.

    A single file whose sidecar is not yet there may be rejected: it does not count yet.
    """
    before = writer.acked
    try:
        with closing(kind.open(root, MODE, watched)) as reader:
            choice = reader.newest_valid()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    if choice.report is None:
        return "found nothing"
    if choice.rejected and entry_of(root / Path(choice.rejected[0].path).name).global_step <= before:
        return f"refused {choice.rejected[0].path}: {choice.rejected[0].reason[:60]}"
    return "" if (choice.report.global_step or 0) >= before else f"step {choice.report.global_step}, {before} was acknowledged"


def _beside(root: Path, writer: _Writer, saves: int, kind: Kind) -> dict[str, Any]:
    """Read as often as possible while a thread saves."""
    thread, looks, misled = threading.Thread(target=writer.save, args=(saves,)), 0, ""
    thread.start()
    while thread.is_alive() and not misled:
        misled = _look(root, kind, InterleavingFs(Unsynced()), writer)
        looks += 1
    thread.join()
    return {"looks": looks, "misled": misled or ("" if writer.acked == FIRST + saves else f"the writer came to {writer.acked}")}
