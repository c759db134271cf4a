"""The store that the writing process uses where a failure of a save is planned: injects the planned
faults into its saves.
"""

from __future__ import annotations

import time
from pathlib import Path

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved, StoreConfig
from ecrl_cli.failures.fault_kind import InjectionContext, fault_kind
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import InjectedFault, PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fault_injecting_fs import Fault, FaultyFs
from ecrl_cli.storage.fs import Buffer, Fs


def store_for(
    root: Path, config: StoreConfig, layout: RunLayout, pending: tuple[PlannedFailure, ...]
) -> CheckpointStore:
    """The plain store, unless one of the `pending` failures hits a save."""
    planned = tuple(entry for entry in pending if entry.moment == "save")
    return (
        FaultyRunStore(root, config, layout, planned) if planned else CheckpointStore(root, config)
    )


class FaultyRunFs(FaultyFs):
    """Fails armed calls, and delays each write and sync by `delay_s`."""

    def __init__(self, behind: Fs) -> None:
        super().__init__(behind)
        self.delay_s = 0.0

    def write(self, fd: int, data: Buffer) -> int:
        time.sleep(self.delay_s)
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        time.sleep(self.delay_s)
        super().fsync(fd)

    def fsyncdir(self, path: Path) -> None:
        time.sleep(self.delay_s)
        super().fsyncdir(path)


class FaultyRunStore(CheckpointStore):
    """Injects at most one of `planned` into each save: the first that is due and not yet
    claimed.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        layout: RunLayout,
        planned: tuple[PlannedFailure, ...],
    ) -> None:
        super().__init__(root, config)
        self._layout, self._left = layout, list(planned)
        self._faulty = FaultyRunFs(self.fs)
        self.fs, self.crash_point = self._faulty, self._reached
        self._entry: PlannedFailure | None = None
        # (step, attempt); number of saves still to be slowed down
        self._saving, self._slow = (0, 0), 0

    def save(self, image: CheckpointImage, attempt: int) -> Saved:
        self._saving = (image.stamp.global_step, attempt)
        self._faulty.arm(None)
        self._slow = max(0, self._slow - 1)
        self._entry = next(
            (entry for entry in self._left if entry.global_step <= image.stamp.global_step), None
        )
        if self._entry and not self._entry.point:
            self._inject(self._entry)
        if not self._slow:
            self._faulty.delay_s = 0.0
        return super().save(image, attempt)

    def _reached(self, point: str) -> None:
        entry = self._entry
        if entry and entry.point and (point == entry.point or point.startswith(f"{entry.point}:")):
            self._inject(entry)

    def _inject(self, entry: PlannedFailure) -> None:
        self._entry = None
        self._left.remove(entry)
        step, attempt = self._saving
        if not claim(
            self._layout,
            InjectedFault(
                entry.index,
                entry.kind,
                entry.rank,
                entry.global_step,
                attempt,
                monotonic(),
                wall(),
                step,
            ),
        ):
            return
        fault_kind(entry.kind).inject_into_save(self, InjectionContext(self._layout, entry))

    def fail_next(self, fault: Fault) -> None:
        """Arms `fault` for the save in progress."""
        self._faulty.arm(fault)

    def slow_down(self, seconds: float, saves: int) -> None:
        """Delays each write and sync by `seconds`, in the save in progress and those after it,
        `saves` in all.
        """
        self._faulty.delay_s, self._slow = seconds, saves
