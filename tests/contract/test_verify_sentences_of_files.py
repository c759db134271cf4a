"""As test_verify_sentences, of what lies beside the logs: pointers, the fencing file, the
environment, Hydra's configuration.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.names import LATEST, LEASE
from ecrl_cli.config.schema import DatasetConfig, RunConfig
from ecrl_cli.history.load import RunRecords, load, load_environment
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.checkpoints import checkpoints_accounted
from ecrl_cli.verify.configuration import check_configuration, refusal
from ecrl_cli.verify.consistency import records_consistent
from ecrl_cli.verify.rank_spans import read_spans
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import build_blk
from tests.runs.changed import configured, sessions, supervised
from tests.runs.sentence import told
from tests.runs.spoil import edit_json
from tests.runs.spoilt_states import build_states

Spoil = Callable[[RunLayout], Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_blk(tmp_path_factory.mktemp("runs")).root


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(Path(shutil.copytree(recorded, tmp_path / "blk", symlinks=True)))


def latest(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.checkpoints / LATEST, lambda document: document | changes)


def written(by: float) -> Spoil:
    """latest.json, so many seconds after the commit that it names."""

    def spoil(run: RunLayout) -> None:
        line = next(
            line
            for line in load(run).logs(2).checkpoints.events
            if (line.event, line.global_step) == ("committed", 24)
        )
        latest(timestamp=line.time + by)(run)

    return spoil


def written_behind_the_end(by: float) -> Spoil:
    return lambda run: latest(timestamp=(load(run).sessions[-1].ended_time or 0.0) + by)(run)


def lease(**document: Any) -> Spoil:
    return lambda run: (run.checkpoints / LEASE).write_text(json.dumps(document))


WRITTEN = "latest.json says that it was written at"
# What is done to the folder, what is then said of the checkpoints, with which status; None: nothing
# of it.
FOLDER: dict[str, tuple[Spoil, str, str | None]] = {
    "no latest.json": (
        lambda run: (run.checkpoints / LATEST).unlink(),
        "latest.json is not there, and no line says that it could not be written",
        UNKNOWN,
    ),
    "a time that is none": (latest(timestamp="x"), f"{WRITTEN} 'x'", INVALID),
    "a truth for a time": (latest(timestamp=True), f"{WRITTEN} True", INVALID),
    "written before the commit": (written(-0.06), WRITTEN, UNKNOWN),
    "written with the commit": (written(-0.04), WRITTEN, None),
    "written after the end": (written_behind_the_end(0.06), WRITTEN, UNKNOWN),
    "written at the end": (written_behind_the_end(0.04), WRITTEN, None),
    "another epoch": (latest(epoch=1), "latest.json says epoch 1, step_00000024 is of 2", INVALID),
    "another size": (
        latest(world_size=1),
        "latest.json says world_size 1, step_00000024 is of 2",
        INVALID,
    ),
    "a size that is no number": (
        latest(world_size=2.0),
        "latest.json says world_size 2.0, step_00000024 is of 2",
        INVALID,
    ),
    "no pointer": (
        lambda run: (run.checkpoints / LATEST).write_text("[]"),
        "latest.json is no pointer to a checkpoint and its step",
        INVALID,
    ),
    "a pointer to no checkpoint": (
        latest(path="notes"),
        "latest.json is no pointer to a checkpoint and its step",
        INVALID,
    ),
    "what a save left": (
        lambda run: (run.checkpoints / ".stage_00000012.1.0a0b0c0d").mkdir(),
        "checkpoints/.stage_00000012.1.0a0b0c0d is there, of a save that had ended",
        UNKNOWN,
    ),
    "a fencing file of no attempt": (lease(), f"checkpoints/{LEASE} names no attempt", INVALID),
    "a fencing file that is true": (
        lease(attempt=True),
        f"checkpoints/{LEASE} names no attempt",
        INVALID,
    ),
    "a fencing file that is none": (
        lambda run: (run.checkpoints / LEASE).write_text("["),
        f"checkpoints/{LEASE} names no attempt",
        INVALID,
    ),
    "an older holder": (
        lease(attempt=1),
        (
            f"checkpoints/{LEASE} names attempt 1, attempt 2 has committed, and 3 attempts are on"
            " record"
        ),
        INVALID,
    ),
    "the holder that committed": (lease(attempt=2), f"checkpoints/{LEASE} names", None),
    "a holder of which no attempt is on record yet": (
        lease(attempt=3),
        f"checkpoints/{LEASE} names",
        None,
    ),
    "a holder that never was": (
        lease(attempt=4),
        f"checkpoints/{LEASE} names attempt 4, attempt 2 has committed",
        INVALID,
    ),
}


def held(finding: Finding, words: str, status: str | None) -> None:
    assert told(finding, words) == (status is not None), finding
    assert status in (None, finding.status), finding


@pytest.mark.parametrize("name", FOLDER)
def test_what_lies_beside_the_checkpoints_agrees_with_them(run: RunLayout, name: str) -> None:
    spoil, words, status = FOLDER[name]
    assert not told(checkpoints_accounted(Case(load(run))), words)
    spoil(run)
    held(checkpoints_accounted(Case(load(run))), words, status)


def test_a_session_that_was_killed_sets_no_end_to_what_was_written(run: RunLayout) -> None:
    """Nobody knows when it ended."""
    written_behind_the_end(3600.0)(run)
    found = load(run)
    assert told(checkpoints_accounted(Case(found)), WRITTEN)
    killed = sessions(found, len(found.sessions) - 1, ended_at=None, ended_time=None)
    assert not told(checkpoints_accounted(Case(killed)), WRITTEN)


def test_pointers_of_a_run_that_goes_on_may_lag_behind(run: RunLayout) -> None:
    (run.checkpoints / LATEST).unlink()
    found = load(run)
    assert not told(
        checkpoints_accounted(Case(supervised(found, terminal_status="stopped"))), LATEST
    )


# The same of the records.
RECORDS: dict[str, tuple[Spoil, str, str | None]] = {
    "no environment": (
        lambda run: run.environment.unlink(),
        "environment.json is missing: what the run ran on is not known",
        UNKNOWN,
    ),
    "an environment that cannot be read": (
        lambda run: run.environment.write_text("{"),
        "environment.json cannot be read: RecordError",
        UNKNOWN,
    ),
    "an environment that is none": (
        lambda run: run.environment.write_text("[]"),
        "environment.json is no environment",
        UNKNOWN,
    ),
    "an environment without packages": (
        lambda run: run.environment.write_text("{}"),
        "environment.json is no environment",
        UNKNOWN,
    ),
    "GPUs without names": (
        lambda run: edit_json(run.environment, lambda document: document | {"gpus": ["H200"]}),
        "environment.json has GPUs that are none",
        UNKNOWN,
    ),
    "another data set": (
        lambda run: edit_json(run.dataset, lambda document: document | {"name": "cifar10"}),
        "dataset.json is of 'cifar10', config.json of 'fake'",
        INVALID,
    ),
    "another number of samples": (
        lambda run: edit_json(run.dataset, lambda document: document | {"size": 88}),
        "dataset.json has 88 samples, config.json asks for 80",
        INVALID,
    ),
    "metrics of an early version": (
        lambda run: edit_json(run.metrics, lambda document: document | {"metrics_version": 1}),
        (
            "metrics.json is of version 1, in which no run was counted that recorded the state of"
            " every rank"
        ),
        None,
    ),
    "metrics that are other in almost everything": (
        lambda run: edit_json(
            run.metrics, lambda m: m | {"mean_loss": dict.fromkeys(m["mean_loss"], 0.0)}
        ),
        "more fields are not what the records fold to",
        INVALID,
    ),
    "metrics that cannot be read": (
        lambda run: run.metrics.write_text("{"),
        "metrics.json cannot be read",
        UNKNOWN,
    ),
    "a plan that cannot be read": (
        lambda run: run.failures.write_text("{"),
        "failures.json cannot be read",
        UNKNOWN,
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_what_lies_beside_the_logs_agrees_with_them(run: RunLayout, name: str) -> None:
    spoil, words, status = RECORDS[name]
    assert not told(records_consistent(Case(load(run))), words)
    spoil(run)
    held(records_consistent(Case(load(run))), words, status)


@pytest.mark.parametrize(("version", "told_of"), [(1, True), (None, True), (2, False)])
def test_metrics_of_before_states_were_recorded_cannot_be_of_a_run_that_has_them(
    tmp_path: Path, version: int | None, told_of: bool
) -> None:
    run = build_states(tmp_path, "blk")
    edit_json(
        run.metrics,
        lambda m: (
            {name: value for name, value in m.items() if name != "metrics_version"}
            | ({"metrics_version": version} if version else {})
        ),
    )
    finding = records_consistent(Case(load(run)))
    words = (
        "metrics.json is of version 1, in which no run was counted that recorded the state of every"
        " rank"
    )
    assert told(finding, words) == told_of and (finding.status == INVALID or not told_of)


@pytest.mark.parametrize(
    ("changes", "words", "status"),
    [
        ({"model": {"name": "nosuch"}}, "config.json is none that ECRL runs: model.name", UNKNOWN),
        (
            {"dataset": {"name": "nosuch"}},
            "config.json is none that ECRL runs: dataset.name",
            UNKNOWN,
        ),
        ({"seed": -1}, "config.json is none that ECRL runs: seed", INVALID),
        (
            {"checkpoint": {"every": 0}},
            "config.json is none that ECRL runs: checkpoint.every",
            INVALID,
        ),
        ({}, "", None),
    ],
)
def test_a_name_that_is_not_installed_here_contradicts_nothing(
    run: RunLayout, changes: dict[str, Any], words: str, status: str | None
) -> None:
    found = load(run)
    for name, value in changes.items():
        before = getattr(found.stored.config, name)
        found = configured(
            found, **{name: replace(before, **value) if isinstance(value, dict) else value}
        )
    notes = FindingBuilder("it")
    check_configuration(Case(found), notes)
    assert notes.clean == (status is None)
    if status:
        held(notes.finding(""), words, status)


def test_a_configuration_is_refused_for_what_contradicts_itself_and_not_for_this_machine() -> None:
    config = RunConfig()
    assert refusal(config) is None
    assert (
        refusal(replace(config, storage=replace(config.storage, folder="/nowhere/at/all"))) is None
    )
    assert (wrong := refusal(replace(config, seed=-1))) is not None and wrong.key == "seed"
    # where the images lie is not recorded
    assert refusal(replace(config, dataset=DatasetConfig(name="cifar10", root=""))) is None
    uneven = refusal(replace(config, global_batch=7, world_size=2))
    assert uneven is not None and uneven.key != "seed"


def test_spans_that_cannot_be_read_are_those_of_their_rank_alone(run: RunLayout) -> None:
    run.attempt(1).spans(1).write_text("{\n{}\n")
    found = load(run)
    spans = read_spans(found)
    assert spans.of(1, 1) is None and spans.of(1, 0) is not None and spans.of(0, 1) is not None
    finding = time_conserved(Case(found))
    assert (
        told(finding, "logs/attempt-01/spans_rank1.jsonl cannot be read")
        and finding.status == UNKNOWN
    ), finding


def spans_without(run: RunLayout, attempt: int, rank: int) -> RunRecords:
    run.attempt(attempt).spans(rank).unlink()
    return load(run)


@pytest.mark.parametrize(
    ("rank", "words"),
    [(0, "attempt 1 left no spans of rank 0"), (1, "attempt 1 left no spans of rank 1")],
)
def test_spans_that_are_not_there_are_missed_once(run: RunLayout, rank: int, words: str) -> None:
    finding = time_conserved(Case(spans_without(run, 1, rank)))
    assert finding.status == UNKNOWN and finding.message.endswith(words) and not finding.evidence, (
        finding
    )


def test_of_an_environment_what_has_another_form_is_left_out(run: RunLayout) -> None:
    known = {
        "ecrl": "1",
        "cpu": {"model": "x"},
        "packages": {},
        "gpus": [{"name": "y"}, 3],
        "cores": 2,
    }
    edit_json(
        run.environment,
        lambda document: known | {"file_system": [], "math_kernels": "z", "unknown": [1]},
    )
    assert load_environment(run) == known | {"gpus": [{"name": "y"}]}

    run.environment.unlink()
    assert load_environment(run) == {}
