"""Planted bugs of the kind "guard": integrity checks that leave something out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, MODEL, OPTIMIZER, RNG, STEP_NAME, TRAIN
from ecrl_cli.checkpoint.store.atomic_install import sidecar_of
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Fs, PosixFs

Look = Callable[[Path, IntegrityConfig | None, Fs | None], IntegrityReport]


def blind_at(layer: str) -> Look:
    """Whatever the integrity check would reject at `layer` passes, and later layers do not see it."""

    def look(path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None) -> IntegrityReport:
        report = verify_checkpoint(path, config, fs)
        return _passed(report) if report.layer == layer else report

    return look


def sizes_only(path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None) -> IntegrityReport:
    """Checks records, names and sizes only, not contents."""
    return verify_checkpoint(path, replace(config or IntegrityConfig(), contents=False), fs)


def names_only(path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None) -> IntegrityReport:
    """Checks names only: a checkpoint with all its files passes."""
    fs, report = fs or PosixFs(), verify_checkpoint(path, config, fs)
    try:
        names = set(fs.listdir(path.parent if path.suffix else path))
    except StorageError:
        return report
    due = {path.name, sidecar_of(path).name} if path.suffix else {COMMIT, MANIFEST, MODEL, OPTIMIZER, RNG, TRAIN}
    return _passed(report) if due <= names else replace(report, ok=False, layer="parts", reason="a file is missing")


def _passed(report: IntegrityReport) -> IntegrityReport:
    match = STEP_NAME.match(report.path.name)
    step = report.global_step if report.global_step is not None or match is None else int(match[1])
    return replace(report, ok=True, layer="", reason="", global_step=step)
