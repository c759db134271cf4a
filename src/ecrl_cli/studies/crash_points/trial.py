"""One crash from start to end: write a run with a history, kill a save, recover, and save in the next attempt."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.crash_points.crash_targets import Save
from ecrl_cli.studies.crash_points.crashing_fs import CrashingFs
from ecrl_cli.studies.crash_points.points import NONE, phase
from ecrl_cli.studies.crash_points.stage import KillerProcess, hand_over
from ecrl_cli.studies.crash_points.store_fixture import (
    BACK_TO_BACK,
    HISTORY,
    STEP,
    VICTIM,
    Found,
    History,
    Payload,
    expected_of,
    go_on,
    half_written,
    image_of,
    leak_check,
    plan_of,
    recover,
)


class Bench:
    """`where`: the folder of the trials, or "memory"."""

    def __init__(self, where: str, payload: Payload) -> None:
        self._payload, self._killer = payload, KillerProcess(where, payload)
        self._run = RunLayout(self._killer.folder / "run")
        self._histories: dict[str, History] = {}
        self._passed: dict[Save, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def close(self) -> None:
        self._killer.close()

    def visited(self, save: Save) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The points and the modifying calls of `save`, both in order."""
        if save not in self._passed:
            self._passed[save] = self._visit(save)
        return self._passed[save]

    def crash(self, save: Save, strategy: str) -> dict[str, Any]:
        """Kill the save at its point. `hit`: whether it was killed there."""
        with self._laid(save.layout):
            if STRATEGIES.of(strategy).writes_in_step:
                end = self._killer.ask("save", self._run, save)
                lived = end["signal"] == 0
            else:
                self._killer.ask("serve", self._run, save)
                lived = hand_over(self._run, plan_of(self._payload, save.layout), image_of(self._payload, save.layout, save.step))
                end = self._killer.ask("end", self._run, save)
            unharmed = save.point == NONE and save.call < 0
            hit = lived if unharmed else not lived and (save.call >= 0 or end["passed"] == save.point)
            return {"hit": hit, **self._aftermath(save, end, (save.step,), goes_on=True)}

    def kill(self, save: Save, after_s: float) -> dict[str, Any]:
        """Kill back-to-back saves at a random moment. `hit`: before the last save was done."""
        with self._laid(save.layout):
            end = self._killer.ask("kill", self._run, save, after_s=after_s)
            found = self._aftermath(save, end, range(STEP, STEP + BACK_TO_BACK), goes_on=False)
            hit = end["signal"] == signal.SIGKILL and found["acknowledged"] < STEP + BACK_TO_BACK - 1
            return {"hit": hit, "after_s": after_s, "passed": end["passed"], **found}

    @contextmanager
    def _laid(self, layout: str) -> Iterator[None]:
        if layout not in self._histories:
            folder = self._killer.folder / "history"
            self._histories[layout] = History(folder, self._payload, layout)
            shutil.rmtree(folder)
        self._histories[layout].lay(self._run.root)
        try:
            yield
        finally:
            shutil.rmtree(self._run.root, ignore_errors=True)  # leftovers are found when the next run is written

    def _aftermath(self, save: Save, end: dict[str, Any], saved: Sequence[int], *, goes_on: bool) -> dict[str, Any]:
        """What recovery finds if the steps `saved` may have been saved, and the result of the next attempt."""
        if end["code"]:
            raise RuntimeError(f"the process that saves ended with {end['code']}; its traceback is on stderr")
        if end["signal"] == signal.SIGALRM:
            return dataclasses.asdict(Found("hung"))
        with closing(save.store(self._run, PosixFs(), lambda name: None)) as store:
            known = (*HISTORY, *saved)
            found = recover(self._run, store, lambda step: expected_of(self._payload, save.layout, step) if step in known else None)
            for rejected in found.rejected:
                path = store.root / rejected["path"]
                rejected["remains"] = leak_check(path, image_of(self._payload, save.layout, entry_of(path).global_step))
            if save.layout == "group" and store.config.mode.atomic:
                found.half = half_written(store, found)
            if goes_on:
                go_on(self._run, store, found, image_of(self._payload, save.layout, save.step))
        return dataclasses.asdict(found)

    def _visit(self, save: Save) -> tuple[tuple[str, ...], tuple[str, ...]]:
        points: list[str] = []
        with self._laid(save.layout):
            fs = CrashingFs(self._run.checkpoints)
            with closing(save.store(self._run, fs, lambda name: points.append(phase(name)))) as store:
                store.claim(VICTIM)
                fs.armed = True
                image = image_of(self._payload, save.layout, save.step)
                store.update_pointers_and_retire(store.save(image, VICTIM), image)
        return tuple(points), tuple(fs.calls)
