"""`ecrl verify` of checkpoints: exit codes, one line for each, JSON, repaired copies; a run
directory is judged as ever.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, MODEL, OPTIMIZER, STEP_METADATA
from ecrl_cli.checkpoint.repair import scrub
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.store import StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.cli import verify
from ecrl_cli.cli.main import main
from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.errors import StorageError
from ecrl_cli.records.run_config import store
from tests.unit.checkpoint_support import commit, flip, store_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`checkpoints/` with steps 10, 20 and 30."""
    store = store_at(tmp_path, StoreConfig(keep=100))
    for step in (10, 20, 30):
        commit(store, step)
    store.close()
    return store.root


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    (value,) = json.loads(capsys.readouterr().out).values()
    return value


def test_a_sound_folder_is_valid_line_by_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(folder)]) == 0
    expected = ["step_00000030: ok", "step_00000020: ok", "step_00000010: ok"]
    assert lines(capsys) == [f"{folder}: 3 checkpoints, 3 valid, 0 refused", *expected]


def test_what_another_checkpointer_wrote_is_no_damage_and_not_looked_at(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "step_00000040").mkdir()
    (folder / "step_00000040" / STEP_METADATA).write_text("{}")
    assert main(["verify", str(folder)]) == 2
    assert "another checkpointer wrote" in capsys.readouterr().err


def test_the_exit_code_tells_some_damage_from_no_valid_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(folder / "step_00000020" / MODEL, 9000, 5)
    assert main(["verify", str(folder)]) == 1
    assert lines(capsys)[2].startswith(
        "step_00000020: refused by hash: model.safetensors does not match its BLAKE3; chunk 0 of 1,"
        " byte 9000 bit 5"
    )
    for step in (10, 30):
        (folder / f"step_000000{step}" / COMMIT).unlink()
    assert main(["verify", str(folder)]) == 4


def test_a_damaged_pointer_is_invalid_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(folder / LATEST, 3)
    assert main(["verify", str(folder)]) == 1
    out = lines(capsys)
    assert "1 pointer damaged" in out[0] and any(
        line.startswith("latest.json is damaged") for line in out
    )


def test_only_set_aside_checkpoints_are_no_valid_checkpoint(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.startswith("step_"):
            path.rename(folder / f".rejected_{path.name}")
        else:
            path.unlink()
    assert main(["verify", str(folder)]) == 4


@pytest.mark.parametrize("single", [False, True])
def test_checkpoints_are_looked_at_one_by_one(
    tmp_path: Path, single: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_at(tmp_path)
    paths = [commit(store, step, single=single).path for step in (10, 20)]
    store.close()
    copy = tmp_path / "elsewhere"
    shutil.copytree(store.root, copy)
    data = copy / paths[1].name
    flip(data if single else data / OPTIMIZER, 7000)
    assert main(["verify", str(copy / paths[0].name)]) == 0
    assert main(["verify", str(data)]) == 4, "it is all that was asked about"
    capsys.readouterr()
    assert main(["verify", str(copy / paths[0].name), str(data)]) == 1
    assert lines(capsys)[0] == f"{copy}: 2 checkpoints, 1 valid, 1 refused"


def test_a_checkpoint_is_looked_at_from_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "step_00000020")
    assert main(["verify", "."]) == 0
    flip(folder / "step_00000020" / MODEL, 9000)
    assert main(["verify", "."]) == 4


def test_json_names_the_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder / "step_00000020" / MODEL, 9000, 5)
    assert main(["verify", str(folder), "--json"]) == 1
    found = document(capsys)
    assert (found["status"], found["looked_at"], found["of"]) == ("invalid", 3, 3)
    assert [one["status"] for one in found["checkpoints"]] == ["ok", "refused", "ok"]
    (damage,) = found["checkpoints"][1]["damage"]
    assert (damage["file"], damage["chunks"], damage["bits"], damage["tensors"]) == (
        MODEL,
        [0],
        [{"byte": 9000, "bit": 5}],
        ["parameters.weight"],
    )


def test_a_sample_says_so_and_says_when_it_spread(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(folder), "--sample", "2"]) == 0
    assert lines(capsys)[0].endswith("2 of 3 checkpoints looked at, 2 valid, 0 refused")
    flip(folder / "step_00000010" / MODEL, 9000)
    assert main(["verify", str(folder), "--sample", "2"]) == 1
    out = lines(capsys)
    assert "one of the sample is damaged, so all were looked at" in out[0] and len(out) == 4


