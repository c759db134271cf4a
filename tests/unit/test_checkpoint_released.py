"""Whatever is opened is closed again, however it ends: each operation on checkpoints, with each of
its calls refused in turn.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import pytest

from ecrl_cli.checkpoint.capture import loading
from ecrl_cli.checkpoint.format.names import LATEST, MANIFEST, MODEL, STEP_METADATA, TRAIN
from ecrl_cli.checkpoint.repair.diagnose import diagnose
from ecrl_cli.checkpoint.repair.repair import repair
from ecrl_cli.checkpoint.repair.scrub import scrub
from ecrl_cli.checkpoint.store.fencing import FencingToken
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.step_metadata import StepMetadata, read_step_metadata
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.storage.writing import WriteMode
from tests.unit.checkpoint_support import CONFIG, commit, flip, store_at

T = TypeVar("T")
UNSAFE = replace(CONFIG, mode=WriteMode(sync_files=False, atomic=False, sync_directories=False))


class RefusesOne(FsWrapper):
    """The call of that number is refused with EIO; closing is none, and nothing is synced.
    `open_files` (of the base class) are those that have not been closed.
    """

    def __init__(self, number: int) -> None:
        super().__init__(PosixFs())
        self.left = number

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        if call != "close":
            self.left -= 1
            if self.left == 0:
                raise StorageError.of(call, path, OSError(errno.EIO, "refused"))
        return act() if call not in ("fsync", "fsyncdir") else cast("T", None)


def saving(root: Path, fs: Fs, *, single: bool = False, unsafe: bool = False) -> None:
    with closing(CheckpointStore(root / "checkpoints", UNSAFE if unsafe else CONFIG, fs)) as store:
        commit(store, 30, single=single)


def loading_it(root: Path, fs: Fs) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "PosixFs", lambda: fs)
        loading.load_checkpoint(root / "checkpoints" / "step_00000020")


def repairing(root: Path, fs: Fs) -> None:
    path = root / "checkpoints" / "step_00000010"
    found = diagnose(path)
    assert found.repairable
    repair(path, found, root / "repaired", fs=fs)


def reading_metadata(root: Path, fs: Fs) -> None:
    metadata = StepMetadata("r", 0, 6, "dcp", (), {})
    (root / "step").mkdir(exist_ok=True)
    (root / "step" / STEP_METADATA).write_bytes(metadata.encoded())
    with suppress(ValueError):  # its train.json is none
        read_step_metadata(fs, root / "step")


OPERATIONS: dict[str, Callable[[Path, Fs], object]] = {
    "save a group": saving,
    "save a single file": lambda root, fs: saving(root, fs, single=True),
    "save in place": lambda root, fs: saving(root, fs, unsafe=True),
    "save a single file in place": lambda root, fs: saving(root, fs, single=True, unsafe=True),
    "claim": lambda root, fs: FencingToken(fs, root / "checkpoints").claim(1),
    "check a group": lambda root, fs: verify_checkpoint(
        root / "checkpoints" / "step_00000020", fs=fs
    ),
    "check a single file": lambda root, fs: verify_checkpoint(
        root / "checkpoints" / "step_00000025.safetensors", fs=fs
    ),
    "load": loading_it,
    "diagnose a group": lambda root, fs: diagnose(root / "checkpoints" / "step_00000010", fs=fs),
    "diagnose a single file": lambda root, fs: diagnose(
        root / "checkpoints" / "step_00000025.safetensors", fs=fs
    ),
    "repair": repairing,
    "scrub": lambda root, fs: scrub(root / "checkpoints", fs=fs),
    "read the metadata of a step": reading_metadata,
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of steps 10 (a bit of it is flipped), 20, and 25 as a single
    file.
    """
    root = tmp_path_factory.mktemp("history")
    with closing(store_at(root, replace(CONFIG, keep=9))) as store:
        for step in (10, 20):
            commit(store, step)
        commit(store, 25, single=True)
    flip(root / "checkpoints" / "step_00000010" / MODEL, 5000)
    return root


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_file_is_closed_again_whichever_call_is_refused(
    tmp_path: Path, history: Path, name: str
) -> None:
    left_open: dict[int, list[str]] = {}
    # of so many calls one in six
    for number in range(1, 400, 6 if name.startswith(("save", "repair", "scrub")) else 1):
        root = tmp_path / str(number)
        shutil.copytree(history, root, symlinks=True)
        fs = RefusesOne(number)
        with suppress(StorageError):
            OPERATIONS[name](root, fs)
        if fs.open_files:
            left_open[number] = sorted(path.name for path in fs.open_files.values())
        if fs.left > 0:
            break
    assert left_open == {} and 4 < number < 390


@pytest.mark.parametrize("place", [LATEST, ".attempt"])
def test_a_small_file_that_holds_nonsense_is_closed_again(tmp_path: Path, place: str) -> None:
    with closing(store_at(tmp_path)) as store:
        commit(store, 10)
    (tmp_path / "checkpoints" / place).write_bytes(b"{")
    fs = RefusesOne(0)
    with suppress(StorageError):
        (
            scrub(tmp_path / "checkpoints", fs=fs)
            if place == LATEST
            else FencingToken(fs, tmp_path / "checkpoints").check(0)
        )
    assert fs.open_files == {}


@pytest.mark.parametrize("file", [MODEL, TRAIN, MANIFEST])
def test_the_files_of_a_refused_checkpoint_are_closed_again(tmp_path: Path, file: str) -> None:
    with closing(store_at(tmp_path)) as store:
        path = commit(store, 10).path
    flip(path / file, 20)
    for look in (verify_checkpoint, diagnose):
        fs = RefusesOne(0)
        look(path, fs=fs)  # type: ignore[operator]
        assert fs.open_files == {}
