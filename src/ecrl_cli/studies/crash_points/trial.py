"""One crash from start to end: write a run with a history, kill a save, recover, save in the next
attempt; and planted bugs run against crashes.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ecrl_cli.checkpoint.format.image import CheckpointImage, ImagePlan
from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.crash_points.crash_targets import NONE, Save, phase
from ecrl_cli.studies.crash_points.store_fixture import (
    BACK_TO_BACK,
    HISTORY,
    STEP,
    VICTIM,
    CommittedRun,
    Found,
    expected_of,
    go_on,
    half_written,
    leak_check,
    recover,
)
from ecrl_cli.studies.frame.child import JsonProgram
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.frame.watched_fs import CrashingFs
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS, StoreMutant

_TRIES = 5


class KillerProcess(JsonProgram):
    """`folder`: where the trials lie; removed when this is closed, or when this process is
    killed.
    """

    def __init__(self, where: str, payload: Payload) -> None:
        numbers = [
            str(number) for number in (payload.seed, payload.model_bytes, payload.optimizer_bytes)
        ]
        # no threads before a fork
        single = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        # In its own process session: a signal to the study's process group must not end the process
        # that removes the folder.
        super().__init__(
            "ecrl_cli.studies.crash_points.crash_server",
            where,
            *numbers,
            env=single,
            start_new_session=True,
        )
        self.folder = Path(self.hear()["folder"])

    def kill(self, do: str, run: RunLayout, save: Save, **values: float) -> dict[str, Any]:
        """How the forked process ended: see `crash_server.Killer.answer`."""
        return self.ask(
            {"do": do, "root": str(run.root), "save": dataclasses.asdict(save), **values}
        )


def hand_over(run: RunLayout, plan: ImagePlan, image: CheckpointImage) -> bool:
    """Submit `image` to the run's background writer as rank 0 does; returns whether the writer
    survived to acknowledge the save.
    """
    # imported late: it imports torch
    from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone

    # plain memory instead of a staging buffer of tensors
    client = WriterClient(run, lambda memory: cast(Any, memory))
    try:
        client.open(VICTIM, plan.nbytes, 1, plan.parts)
        number, slot = client.take()
        view = cast(Any, slot).view
        view[: len(image.memory)] = image.memory
        client.submit(number, CheckpointImage(image.stamp, view, image.parts, image.documents))
        client.wait_idle()
    except WriterGone:
        return False
    finally:
        client.close()
    return True


class CrashRig:
    """`where`: the folder of the trials, or "memory"."""

    def __init__(self, where: str, payload: Payload) -> None:
        self._payload, self._killer = payload, KillerProcess(where, payload)
        self._run = RunLayout(self._killer.folder / "run")
        self._histories: dict[str, CommittedRun] = {}
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
                end = self._killer.kill("save", self._run, save)
                lived = end["signal"] == 0
            else:
                self._killer.kill("serve", self._run, save)
                lived = hand_over(
                    self._run,
                    self._payload.plan(save.layout),
                    self._payload.image(save.layout, save.step),
                )
                end = self._killer.kill("end", self._run, save)
            unharmed = save.point == NONE and save.call < 0
            hit = (
                lived if unharmed else not lived and (save.call >= 0 or end["passed"] == save.point)
            )
            return {"hit": hit, **self._aftermath(save, end, (save.step,), goes_on=True)}

    def kill(self, save: Save, after_s: float) -> dict[str, Any]:
        """Kill back-to-back saves at a random moment. `hit`: before the last save was done; where
        the killer itself had to wait for a processor until then, it tries again.
        """
        result: dict[str, Any] = {}
        for _ in range(_TRIES):
            with self._laid(save.layout):
                end = self._killer.kill("kill", self._run, save, after_s=after_s)
                found = self._aftermath(save, end, range(STEP, STEP + BACK_TO_BACK), goes_on=False)
            hit = (
                end["signal"] == signal.SIGKILL and found["acknowledged"] < STEP + BACK_TO_BACK - 1
            )
            result = {"hit": hit, "after_s": after_s, "passed": end["passed"], **found}
            if hit or found["outcome"] != "new":
                break
        return result

    @contextmanager
    def _laid(self, layout: str) -> Iterator[None]:
        if layout not in self._histories:
            folder = self._killer.folder / "history"
            self._histories[layout] = CommittedRun(folder, self._payload, layout)
            shutil.rmtree(folder)
        self._histories[layout].lay(self._run.root)
        try:
            yield
        finally:
            # leftovers are found when the next run is written
            shutil.rmtree(self._run.root, ignore_errors=True)

    def _aftermath(
        self, save: Save, end: dict[str, Any], saved: Sequence[int], *, goes_on: bool
    ) -> dict[str, Any]:
        """Result of recovery if the steps `saved` may have been saved, and the result of the next
        attempt.
        """
        if end["code"]:
            raise RuntimeError(
                f"the process that saves ended with {end['code']}; its traceback is on stderr"
            )
        if end["signal"] == signal.SIGALRM:
            return dataclasses.asdict(Found("hung"))
        with closing(save.store(self._run, PosixFs(), lambda name: None)) as store:
            known = (*HISTORY, *saved)
            found = recover(
                self._run,
                store,
                lambda step: (
                    expected_of(self._payload, save.layout, step) if step in known else None
                ),
            )
            for rejected in found.rejected:
                path = store.root / rejected["path"]
                rejected["remains"] = leak_check(
                    path, self._payload.image(save.layout, entry_of(path).global_step)
                )
            if save.layout == "group" and store.config.mode.atomic:
                found.half = half_written(store, found)
            if goes_on:
                go_on(self._run, store, found, self._payload.image(save.layout, save.step))
        return dataclasses.asdict(found)

    def _visit(self, save: Save) -> tuple[tuple[str, ...], tuple[str, ...]]:
        points: list[str] = []
        with self._laid(save.layout):
            fs = CrashingFs()
            with closing(
                save.store(self._run, fs, lambda name: points.append(phase(name)))
            ) as store:
                store.claim(VICTIM)
                fs.armed = True
                image = self._payload.image(save.layout, save.step)
                store.update_pointers_and_retire(store.save(image, VICTIM), image)
        return tuple(points), tuple(fs.calls)


_SYNC = (
    "a kill keeps the page cache: what was written is there, synced or not (the study power-loss"
    " finds it)"
)
_BEHIND = (
    "a killed writer leaves no commit record beside a damaged file: the first layer refuses it (the"
    " study corruption finds it)"
)
# Why no kill can expose it: by name, or by kind.
UNSEEN = {
    "sync": _SYNC,
    **dict.fromkeys(("ack_before_root_sync", "retire_before_root_sync", "pointer_trusted"), _SYNC),
    **dict.fromkeys(
        ("guard_sizes_only", "guard_skips_manifest", "guard_skips_parts", "guard_skips_hash"),
        _BEHIND,
    ),
}


def unseen(planted: StoreMutant) -> str:
    """Why no kill can expose `planted`; empty if one can."""
    return UNSEEN.get(planted.name) or UNSEEN.get(planted.kind, "")


def search(rig: CrashRig, name: str) -> dict[str, Any]:
    """Kill the broken store before each of its calls, one crash per call; returns the first crash
    that exposes the bug.
    """
    planted = next(planted for planted in STORE_MUTANTS if planted.name == name)
    alive = Save(planted.mode, planted.layout, planted=name)
    calls = rig.visited(alive)[1]
    for number, call in enumerate(calls):
        if wrong := violation(rig.crash(replace(alive, call=number), "blocking")):
            return {
                "found": True,
                "crashes": number + 1,
                "at": f"before {call.partition(' ')[0]}",
                "wrong": wrong,
            }
    return {"found": False, "crashes": len(calls), "at": "", "wrong": ""}


def violation(found: dict[str, Any]) -> str:
    """The promise that a crash has broken; empty if none."""
    if found["outcome"] not in ("new", "previous"):
        return str(found["outcome"])
    if found["half"]:
        return "half a checkpoint under a name that counts"
    # broken stores do not handle an existing step
    if found["again"] and found["outcome"] == "previous":
        return f"the next attempt: {found['again']}"
    return ""
