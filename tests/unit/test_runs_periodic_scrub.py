"""Scrubs while a run goes on: damage is said once and kept on record, and nothing of it can end or
delay the run.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.checkpoint.store.store import StoreConfig
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.config.identity import reference_id, run_id
from ecrl_cli.config.schema import CheckpointConfig, RunConfig, SupervisionConfig
from ecrl_cli.records.digests import record_files
from ecrl_cli.records.events import ScrubLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.periodic_scrub import Scrubber, scrubbed
from tests.unit.checkpoint_support import flip, store_at

CONFIG = RunConfig(checkpoint=CheckpointConfig(strategy="overlapped"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """A run with checkpoints of steps 10 and 20."""
    store = store_at(tmp_path, StoreConfig(keep=9))
    for step in (10, 20):
        store.save(synthetic_image(1, step, synthetic_plan(40_000, 20_000), restorable=True), 0)
    store.close()
    # the checkpoints are of no run
    monkeypatch.setattr("ecrl_cli.runs.periodic_scrub.run_id", lambda config: "")
    return RunLayout(tmp_path)


def kept(run: RunLayout) -> list[ScrubLine]:
    return list(read_journal(run.scrubs, ScrubLine).events)


def test_damage_is_said_once_and_stands_on_record(run: RunLayout) -> None:
    said: list[str] = []
    scrubber = Scrubber(run, CONFIG, said.append)
    scrubber.scrub_once()
    assert said == [] and [(line.looked, line.damaged) for line in kept(run)] == [(2, ())]
    part = run.checkpoints / "step_00000010" / MODEL
    flip(part, part.stat().st_size - 1)
    scrubber.scrub_once()
    scrubber.scrub_once()
    scrubber.stop()
    (text,) = said
    assert text.startswith(
        f"scrub: step_00000010 is damaged: hash: {MODEL} does not match its BLAKE3; recovery goes"
        " on from an older one"
    )
    assert [len(line.damaged) for line in kept(run)] == [0, 1, 1]
    assert run.scrubs in record_files(run), "it is sealed with the other records"


def test_it_looks_again_and_again_while_the_run_goes_on(run: RunLayout) -> None:
    config = dataclasses.replace(CONFIG, supervision=SupervisionConfig(scrub_every_s=0.001))
    looked = threading.Event()
    with scrubbed(run, config, lambda text: None):
        thread = next(thread for thread in threading.enumerate() if thread.name == "scrub")
        while not (run.scrubs.exists() and len(kept(run)) > 1):
            looked.wait(0.01)
    thread.join(10)
    count = len(kept(run))
    assert count > 1 and not thread.is_alive() and len(kept(run)) == count


def test_a_folder_that_cannot_be_read_ends_no_run(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    scrubber = Scrubber(run, CONFIG, said.append)
    run.checkpoints.rename(run.root / "gone")
    scrubber.scrub_once()
    scrubber.scrub_once()
    scrubber.stop()
    assert len(said) == 1 and said[0].startswith(
        "the checkpoints cannot be scrubbed: E-storage list: ENOENT"
    )


@pytest.mark.parametrize(
    ("strategy", "every_s", "said"),
    [
        ("overlapped", 0.0, []),
        ("none", 0.001, []),
        (
            "torch_save",
            0.001,
            [
                "the checkpoints are not scrubbed: another checkpointer wrote them, only that can"
                " read them"
            ],
        ),
    ],
)
def test_where_there_is_nothing_to_scrub_no_thread_runs(
    run: RunLayout, strategy: str, every_s: float, said: list[str]
) -> None:
    heard: list[str] = []
    config = RunConfig(
        checkpoint=CheckpointConfig(strategy=strategy),
        supervision=SupervisionConfig(scrub_every_s=every_s),
    )
    with scrubbed(run, config, heard.append):
        assert not any(thread.name == "scrub" for thread in threading.enumerate())
    assert heard == said and not run.scrubs.exists()


def test_how_often_it_is_scrubbed_makes_no_other_run() -> None:
    other = dataclasses.replace(CONFIG, supervision=SupervisionConfig(scrub_every_s=60.0))
    assert run_id(CONFIG) == run_id(other) and reference_id(CONFIG) == reference_id(other)
