"""Bugs planted into the checkpoint protocol, one per entry, which the studies must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STAGE_PREFIX,
    STEP_NAME,
    TRAIN,
)
from ecrl_cli.checkpoint.store.atomic_install import CrashHook
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.store import StoreConfig
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.studies.mutants.store import (
    AcknowledgesBeforeTheRename,
    AcknowledgesBeforeTheSync,
    CommitsBeforeTheParts,
    MutantStore,
    OverwritesInPlace,
    RenamesBeforeTheManifest,
    RetiresBeforeTheRename,
    RetiresBeforeTheSync,
    ReusesTheStage,
    SweepsWhatIsOld,
    TrustsThePointer,
    UnlinksThePartsFirst,
    VerifyCheckpoint,
    blind_at,
    names_only,
    sizes_only,
)


class RootedFs(FsWrapper):
    """Base of file systems that change a few calls. `root`: the checkpoints folder of the store on
    it.
    """

    def __init__(self, fs: Fs, root: Path) -> None:
        super().__init__(fs)
        self.root = root


MakeFs = Callable[[Fs, Path], Fs]


def forgets_files(forgotten: Callable[[Path], bool]) -> MakeFs:
    """`fsync` does nothing for a file that is `forgotten`."""

    class ForgetsFiles(RootedFs):
        def fsync(self, fd: int) -> None:
            if not forgotten(self.open_files[fd]):
                super().fsync(fd)

    return ForgetsFiles


def forgets_folders(forgotten: Callable[[Path, Path], bool]) -> MakeFs:
    """`fsyncdir` does nothing for a folder that is `forgotten(folder, checkpoints)`."""

    class ForgetsFolders(RootedFs):
        def fsyncdir(self, path: Path) -> None:
            if not forgotten(path, self.root):
                super().fsyncdir(path)

    return ForgetsFolders


class ForgetsTheNewName(RootedFs):
    """The folder sync after a checkpoint's rename does nothing."""

    armed = False

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        super().rename(source, target, replace=replace)
        self.armed = self.armed or (
            STEP_NAME.match(target.name) is not None and source.name.startswith(STAGE_PREFIX)
        )

    def fsyncdir(self, path: Path) -> None:
        if self.armed and path == self.root:
            self.armed = False
        else:
            super().fsyncdir(path)


@dataclass(frozen=True)
class StoreMutant:
    """`step`: the protocol step that it breaks. `kind`: order | sync | guard. `mode`, `layout`:
    where it shows.

    `situation`: the workload of the power-loss model in which it shows.
    """

    name: str
    step: str
    kind: str
    mode: str = "atomic_dirsync"
    layout: str = "group"
    situation: str = "one"
    make_fs: MakeFs | None = None
    make_store: type[MutantStore] = MutantStore
    verifier: VerifyCheckpoint = verify_checkpoint

    def wrapped(self, fs: Fs, root: Path) -> Fs:
        """The file system with the bug; `fs` itself if the bug is elsewhere."""
        return self.make_fs(fs, root) if self.make_fs else fs

    def store(
        self, root: Path, config: StoreConfig, fs: Fs, crash_point: CrashHook = lambda name: None
    ) -> MutantStore:
        """The broken store at `root`, on `fs`."""
        made = self.make_store(root, config, self.wrapped(fs, root), crash_point)
        made.verifier = self.verifier
        return made


def _no_fsync(file: str) -> StoreMutant:
    return StoreMutant(
        f"no_fsync_{file.partition('.')[0].lower()}",
        f"fsync of {file}",
        "sync",
        make_fs=forgets_files(lambda path: path.name == file),
    )


def _no_fsync_single(suffix: str, what: str) -> StoreMutant:
    make_fs = forgets_files(
        lambda path: path.name.startswith(STAGE_PREFIX) and path.name.endswith(suffix)
    )
    return StoreMutant(
        f"no_fsync_single_{what}",
        f"fsync of a single file's {what}",
        "sync",
        layout="single",
        make_fs=make_fs,
    )


def _no_fsyncdir(name: str, step: str, situation: str, make_fs: MakeFs) -> StoreMutant:
    return StoreMutant(name, step, "sync", situation=situation, make_fs=make_fs)


def _order(
    name: str,
    step: str,
    store: type[MutantStore],
    situation: str = "one",
    mode: str = "atomic_dirsync",
) -> StoreMutant:
    return StoreMutant(name, step, "order", mode, situation=situation, make_store=store)


def _integrity_bug(name: str, step: str, verifier: VerifyCheckpoint) -> StoreMutant:
    return StoreMutant(name, step, "guard", "unsafe", verifier=verifier)


STORE_MUTANTS: tuple[StoreMutant, ...] = (
    *(_no_fsync(file) for file in (MODEL, OPTIMIZER, RNG, TRAIN, MANIFEST, COMMIT)),
    _no_fsync_single(".safetensors", "data"),
    _no_fsync_single(".json", "sidecar"),
    StoreMutant(
        "close_as_sync", "every fsync of a file", "sync", make_fs=forgets_files(lambda path: True)
    ),
    _no_fsyncdir(
        "no_stage_sync",
        "fsync of the stage",
        "one",
        forgets_folders(lambda path, root: path.name.startswith(STAGE_PREFIX)),
    ),
    _no_fsyncdir(
        "no_root_sync", "fsync of checkpoints/ after the rename", "one", ForgetsTheNewName
    ),
    _no_fsyncdir(
        "no_parent_sync",
        "fsync of the run directory",
        "first",
        forgets_folders(lambda path, root: path == root.parent),
    ),
    _order("ack_before_rename", "acknowledge before the rename", AcknowledgesBeforeTheRename),
    _order(
        "ack_before_root_sync", "acknowledge before the sync of the name", AcknowledgesBeforeTheSync
    ),
    _order("retire_before_rename", "retention before the rename", RetiresBeforeTheRename, "two"),
    _order(
        "retire_before_root_sync",
        "retention before the sync of the name",
        RetiresBeforeTheSync,
        "two",
    ),
    _order("rename_before_manifest", "rename before MANIFEST and COMMIT", RenamesBeforeTheManifest),
    _order("commit_before_parts", "COMMIT before the parts", CommitsBeforeTheParts),
    _order(
        "pointer_trusted",
        "pointer before the sync of the name, and trusted",
        TrustsThePointer,
        "two",
    ),
    _order(
        "janitor_sweeps_old",
        "janitor leaves the newest name only",
        SweepsWhatIsOld,
        "recovery",
        "unsafe",
    ),
    _order(
        "parts_before_commit", "retention unlinks COMMIT last", UnlinksThePartsFirst, "retention"
    ),
    _order(
        "stage_reused", "a stage of a dead writer is gone on with", ReusesTheStage, "stale_stage"
    ),
    _order("overwrite_in_place", "no stage: written over the name", OverwritesInPlace, "again"),
    _integrity_bug("guard_names_only", "recovery without hashes", names_only),
    _integrity_bug("guard_sizes_only", "recovery by names and sizes", sizes_only),
    *(
        _integrity_bug(
            f"guard_skips_{layer}", f"layer {layer} of the integrity check", blind_at(layer)
        )
        for layer in ("commit", "manifest", "parts", "hash")
    ),
)
