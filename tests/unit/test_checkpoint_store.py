"""The store: order of the calls, idempotence, conflicts, fencing, retention, what a refused write
leaves behind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.manifest import read_commit
from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, LATEST_OK, MANIFEST, MODEL
from ecrl_cli.checkpoint.store.catalog import newest_valid
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.errors import CheckpointConflict, Fenced, StorageError
from ecrl_cli.storage.fs import Buffer, PosixFs
from ecrl_cli.storage.writing import WriteMode
from tests.needs import require
from tests.recording_fs import Call, RecordingFs
from tests.unit.checkpoint_support import CONFIG, commit, flip, image, store_at


@pytest.fixture(params=[False, True], ids=["group", "single"])
def single(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def names(store: CheckpointStore) -> list[str]:
    return [entry.path.name.partition(".")[0] for entry in store.entries()]


def recorded(tmp_path: Path, mode: WriteMode, *, single: bool = False) -> list[Call]:
    fs = RecordingFs()
    store = store_at(tmp_path, replace(CONFIG, mode=mode), fs)
    fs.calls.clear()
    store.save(image(20, single=single), 0)
    store.close()
    return fs.calls


def index(calls: list[Call], name: str, file: str) -> int:
    return next(
        i
        for i, call in enumerate(calls)
        if call.name == name and file in (call.path.name, Path(call.target).name)
    )


def test_a_group_is_synced_inside_out_and_the_commit_is_written_last(tmp_path: Path) -> None:
    calls = recorded(tmp_path, WriteMode())
    stage = calls[0].path
    created = [call.path.name for call in calls if call.name == "create"]
    assert created[-2:] == [MANIFEST, COMMIT]
    for name in created:
        assert (
            index(calls, "create", name)
            < index(calls, "fsync", name)
            < index(calls, "fsyncdir", stage.name)
        )
    assert [call.name for call in calls[-3:]] == ["fsyncdir", "rename", "fsyncdir"]
    assert (
        calls[-2].target == str(tmp_path / "checkpoints" / "step_00000020")
        and calls[-1].path == tmp_path / "checkpoints"
    )


def test_a_single_file_is_named_before_its_sidecar_and_both_are_synced_before_that(
    tmp_path: Path,
) -> None:
    calls = recorded(tmp_path, WriteMode(), single=True)
    data, sidecar = (
        index(calls, "rename", "step_00000020.safetensors"),
        index(calls, "rename", "step_00000020.json"),
    )
    assert data < sidecar and len([call for call in calls[:data] if call.name == "fsync"]) == 2
    assert calls[-1].name == "fsyncdir"


def test_a_write_mode_leaves_out_exactly_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    nodirsync = {call.name for call in recorded(tmp_path / "a", WriteMode(sync_directories=False))}
    unsafe = {call.name for call in recorded(tmp_path / "b", WriteMode(False, False, False))}
    assert nodirsync == {"mkdir", "create", "write", "fsync", "rename"}
    assert unsafe == {"mkdir", "create", "write"}


def test_the_new_folder_is_made_durable_in_its_parent(tmp_path: Path) -> None:
    fs = RecordingFs()
    store_at(tmp_path, fs=fs).close()
    assert [(call.name, call.path.name) for call in fs.calls[:2]] == [
        ("mkdir", "checkpoints"),
        ("fsyncdir", tmp_path.name),
    ]


def test_commits_are_chained_to_the_one_before(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    first = commit(store, 10)
    second = commit(store, 20)
    assert read_commit((first.path / COMMIT).read_bytes()).prev_commit_sha256 is None
    assert (
        read_commit((second.path / COMMIT).read_bytes()).prev_commit_sha256 == first.commit_sha256
    )


def test_the_same_state_again_is_no_error_and_changes_nothing(tmp_path: Path, single: bool) -> None:
    store = store_at(tmp_path)
    saved = commit(store, 20, single=single)
    before = saved.path.stat().st_ino
    store.claim(1)
    assert store.save(image(20, single=single), 1).commit_sha256 == saved.commit_sha256
    assert saved.path.stat().st_ino == before and names(store) == ["step_00000020"]


@pytest.mark.parametrize("digest", DIGESTS)
def test_whatever_the_digest_what_was_saved_passes(
    tmp_path: Path, single: bool, digest: str
) -> None:
    store = store_at(tmp_path, replace(CONFIG, digest=digest))
    report = store.verify(commit(store, 20, single=single).path)
    assert report.ok and report.manifest is not None and report.manifest.digest == digest


@pytest.mark.parametrize(
    "mode", [WriteMode(), WriteMode(False, False, False)], ids=["atomic", "unsafe"]
)
def test_another_state_under_the_same_name_is_a_conflict(
    tmp_path: Path, single: bool, mode: WriteMode
) -> None:
    store = store_at(tmp_path, replace(CONFIG, mode=mode))
    saved = commit(store, 20, single=single)
    with pytest.raises(CheckpointConflict, match="holds another state"):
        store.save(image(20, single=single, seed=2), 0)
    report = store.newest_valid().report
    assert report is not None and report.commit_sha256 == saved.commit_sha256
    assert not leftovers(store)


def test_a_damaged_checkpoint_in_the_way_is_set_aside_not_overwritten(
    tmp_path: Path, single: bool
) -> None:
    store = store_at(tmp_path)
    saved = commit(store, 20, single=single)
    flip(saved.path if single else saved.path / MODEL, 5000)
    store.save(image(20, single=single, seed=2), 0)
    assert store.newest_valid().rejected == ()
    assert len(with_prefix(store, ".rejected_step_00000020")) == (2 if single else 1)


@pytest.mark.parametrize("gone", [".safetensors", ".json"])
def test_half_of_a_single_file_in_the_way_is_set_aside(tmp_path: Path, gone: str) -> None:
    store = store_at(tmp_path)
    commit(store, 20, single=True).path.with_suffix(gone).unlink()
    commit(store, 20, single=True)
    assert store.newest_valid().rejected == () and names(store) == ["step_00000020"]
    assert len(with_prefix(store, ".rejected_step_00000020")) == 1


@pytest.mark.parametrize("there", ["a link", "a file"])
def test_what_is_no_folder_in_the_way_is_set_aside(tmp_path: Path, there: str) -> None:
    store = store_at(tmp_path)
    path = store.root / "step_00000020"
    path.symlink_to(tmp_path) if there == "a link" else path.write_bytes(b"x")
    assert commit(store, 20).path == path and path.is_dir() and not path.is_symlink()
    assert (
        len(with_prefix(store, ".rejected_step_00000020")) == 1
        and store.newest_valid().rejected == ()
    )


def test_the_predecessor_of_a_checkpoint_is_the_newest_older_one(tmp_path: Path) -> None:
    """Steps may be saved again after newer ones, after a resume from an older one."""
    with closing(store_at(tmp_path, replace(CONFIG, keep=9))) as store:
        saved = {step: store.save(image(step), 0) for step in (20, 10, 30, 25)}
    commits = {step: read_commit((each.path / COMMIT).read_bytes()) for step, each in saved.items()}
    own = {step: record.self_sha256 for step, record in commits.items()}
    assert {step: record.prev_commit_sha256 for step, record in commits.items()} == {
        20: None,
        10: None,
        30: own[20],
        25: own[20],
    }


def test_what_replaces_a_damaged_checkpoint_follows_the_one_before_it(tmp_path: Path) -> None:
    """Its records are in order still; it is set aside all the same, and no predecessor."""
    store = store_at(tmp_path)
    before = commit(store, 10)
    flip(commit(store, 20).path / MODEL, 5000)
    saved = store.save(image(20, seed=2), 0)
    assert (
        read_commit((saved.path / COMMIT).read_bytes()).prev_commit_sha256 == before.commit_sha256
    )


def test_an_older_attempt_is_fenced_before_and_during_its_save(tmp_path: Path) -> None:
    old = store_at(tmp_path, attempt=3)
    new = CheckpointStore(tmp_path / "checkpoints", CONFIG)

    def newer_one_comes(point: str) -> None:
        if point == "after_commit":
            new.claim(4)

    old.crash_point = newer_one_comes
    with pytest.raises(Fenced):
        old.save(image(20), 3)
    assert names(new) == []
    with pytest.raises(Fenced):
        old.save(image(30), 3)
    with pytest.raises(Fenced):
        old.claim(3)
    commit(new, 20, attempt=4)
    assert names(new) == ["step_00000020"]


def test_a_fenced_writer_whose_stage_still_stands_does_not_rename_it(tmp_path: Path) -> None:
    fs = RecordingFs()
    old = store_at(tmp_path, fs=fs, attempt=3)

    def token_changes(point: str) -> None:
        if point == "before_stage_sync":
            (old.root / ".attempt").write_bytes(b'{"attempt":4}')

    old.crash_point = token_changes
    with pytest.raises(Fenced):
        old.save(image(20), 3)
    assert names(old) == [] and not leftovers(old)
    assert not [call for call in fs.calls if call.name == "rename" and "step_" in call.target]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"attempt":"x"}', b"\xff" * 10, b"{" * 900]
)
def test_a_damaged_lease_is_an_error_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    store = store_at(tmp_path)
    (store.root / ".attempt").write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        store.save(image(20), 0)


def with_prefix(store: CheckpointStore, *prefixes: str) -> list[str]:
    return [path.name for path in store.root.iterdir() if path.name.startswith(prefixes)]


def leftovers(store: CheckpointStore) -> list[str]:
    return with_prefix(store, ".stage_", ".trash_", ".tmp_")


def test_retention_keeps_the_newest_and_clears_the_rest(tmp_path: Path, single: bool) -> None:
    store = store_at(tmp_path, replace(CONFIG, keep=3))
    for step in range(10, 70, 10):
        commit(store, step, single=single)
    assert names(store) == ["step_00000060", "step_00000050", "step_00000040"]
    # and the lease, latest.json, latest_ok
    assert len(with_prefix(store, "")) == (6 if single else 3) + 3


def test_retention_never_goes_below_two(tmp_path: Path) -> None:
    store = store_at(tmp_path, replace(CONFIG, keep=0))
    for step in (10, 20, 30):
        commit(store, step)
    assert names(store) == ["step_00000030", "step_00000020"]


def test_retention_keeps_the_last_valid_one_when_the_newer_are_corrupt(
    tmp_path: Path, single: bool
) -> None:
    first = store_at(tmp_path, replace(CONFIG, keep=10))
    paths = {step: commit(first, step, single=single).path for step in (10, 20, 30, 40)}
    first.close()
    for step in (20, 30, 40):
        flip(paths[step] if single else paths[step] / MODEL, 5000)
    store = store_at(tmp_path, replace(CONFIG, keep=2))
    assert store.retire() == ()
    commit(store, 50, single=single)
    assert names(store)[-1] == "step_00000010"
    commit(store, 60, single=single)
    assert names(store) == ["step_00000060", "step_00000050"]


def test_retention_sees_that_what_it_wrote_itself_was_cut_off_since(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for step in (10, 20):
        saved = commit(store, step)
    os.truncate(saved.path / MODEL, 100)
    commit(store, 30)
    assert "step_00000010" in names(store)


def test_retention_does_not_count_what_was_put_in_the_place_of_what_it_wrote(
    tmp_path: Path,
) -> None:
    """Another commit under the same name, with its records in order and its tensors damaged."""
    (tmp_path / "other").mkdir()
    store, other = store_at(tmp_path), store_at(tmp_path / "other")
    for step in (10, 20):
        path = commit(store, step).path
    foreign = other.save(image(20, seed=2), 0).path
    flip(foreign / MODEL, 5000)
    shutil.rmtree(path)
    shutil.copytree(foreign, path)
    commit(store, 30)
    assert "step_00000010" in names(store)


def test_the_newest_valid_one_is_chosen_by_step_not_by_time_and_each_refusal_is_told(
    tmp_path: Path,
) -> None:
    store = store_at(tmp_path, replace(CONFIG, keep=9))
    paths = {step: commit(store, step).path for step in (10, 20, 30, 40)}
    flip(paths[40] / COMMIT, 20)
    flip(paths[30] / MODEL, 5000)
    for rank, step in enumerate((40, 30, 20, 10)):
        os.utime(paths[step], (rank, rank))
    choice = store.newest_valid()
    assert choice.report is not None and choice.report.global_step == 20
    assert [(r.path, r.layer) for r in choice.rejected] == [
        ("checkpoints/step_00000040", "commit"),
        ("checkpoints/step_00000030", "hash"),
    ]
    for rejected in choice.rejected:
        store.quarantine(tmp_path / rejected.path)
    assert names(store) == ["step_00000020", "step_00000010"]
    assert len(with_prefix(store, ".rejected_")) == 2


def test_a_checkpoint_whose_name_was_late_is_chosen_and_not_among_the_refused(
    tmp_path: Path,
) -> None:
    """As a network file system answers: not there at the first look, there at the second."""
    store = store_at(tmp_path)
    commit(store, 10)
    late = [commit(store, 20).path]

    def look(path: Path) -> IntegrityReport:
        return (
            IntegrityReport(late.pop(), False, "file", f"ENOENT at {path.name}")
            if path in late
            else store.verify(path)
        )

    choice = newest_valid(store.fs, store.root, look)
    assert choice.report is not None and (choice.report.global_step, choice.rejected) == (20, ())


def test_the_pointers_name_the_newest(tmp_path: Path, single: bool) -> None:
    store = store_at(tmp_path)
    commit(store, 10, single=single)
    saved = commit(store, 20, single=single)
    latest = json.loads((store.root / LATEST).read_bytes())
    assert {key: latest[key] for key in ("path", "global_step", "epoch", "world_size")} == {
        "path": saved.path.name,
        "global_step": 20,
        "epoch": 0,
        "world_size": 1,
    }
    assert latest["timestamp"] > 0
    assert str((store.root / LATEST_OK).readlink()) == saved.path.name


def test_reconcile_finds_what_an_attempt_wrote(tmp_path: Path, single: bool) -> None:
    store = store_at(tmp_path, attempt=2)
    saved = commit(store, 20, single=single, attempt=2)
    found = store.reconcile(20, 2)
    assert found is not None and found.commit_sha256 == saved.commit_sha256
    assert store.reconcile(20, 1) is None and store.reconcile(30, 2) is None
    flip(saved.path if single else saved.path / MODEL, 5000)
    assert store.reconcile(20, 2) is None


def test_claiming_removes_what_a_dead_writer_left(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    (store.root / ".stage_00000020.0.12345678").mkdir()
    (store.root / ".stage_00000020.0.12345678" / MODEL).write_bytes(b"half")
    (store.root / ".trash_step_00000010.12345678").mkdir()
    (store.root / ".stage_00000030.0.12345678.safetensors").write_bytes(b"half")
    (store.root / ".tmp_latest.json.12345678").write_bytes(b"{")
    store.claim(1)
    assert not leftovers(store)


class Failing(PosixFs):
    """Refuses the n-th mutating call with `number`."""

    def __init__(self, nth: int, number: int) -> None:
        super().__init__()
        self.left, self.number, self.syncs = nth, number, 0

    def _count(self, call: str, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            raise StorageError.of(call, path, OSError(self.number, os.strerror(self.number)))

    def mkdir(self, path: Path) -> None:
        self._count("mkdir", path)
        super().mkdir(path)

    def write(self, fd: int, data: Buffer) -> int:
        self._count("write", self._path(fd))
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._count("fsync", self._path(fd))
        super().fsync(fd)

    def fsyncdir(self, path: Path) -> None:
        self._count("fsyncdir", path)
        super().fsyncdir(path)

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        self._count("rename", target)
        super().rename(source, target, replace=replace)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_whichever_call_is_refused_the_error_names_it_and_the_previous_checkpoint_stands(
    tmp_path: Path, single: bool, number: int
) -> None:
    refused = 0
    for nth in range(1, 100):
        root = tmp_path / str(nth)
        root.mkdir()
        healthy = store_at(root)
        commit(healthy, 10, single=single)
        fs = Failing(nth, number)
        store = CheckpointStore(root / "checkpoints", CONFIG, fs)
        try:
            store.save(image(20, single=single), 0)
        except StorageError as error:
            refused += 1
            assert errno.errorcode[number] in error.line() and error.exit_code == 5
        else:
            assert fs.left > 0
            break
        assert not leftovers(healthy)
        choice = healthy.newest_valid()
        # a refusal after the rename leaves a whole checkpoint that was not acknowledged: legal, and
        # it may be found
        assert choice.report is not None and choice.report.global_step in (10, 20)
        saved = commit(healthy, 20, single=single)
        report = healthy.newest_valid().report
        assert report is not None and report.commit_sha256 == saved.commit_sha256
        store.close()
        healthy.close()
    assert refused >= 9


def test_a_failed_sync_is_never_tried_again(tmp_path: Path) -> None:
    class FailingSync(RecordingFs):
        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            raise StorageError.of("fsync", self.path_of(fd), OSError(errno.EIO, "gone"))

    fs = FailingSync()
    store = store_at(tmp_path, replace(CONFIG, mode=WriteMode()), attempt=0)
    store.fs = fs
    with pytest.raises(StorageError, match="EIO"):
        store.save(image(20), 0)
    assert len([call for call in fs.calls if call.name == "fsync"]) == 1
    assert names(store) == [] and not leftovers(store)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte; skipped where mounting is not allowed."""
    require("root", "private mounts")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)],
        capture_output=True,
        check=True,
    )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_fails_the_save_and_gives_the_space_back(
    small_disk: Path, single: bool
) -> None:
    store = store_at(small_disk, replace(CONFIG, keep=9))
    step = 0
    with pytest.raises(StorageError, match="ENOSPC"):
        for step in range(10, 1000, 10):
            commit(store, step, single=single)
    assert step > 20
    report = store.newest_valid().report
    assert report is not None and report.global_step == step - 10 and not leftovers(store)
    store.quarantine(report.path)
    for name in with_prefix(store, ".rejected_"):
        subprocess.run(["rm", "-r", str(store.root / name)], check=True)
    assert commit(store, step, single=single).path.exists()
    store.close()


