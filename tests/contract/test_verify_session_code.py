"""A run that went on under other code: the verdict names the attempts, and what is exact stays
valid.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.digests import source_sha256
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.supervisor_record import (
    SupervisorRecordWriter,
    read_record,
    with_phases,
)
from ecrl_cli.verify.verdict import VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.runs.builder import build_blk, build_ref
from tests.runs.spoil import edit_json

OLD, NEW = "a" * 64, "b" * 64
RECORDS = "records-consistent"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """Three attempts of two sessions, as a run that was stopped in between and started again."""
    folder = tmp_path_factory.mktemp("sweep")
    build_ref(folder)
    build_blk(folder)
    layout = RunLayout(folder / "blk")

    def parted(record: dict[str, object]) -> None:
        attempts, sessions = record["attempts"], record["sessions"]
        assert isinstance(attempts, list) and isinstance(sessions, list)
        began = attempts[2]["launched_at"] - 0.01
        first, second = dict(sessions[0]), dict(sessions[0])
        second |= {"started_at": began, "time": first["time"] - first["started_at"] + began}
        first["ended_at"] = began - 0.001
        first["ended_time"] = second["time"] - 0.001
        record["sessions"] = [first, second]
        attempts[2]["session"] = 1

    edit_json(layout.supervisor, parted)
    record = read_record(layout)
    write_json(layout.supervisor, encode(replace(record, attempts=with_phases(layout, record))))
    write_json(layout.metrics, metrics_document(load(layout)))
    return layout


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ((OLD, NEW), "attempts 0 to 1 ran code 'aaaaaaaaaaaa', attempt 2 ran code 'bbbbbbbbbbbb'"),
        ((OLD, OLD), ""),
        (("", ""), ""),
        (
            ("", NEW),
            "attempts 0 to 1 ran code that is not on record, attempt 2 ran code 'bbbbbbbbbbbb'",
        ),
    ],
)
def test_attempts_of_other_code_are_named_and_change_no_status(
    run: RunLayout, codes: tuple[str, str], told: str
) -> None:
    def name(record: dict[str, list[dict[str, str]]]) -> None:
        for session, code in zip(record["sessions"], codes, strict=True):
            session["code"] = code

    edit_json(run.supervisor, name)
    for each in (run, RunLayout(run.root.parent / "ref")):  # told where they differ
        edit_json(each.environment, lambda record: record | {"source_sha256": codes[0]})
    verdict = verify_run(run.root)
    finding = found(verdict, RECORDS)
    assert finding.status == VALID, render(verdict)
    assert finding.evidence == ((f"the run went on under other code: {told}",) if told else ())


def test_each_session_has_its_code_on_record(tmp_path: Path) -> None:
    keeper = SupervisorRecordWriter(RunLayout(tmp_path), "0" * 64, 8)
    keeper.begin()
    keeper.begin()
    assert [session.code for session in keeper.record.sessions] == [source_sha256()] * 2
    assert re.fullmatch("[0-9a-f]{64}", source_sha256())
