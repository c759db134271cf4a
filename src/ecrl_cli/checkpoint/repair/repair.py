"""Writes a repaired copy of a damaged checkpoint: into a new folder, never in place, and only if
the copy passes the integrity check.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ecrl_cli.checkpoint.format.names import STAGE_PREFIX
from ecrl_cli.checkpoint.repair.damage import corrected
from ecrl_cli.checkpoint.repair.diagnose import Diagnosis, Source
from ecrl_cli.checkpoint.store.atomic_install import remove_group, sidecar_of
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.errors import RunDirectoryError, StorageError, shown
from ecrl_cli.storage.fs import CREATE, FOLDER, Fs, PosixFs
from ecrl_cli.storage.safe_read import RefusedFile, open_regular, pieces


def check_folder(out: Path, keep_out: Path) -> None:
    """RunDirectoryError unless `out` is new or empty, and outside of `keep_out`, the folder of the
    damaged checkpoints.
    """
    # realpath also handles loops of links
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(keep_out)):
        raise RunDirectoryError(
            shown(str(out)),
            "lies among the checkpoints that are looked at",
            "name a folder elsewhere",
        )
    if not out.parent.is_dir():
        raise RunDirectoryError(
            shown(str(out.parent)), "does not exist", "make it, or name another folder"
        )
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise RunDirectoryError(shown(str(out)), "is not an empty folder", "name a new one")


def repair(
    path: Path,
    diagnosis: Diagnosis,
    out: Path,
    config: IntegrityConfig | None = None,
    fs: Fs | None = None,
) -> Path:
    """Write a copy of the checkpoint at `path`, with the damage in `diagnosis` repaired, under its
    name into `out` (created if missing); returns the copy's path.

    The copy gets its name once it is durable and passes the integrity check; StorageError, leaving
    nothing behind, if that fails.
    """
    fs, config = fs or PosixFs(), config or IntegrityConfig(trust_owner=True)
    if not diagnosis.repairable:
        raise StorageError(
            "repair",
            f"{path.name} is damaged beyond what its hashes can confirm",
            "resume from another checkpoint",
        )
    if not out.is_dir():
        fs.mkdir(out)
    stage = out / f"{STAGE_PREFIX}repair.{secrets.token_hex(4)}"
    fs.mkdir(stage)
    try:
        _write(fs, path, stage, diagnosis.sources, config)
        report = verify_checkpoint(stage / path.name, config, fs)
        if not report.ok:
            fact = (
                f"the corrected copy of {path.name} is refused by {report.layer}: {report.reason}"
            )
            raise StorageError("repair", fact, "nothing was kept; resume from another checkpoint")
        made_at = stage / path.name
        # the sidecar, which commits it, last
        for made in (made_at, sidecar_of(made_at)) if path.suffix else (made_at,):
            fs.rename(made, out / made.name, replace=False)
        fs.fsyncdir(out)
        fs.fsyncdir(out.parent)
    finally:
        with suppress(StorageError):
            _remove(fs, stage)
    return out / path.name


def _write(fs: Fs, path: Path, stage: Path, sources: list[Source], config: IntegrityConfig) -> None:
    single = bool(path.suffix)
    target = stage if single else stage / path.name
    if not single:
        fs.mkdir(target)
    folder = fs.open(path.parent if single else path, FOLDER)
    try:
        for source in sources:
            _copy(fs, folder, source, target / source.name, config)
    finally:
        fs.close(folder)
    fs.fsyncdir(target)
    fs.fsyncdir(stage)


def _copy(fs: Fs, folder: int, source: Source, target: Path, config: IntegrityConfig) -> None:
    """Copy one file in pieces with its flips undone, and sync it."""
    try:
        fd, size = open_regular(fs, folder, source.name, trust_owner=config.trust_owner)
    except RefusedFile as error:
        raise StorageError("repair", str(error), "it changed since it was looked at") from error
    try:
        made = fs.open(target, CREATE)
        try:
            start = 0
            for piece in pieces(fs, fd, 0, min(size, source.bytes)):
                _write_all(fs, made, memoryview(corrected(piece, start, source.flips)))
                start += len(piece)
            fs.fsync(made)
        finally:
            fs.close(made)
    except RefusedFile as error:
        raise StorageError(
            "repair", f"{source.name} {error}", "it changed since it was looked at"
        ) from error
    finally:
        fs.close(fd)


def _write_all(fs: Fs, fd: int, view: memoryview) -> None:
    while view:
        view = view[fs.write(fd, view) :]


def _remove(fs: Fs, stage: Path) -> None:
    """Remove the stage with all that is left in it."""
    for name in fs.listdir(stage):
        try:
            fs.unlink(stage / name)
        except StorageError:
            remove_group(fs, stage / name)
    fs.rmdir(stage)
