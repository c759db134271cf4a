"""What went wrong is said in one plain line, and records name paths inside the run alone."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EvidenceMissing, RunDirectoryError, StorageError
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal, line_of, read_journal
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.runs.run_dir import check_run_dir, claim_sweep
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.supervisor_record import SupervisorRecordWriter


def test_a_path_that_is_no_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/a\xff"))
    plain = tmp_path / "plain"
    plain.symlink_to(folder)
    folder.mkdir()
    for place in (folder, folder / "below", plain / "below"):
        with pytest.raises(RunDirectoryError, match="is not UTF-8"):
            check_run_dir(plan_run(RunConfig(), place))
        with pytest.raises(RunDirectoryError, match="is not UTF-8"):
            claim_sweep(SweepLayout(place))
    assert not list(folder.iterdir())


def test_an_error_without_a_file_name_names_none() -> None:
    assert (
        StorageError.of("run", None, OSError(errno.ENOSPC, "No space left on device")).fact
        == "ENOSPC (No space left on device)"
    )


def test_a_full_disk_is_told_with_the_path_what_was_to_be_written_and_what_is_free() -> None:
    journal = Journal(Path("/dev/full"))
    with pytest.raises(StorageError) as raised:
        journal.append(CheckpointLine("received", 4, 0, 1.0, 2.0))
    journal.close()
    size = len(line_of(CheckpointLine("received", 4, 0, 1.0, 2.0)))
    wanted = rf"ENOSPC at /dev/full \(No space left on device: {size} bytes to write, [0-9]+ free\)"
    assert re.fullmatch(wanted, raised.value.fact)


def test_a_record_that_could_not_be_written_whole_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space") as raised:
        write_json(tmp_path / "final.json", {})
    assert raised.value.filename == str(tmp_path / "final.json") and not list(tmp_path.iterdir())


def test_memory_whose_descriptor_the_system_could_not_hand_over_is_said_to_be_that() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs, pytest.raises(StorageError, match=r"too many open files.*ulimit -n"):
        channel.take_fd()
    channel.close()


def test_a_run_directory_that_was_removed_is_said_to_be_gone(tmp_path: Path) -> None:
    with pytest.raises(EvidenceMissing, match="is gone"):
        read_run_config(RunLayout(tmp_path / "run"))
    with pytest.raises(EvidenceMissing, match=r"has no config\.json"):
        read_run_config(RunLayout(tmp_path))


@pytest.mark.parametrize("linked", [False, True])
def test_the_reason_of_a_failed_save_names_paths_inside_the_run(
    tmp_path: Path, linked: bool
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    layout = RunLayout(root)
    if linked:
        (tmp_path / "link").symlink_to(root)
        layout = RunLayout(tmp_path / "link")
    layout.attempt(0).folder.mkdir(parents=True)
    error = StorageError.of(
        "write", root / "checkpoints" / ".stage" / "model", OSError(errno.ENOSPC, "full")
    )
    log = CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)
    log.failed(4, error)
    log.pointer_failed(4, StorageError.of("rename", layout.root, OSError(errno.EIO, "broken")))
    log.close()
    keeper = SupervisorRecordWriter(layout, "0" * 64, 8)
    keeper.begin()
    keeper.end("gave_up", error.line())
    reasons = [
        line.reason for line in read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    ]
    assert reasons == [
        "E-storage write: ENOSPC at checkpoints/.stage/model (full)",
        "E-storage rename: EIO at the run directory (broken)",
    ]
    assert log.failure == "step 4 was not saved (write: ENOSPC at checkpoints/.stage/model (full))"
    assert str(tmp_path) not in layout.supervisor.read_text()