def test_what_is_retired_loses_its_commit_first(tmp_path: Path) -> None:
    fs = RecordingFs()
    store = store_at(tmp_path, fs=fs)
    for step in (10, 20, 30):
        fs.calls.clear()
        commit(store, step)
    gone = [
        call for call in fs.calls if call.name == "unlink" and ".trash_" in str(call.path.parent)
    ]
    assert gone[0].path.name == COMMIT and len(gone) == 6
    moved = next(
        i
        for i, call in enumerate(fs.calls)
        if call.name == "rename" and "step_00000010" in call.path.name
    )
    assert moved < fs.calls.index(gone[0])
    acknowledged = next(
        i for i, call in enumerate(fs.calls) if call.name == "fsyncdir" and call.path == store.root
    )
    assert acknowledged < moved


@pytest.mark.parametrize("synced", [True, False])
def test_what_changes_a_name_is_durable_when_it_returns_where_the_mode_says_so(
    tmp_path: Path, single: bool, synced: bool
) -> None:
    """What was put aside stays aside, and where the pointers point they point, whenever the power
    fails.
    """
    fs = RecordingFs()
    store = store_at(tmp_path, replace(CONFIG, mode=WriteMode(sync_directories=synced)), fs)
    path = commit(store, 20, single=single).path
    fs.calls.clear()
    store.point(path, {"global_step": 20})
    pointed = fs.calls[:]
    fs.calls.clear()
    moved = store.quarantine(path)
    store.close()
    assert len(moved) == (2 if single else 1) and names(store) == []
    for calls in (pointed, fs.calls):
        assert "rename" in [call.name for call in calls]
        assert (calls[-1].name == "fsyncdir" and calls[-1].path == store.root) == synced
        assert [call.name for call in calls].count("fsyncdir") == int(synced)


class _UnreadableFs(PosixFs):
    """Once `broken`, no byte of a part can be read: EIO."""

    broken = False

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self.broken and self._path(fd).name != ".attempt":
            raise StorageError.of(
                "read", self._path(fd), OSError(errno.EIO, os.strerror(errno.EIO))
            )
        return super().read_at(fd, buffer, offset)


def test_an_acknowledged_checkpoint_that_cannot_be_read_is_neither_moved_nor_replaced(
    tmp_path: Path, single: bool
) -> None:
    fs = _UnreadableFs()
    store = store_at(tmp_path, CONFIG, fs)
    commit(store, 20, single=single)
    before = sorted(path.name for path in store.root.iterdir())
    fs.broken = True
    with pytest.raises(StorageError, match="EIO"):
        store.save(image(20, single=single), 0)
    assert sorted(path.name for path in store.root.iterdir()) == before
    store.close()
