"""What goes wrong beside the commit itself: a full disk, a refused sync, a lost writer. Nobody
waits for ever, and nothing false is claimed.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    LATEST,
    LEASE,
    MODEL,
    STEP_METADATA,
    TRASH_PREFIX,
)
from ecrl_cli.checkpoint.store.atomic_install import remove_group
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.strategies.none import NoneStrategy
from ecrl_cli.checkpoint.writer.client import WriterClient
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.errors import EcrlError, StorageError
from ecrl_cli.failures.injector import Injector
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.storage.fs import Buffer, PosixFs
from ecrl_cli.storage.writing import WriteMode
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.train_loop import TrainLoop
from tests.recording_fs import RecordingFs
from tests.unit.checkpoint_support import CONFIG, commit, image, store_at, writer_process
from tests.unit.test_checkpoint_train_state import Run, config, lines, strategy_of

UNSAFE = WriteMode(sync_files=False, atomic=False, sync_directories=False)


def log_at(root: Path) -> CheckpointLog:
    layout = RunLayout(root)
    return CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)


def hidden(store: CheckpointStore) -> list[str]:
    return sorted(
        path.name
        for path in store.root.iterdir()
        if path.name.startswith(".") and path.name != LEASE
    )


def steps(store: CheckpointStore) -> list[int]:
    return [entry.global_step for entry in store.entries()]


def refusal(call: str, path: Path, number: int) -> StorageError:
    return StorageError.of(call, path, OSError(number, os.strerror(number)))


def test_the_first_save_that_failed_is_the_one_that_is_told(tmp_path: Path) -> None:
    """What follows a full disk may be another error, and says less about the cause."""
    log = log_at(tmp_path)
    log.failed(6, refusal("write", Path(MODEL), errno.ENOSPC), 0.5)
    log.failed(12, refusal("rename", Path(MODEL), errno.ENOENT), 0.25)
    log.close()
    assert log.failure.startswith("step 6 was not saved") and "No space left" in log.failure
    assert [(line.global_step, line.event, line.write_s) for line in lines(tmp_path)] == [
        (6, "failed", 0.5),
        (12, "failed", 0.25),
    ]


def test_a_defect_in_the_receiving_thread_is_told_to_the_training_thread(tmp_path: Path) -> None:
    def make(memory: Memory) -> None:
        memory.close()
        raise RuntimeError("out of memory")

    with listen(RunLayout(tmp_path).writer) as listener:
        client = WriterClient(RunLayout(tmp_path), make)  # type: ignore[arg-type]
        writer, memory = Channel(listener.accept()[0]), Memory.create(4096)
        writer.send({"kind": "grant", "slot": 0, "nbytes": 4096, "memory": True}, memory.fd)
        told: list[BaseException] = []

        def take() -> None:
            try:
                client.take()
            except EcrlError as error:
                told.append(error)

        waiting = threading.Thread(target=take, daemon=True)
        waiting.start()
        waiting.join(120)
        assert [str(error) for error in told] == [
            "E-storage slot: RuntimeError: out of memory; resume the run"
        ]
        client.close()
        writer.close()
        memory.close()


def test_a_replaced_writer_is_noticed_before_the_next_save(tmp_path: Path) -> None:
    """The first writer had granted slots and nothing was in flight when it died; the second one
    must get the save.
    """
    settings, layout, run = config("overlapped"), RunLayout(tmp_path), Run()
    write_run_config(layout, settings)
    run.train(1)
    with writer_process(layout):
        strategy = strategy_of(run, tmp_path, settings)
        strategy.save(run.progress())
        strategy.flush()
    strategy._client._thread.join()  # type: ignore[attr-defined]  # it has seen the end
    with writer_process(layout):
        run.train(1)
        strategy.save(run.progress())
        strategy.flush()
        strategy.confirm(2)
    strategy.close()
    assert [line.global_step for line in lines(tmp_path) if line.event == "committed"] == [1, 2]


def test_a_target_that_the_lost_writer_held_is_not_confirmed_and_a_restart_may_cure_it(
    tmp_path: Path,
) -> None:
    settings, layout, run = config("overlapped"), RunLayout(tmp_path), Run()
    write_run_config(layout, settings)
    run.train(1)
    strategy = strategy_of(run, tmp_path, settings)
    strategy.confirm(1)  # nothing was submitted: an earlier attempt saved it
    strategy.save(run.progress())
    strategy.flush()
    with pytest.raises(EcrlError, match="step 1 ends the attempt and was not saved") as caught:
        strategy.confirm(1)
    assert caught.value.exit_code == 1
    strategy.close()


def test_a_target_that_storage_refused_is_not_confirmed(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, tmp_path, config())
    RunLayout(tmp_path).checkpoints.rename(tmp_path / "away")
    strategy.save(run.progress())
    strategy.flush()
    with pytest.raises(StorageError, match="ENOENT"):
        strategy.confirm(1)
    strategy.close()


class Full(PosixFs):
    """No room for `latest.json`, and, once `full`, for tensors."""

    full = False

    def write(self, fd: int, data: Buffer) -> int:
        path = self._path(fd)
        if LATEST in path.name or (self.full and path.name == MODEL):
            raise refusal("write", path, errno.ENOSPC)
        return super().write(fd, data)


def test_retention_goes_on_where_the_pointers_do_not_fit(tmp_path: Path) -> None:
    store, log = store_at(tmp_path, fs=Full()), log_at(tmp_path)
    for step in (1, 2, 3, 4):
        assert save_and_record(store, image(step), 0, log)
    assert steps(store) == [4, 3] and hidden(store) == []
    assert [line.global_step for line in lines(tmp_path) if line.event == "retired"] == [1, 2]
    store.close()


def test_a_save_that_finds_the_disk_full_retires_what_an_earlier_one_left(tmp_path: Path) -> None:
    fs = Full()
    store, log = store_at(tmp_path, fs=fs), log_at(tmp_path)
    for step in (1, 2, 3):
        store.save(image(step), 0)
    fs.full = True
    assert not save_and_record(store, image(4), 0, log)
    assert [(line.event, line.global_step) for line in lines(tmp_path)] == [
        ("failed", 4),
        ("retired", 1),
    ]
    assert steps(store) == [3, 2]
    store.close()


@pytest.mark.parametrize("single", [False, True])
def test_what_is_on_record_as_failed_is_not_there_to_be_resumed_from(
    tmp_path: Path, single: bool
) -> None:
    class Unsynced(PosixFs):
        def fsyncdir(self, path: Path) -> None:
            if path.name == "checkpoints":
                raise refusal("fsync of the directory", path, errno.EIO)
            super().fsyncdir(path)

    healthy = store_at(tmp_path)
    commit(healthy, 1, single=single)
    store = CheckpointStore(healthy.root, CONFIG, Unsynced())
    assert not save_and_record(store, image(2, single=single), 0, log_at(tmp_path))
    assert steps(healthy) == [1] and hidden(healthy) == []
    store.close()
    healthy.close()


def test_the_lease_and_the_folder_are_durable_whatever_the_write_mode_and_whoever_made_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "checkpoints").mkdir()
    fs = RecordingFs()
    store_at(tmp_path, replace(CONFIG, mode=UNSAFE), fs).close()
    done = [(call.name, LEASE if LEASE in call.path.name else call.path.name) for call in fs.calls]
    assert (
        done.index(("fsyncdir", tmp_path.name))
        < done.index(("fsync", LEASE))
        < done.index(("rename", LEASE))
    )
    assert done[-1] == ("fsyncdir", "checkpoints")


def test_trash_that_cannot_be_removed_ends_neither_a_start_nor_retention(tmp_path: Path) -> None:
    class Stuck(PosixFs):
        def rmdir(self, path: Path) -> None:
            if path.name == "folder":
                raise refusal("rmdir", path, errno.EIO)
            super().rmdir(path)

    store = store_at(tmp_path, fs=Stuck())
    stuck = store.root / f"{TRASH_PREFIX}a" / "folder"
    stuck.mkdir(parents=True)
    (store.root / f"{TRASH_PREFIX}b").write_bytes(b"")
    store.claim(1)
    assert hidden(store) == [f"{TRASH_PREFIX}a"]
    log = log_at(tmp_path)
    for step in (1, 2):
        save_and_record(store, image(step), 1, log)
    (store.root / "step_00000001" / "folder").mkdir()
    save_and_record(store, image(3), 1, log)
    save_and_record(store, image(4), 1, log)
    retired = [line.global_step for line in lines(tmp_path) if line.event == "retired"]
    assert retired == [1, 2] and steps(store) == [4, 3]
    store.close()


def test_retention_goes_on_behind_a_checkpoint_that_it_cannot_move(tmp_path: Path) -> None:
    class Stuck(PosixFs):
        def rename(self, source: Path, target: Path, *, replace: bool) -> None:
            if source.name == "step_00000002":
                raise refusal("rename", target, errno.EIO)
            super().rename(source, target, replace=replace)

    store = store_at(tmp_path, fs=Stuck())
    for step in (1, 2, 3, 4):
        store.save(image(step), 0)
    assert [gone.global_step for gone in store.retire()] == [1] and steps(store) == [4, 3, 2]
    store.close()


@pytest.mark.parametrize("final", [True, False])
def test_the_loop_does_not_end_well_on_an_unsaved_target_that_was_due(
    tmp_path: Path, final: bool
) -> None:
    class Unsaved(NoneStrategy):
        def confirm(self, global_step: int) -> None:
            raise StorageError("checkpoint", f"step {global_step} was not saved")

    settings, layout, none = config(final=final), RunLayout(tmp_path), cast("Any", None)
    clock, journal = (
        SpanClock(Journal(tmp_path / "spans"), 0, monotonic(), "load"),
        Journal(tmp_path / "rank"),
    )
    injector, target = Injector(layout, 0, 0, ()), settings.target_steps
    loop = TrainLoop(
        settings,
        0,
        0,
        1,
        none,
        none,
        none,
        none,
        Unsaved(),
        injector,
        HeartbeatWriter(None, 0),
        clock,
        journal,
        lambda *_: None,
        target,
        "",
        0.5,
    )
    with (
        pytest.raises(StorageError, match=f"step {target} was not saved")
        if final
        else nullcontext()
    ):
        loop.run()


def test_a_line_that_does_not_fit_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, room = tmp_path / "journal", os.write, [10**6]

    def write(fd: int, data: bytes) -> int:
        if data and not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, data[: room[0]])
        room[0] -= written
        return written

    journal = Journal(path)
    monkeypatch.setattr(os, "write", write)
    journal.append(CheckpointLine("submitted", 1, 0, 1.0, 2.0))
    room[0] = 40
    with pytest.raises(StorageError, match="ENOSPC"):
        journal.append(CheckpointLine("submitted", 2, 0, 1.0, 2.0))
    room[0] = 10**6
    journal.append(CheckpointLine("submitted", 3, 0, 1.0, 2.0))
    journal.close()
    found = read_journal(path, CheckpointLine)
    assert [line.global_step for line in found.events] == [1, 3] and found.torn == 0


def test_a_line_torn_by_one_process_swallows_none_of_another(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = Journal(path)
    before.append(CheckpointLine("submitted", 1, 0, 1.0, 2.0))
    before.close()
    with path.open("ab") as file:
        file.write(b'{"event":"recei')
    after = Journal(path)
    after.append(CheckpointLine("submitted", 2, 0, 1.0, 2.0))
    after.close()
    found = read_journal(path, CheckpointLine)
    assert [line.global_step for line in found.events] == [1, 2] and found.torn == 1
    assert b"".join(found.raw) == path.read_bytes().replace(b'{"event":"recei\n', b"")


@pytest.mark.parametrize("counts", [COMMIT, STEP_METADATA])
def test_a_file_that_cannot_be_removed_is_named_and_no_folder_is_looked_for_in_it(
    tmp_path: Path, counts: str
) -> None:
    """The first to go is what makes the others count, whoever wrote them."""

    class Stubborn(PosixFs):
        def unlink(self, path: Path) -> None:
            raise StorageError.of("unlink", path, OSError(errno.EIO, "no"))

    (tmp_path / "step" / "inner").mkdir(parents=True)
    (tmp_path / "step" / "inner" / "file").touch()
    (tmp_path / "step" / "0.bin").touch()
    (tmp_path / "step" / counts).touch()
    with pytest.raises(StorageError, match=f"EIO at {tmp_path}/step/{counts}"):
        remove_group(Stubborn(), tmp_path / "step")
    remove_group(PosixFs(), tmp_path / "step")
    assert not (tmp_path / "step").exists()
