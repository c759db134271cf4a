"""A run directory of far more files than the run can have left is refused before anything loops
over them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records import digests, extent
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import journal_bytes
from ecrl_cli.verify import reference
from tests.runs.builder import build_blk


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(extent, "SPARE_FILES", 40)
    monkeypatch.setattr(extent, "MOST_ATTEMPTS", 3)
    return build_blk(tmp_path)


def fill(run: RunLayout, folder: str, files: int) -> None:
    for number in range(files):
        (run.root / folder / f"{number + 500:03d}.json").touch()


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("fired", "holds more than 42 files, the plan has 2 failures"),
        ("logs", "holds more than 43 files, a run has at most 3 attempts"),
        ("logs/attempt-00", "holds more than 72 files, an attempt of 2 ranks leaves at most 32"),
        ("checkpoints", "holds more than 80 files, retention keeps fewer"),
    ],
)
def test_too_many_files_are_refused_and_counted_no_further(
    folder: str,
    why: str,
    run: RunLayout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(run, folder, 100)
    for module, name in ((reference, "file_states"), (digests, "file_digest")):
        monkeypatch.setattr(module, name, lambda *given: pytest.fail("all of them are looked at"))
    assert main(["verify", str(run.root)]) == 2
    assert f"E-record {folder}: {why}; remove what the run did not write" in capsys.readouterr().err
    assert main(["report", str(run.root)]) == 3
    assert f"E-record {folder}: {why}" in capsys.readouterr().err


def test_a_few_more_are_named_one_by_one(
    run: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(run, "fired", 30)
    main(["verify", str(run.root)])
    assert "fired/500.json cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("ranks", [2, 1024])
def test_a_checkpoint_after_each_step_fits_into_the_journal(ranks: int) -> None:
    """Its committed line has a digest of each rank's generators."""
    config = replace(RunConfig(), world_size=ranks, target_steps=5000)
    state = dict.fromkeys(("parameters", "buffers", "optimizer", "train"), "f" * 64)
    state |= {f"rng.rank{rank}": "f" * 64 for rank in range(ranks)}
    line = line_of(CheckpointLine("committed", 5000, 9, 1e6, 2e9, bytes=2**40, saved_state=state))
    assert config.target_steps * len(line) < journal_bytes(config)
