"""Records that only some configurations have: none that the configuration rules out, none missing
that it owes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import Unloadable
from ecrl_cli.storage.files import write_json
from ecrl_cli.verify.optional_files import check_optional_files, unexplained
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import build_blk
from tests.runs.changed import configured
from tests.runs.spoil import edit_json


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return build_blk(tmp_path)


def judged(case: Case) -> Finding:
    notes = FindingBuilder("records-consistent")
    check_optional_files(case, notes)
    return notes.finding("")


def unloadable(run: RunLayout) -> None:
    found = Unloadable(1, 0, "checkpoints/step_00000006", "0" * 64, "bad")
    write_json(run.attempt(1).unloadable(0), encode(found))


def unlisted(run: RunLayout) -> None:
    run.attempt(3).folder.mkdir()
    (run.attempt(3).folder / "spans_rank0.jsonl").write_text("")


def launched(run: RunLayout) -> None:
    run.attempt(3).folder.mkdir()
    (run.attempt(3).folder / "output.log").write_text("")


# What is done to the run, the status, and what is said.
SPOILT: dict[str, tuple[Callable[[RunLayout], object], str, str]] = {
    "as recorded": (lambda run: None, VALID, ""),
    "a disk that was not sampled": (
        lambda run: run.disk.write_text(""),
        UNKNOWN,
        "disk.jsonl is there, and supervision.disk_interval_s is 0",
    ),
    "a scrub that was not asked for": (
        lambda run: run.scrubs.write_text(""),
        UNKNOWN,
        "scrub.jsonl is there, and supervision.scrub_every_s is 0",
    ),
    "a checkpoint that could not be loaded": (
        unloadable,
        INVALID,
        "rank 0 of attempt 1 could not load a checkpoint, and no other checkpointer had written it",
    ),
    "nodes of a run on one": (
        lambda run: edit_json(run.attempt(1).launch, lambda order: order | {"nodes": ["h1", "h2"]}),
        INVALID,
        "launch.json of attempt 1 names 2 nodes, config.json has one node",
    ),
    "silent nodes of a run on one": (
        lambda run: edit_json(run.attempt(1).launch, lambda order: order | {"silent": ["h1"]}),
        INVALID,
        "launch.json of attempt 1 names 1 node, config.json has one node",
    ),
    "an attempt that is not listed": (
        unlisted,
        INVALID,
        "attempt 3 left spans_rank0.jsonl and is not in supervisor.json",
    ),
    "a launch that nothing came of": (launched, VALID, ""),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_the_configuration_rules_out_is_contradicted(run: RunLayout, name: str) -> None:
    spoil, status, said = SPOILT[name]
    spoil(run)
    finding = judged(Case(load(run)))
    assert finding.status == status
    assert said in finding.message


def with_keys(run: RunLayout, group: str, **keys: object) -> Case:
    records = load(run)
    values = replace(getattr(records.stored.config, group), **keys)
    return Case(configured(records, **{group: values}))


def test_scrubs_that_were_asked_for_are_owed(run: RunLayout) -> None:
    case = with_keys(run, "supervision", scrub_every_s=1.0)
    assert "scrub.jsonl is missing" in judged(case).message
    run.scrubs.write_text("")
    assert judged(case).status == VALID


def test_another_checkpointer_may_find_that_it_cannot_load_its_own(run: RunLayout) -> None:
    unloadable(run)
    assert judged(with_keys(run, "checkpoint", strategy="torch_save")).status == VALID


def test_a_later_session_may_sample_otherwise(run: RunLayout) -> None:
    edit_json(run.supervisor, lambda record: record["sessions"].append(record["sessions"][0]))
    run.disk.write_text("")
    assert judged(Case(load(run))).status == VALID


def test_signals_and_deaths_that_nothing_bears_out_are_told(run: RunLayout) -> None:
    assert unexplained(Case(load(run))) == ()
    edit_json(
        run.supervisor,
        lambda record: record["sessions"][0].update(signals=[15], writer_deaths=2),
    )
    assert unexplained(Case(load(run))) == (
        "session 0 received 1 stop signal, and no attempt of it was stopped",
        "2 background writers of session 0 died that the plan did not kill: only supervisor.json"
        " says so",
    )