def test_repaired_copies_are_written_elsewhere_and_pass(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = {path.name: path.read_bytes() for path in (folder / "step_00000020").iterdir()}
    flip(folder / "step_00000020" / MODEL, 9000, 5)
    (folder / "step_00000010" / MODEL).unlink()
    damaged = (folder / "step_00000020" / MODEL).read_bytes()
    assert main(["verify", str(folder), "--repair", str(tmp_path / "out")]) == 1
    out = lines(capsys)
    assert any(line.startswith("repaired copy, which passes the integrity check") for line in out)
    assert any(line.startswith("not repaired: step_00000010 is damaged beyond") for line in out)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step_00000020"]
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "out" / "step_00000020").iterdir()
    } == original
    assert (
        verify_checkpoint(tmp_path / "out" / "step_00000020").ok
        and (folder / "step_00000020" / MODEL).read_bytes() == damaged
    )


def test_what_was_found_is_said_where_no_copy_can_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(folder / "step_00000020" / MODEL, 9000, 5)
    assert main(["verify", str(folder), "--repair", "/proc/no-folder-is-made-here"]) == 5
    out = lines(capsys)
    assert "byte 9000 bit 5" in out[2] and out[3].startswith(
        "not repaired: ENOENT at /proc/no-folder-is-made-here"
    )


def test_bad_arguments_are_refused_before_anything_is_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, run = tmp_path / "empty", tmp_path / "run"
    empty.mkdir()
    run.mkdir()
    (run / "config.json").touch()
    cases = [
        [str(empty)],
        [str(tmp_path / "nowhere")],
        [str(folder / "step_00000099")],
        [str(folder), "--sample", "-1"],
        [str(folder), "--sample", "many"],
        [str(folder), "--repair", str(folder)],
        [str(folder), "--repair", str(folder / "new")],
        [str(run), "--deep"],
        [str(run), "--repair", str(tmp_path / "out")],
    ]
    for words in cases:
        assert main(["verify", *words]) == 2, words
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("ecrl: error: E-"), words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "empty", "run"]


def test_a_run_is_judged_as_ever_and_scrubbed_when_asked(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text("{}")
    judged = SimpleNamespace(
        status="valid", judged_to_step=None, to_json=lambda: {"status": "valid"}
    )
    monkeypatch.setattr(verify, "verify_run", lambda run, reference, known: judged)
    monkeypatch.setattr(verify, "render", lambda verdict: "it is valid")
    flip(folder / "step_00000020" / MODEL, 9000)
    assert main(["verify", str(tmp_path)]) == 0
    assert lines(capsys) == ["it is valid"]
    assert main(["verify", str(tmp_path), "--scrub"]) == 1
    assert lines(capsys)[:2] == ["it is valid", f"{folder}: 3 checkpoints, 2 valid, 1 refused"]


def test_the_checkpoints_of_a_run_must_be_its_own_and_no_larger_than_it_allows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def config_of(identity: str, max_bytes: int) -> None:
        stored = store(replace(RunConfig(), checkpoint=CheckpointConfig(max_bytes=max_bytes)))
        (folder.parent / "config.json").write_text(
            json.dumps(encode(replace(stored, run_id=identity)))
        )

    config_of(RUN_ID, 2**40)
    assert main(["verify", str(folder)]) == 0
    config_of("6" * 64, 2**40)
    assert main(["verify", str(folder)]) == 4
    assert "step_00000030: refused by commit: belongs to run" in capsys.readouterr().out
    config_of(RUN_ID, 1000)
    assert main(["verify", str(folder / "step_00000030")]) == 4
    assert main(["verify", str(folder / "step_00000030"), "--max-bytes", "1000000"]) == 0


def test_a_folder_that_cannot_be_looked_at_hides_no_other_answer(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(folder, tmp_path / "other", symlinks=True)
    (tmp_path / "other" / "step_00000030" / "poor").touch()

    def poor(path: Path, *args: Any, once: bool) -> Any:
        if (path / "poor").exists():
            raise StorageError.of("open", path, OSError(errno.EMFILE, "Too many open files"))
        return verify_checkpoint(path, *args, once=once)

    monkeypatch.setattr(scrub, "verify_checkpoint", poor)
    assert main(["verify", str(folder), str(tmp_path / "other")]) == 5
    said = capsys.readouterr()
    assert said.out.startswith(f"{folder}: 3 checkpoints, 3 valid") and "EMFILE" in said.err


def test_names_that_could_write_to_a_terminal_are_masked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "step_00000020" / "\x1b[31mred").touch()
    (folder / ".rejected_\x1b[31m").mkdir()
    main(["verify", str(folder)])
    out = capsys.readouterr().out
    assert "\x1b" not in out and "which does not belong" in out
