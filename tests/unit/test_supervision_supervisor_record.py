"""supervisor.json: what a supervisor leaves that is killed while it writes the end of its run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.events import Hang
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts import supervisor_record
from ecrl_cli.supervision.attempts.supervisor_record import (
    SupervisorRecordWriter,
    read_record,
    with_phases,
)
from ecrl_cli.verify.verdict import INVALID, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.spoil import edit_lines, without
from tests.runs.spoilt_states import build_states


def test_a_supervisor_killed_between_any_two_writes_of_its_end_leaves_no_invalid_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = build_states(tmp_path, "ref")
    whole = read_record(layout)
    (session,), (attempt,) = whole.sessions, whole.attempts
    open_session = replace(
        session, ended_at=None, ended_time=None, signals=None, writer_deaths=None
    )
    running = replace(
        whole,
        terminal_status="running",
        reason="",
        sessions=(open_session,),
        attempts=(replace(attempt, phases={}),),
    )
    write_json(layout.supervisor, encode(running))
    left = [layout.supervisor.read_bytes()]

    def noted(path: Path, document: Any) -> None:
        write_json(path, document)
        left.append(path.read_bytes())

    monkeypatch.setattr(supervisor_record, "write_json", noted)
    times = (session.ended_at, session.ended_time)
    monkeypatch.setattr(supervisor_record, "both_clocks", lambda: times)
    writer = SupervisorRecordWriter(layout, whole.run_id, whole.target_steps)
    ended = writer.end("completed", whole.reason, session.signals, session.writer_deaths)
    assert ended == whole
    verdicts = []
    for content in left:
        layout.supervisor.write_bytes(content)
        verdicts.append(verify_run(layout.root))
    assert [render(v) for v in verdicts if v.status == INVALID] == []
    assert verdicts[-1].status == VALID, render(verdicts[-1])


def test_a_supervisor_killed_right_after_the_final_record_leaves_a_valid_run(
    tmp_path: Path,
) -> None:
    """Its ranks die with it, before they have logged their last span."""
    layout = build_states(tmp_path, "ref")
    whole = read_record(layout)
    (session,), (attempt,) = whole.sessions, whole.attempts
    assert session.ended_at is not None and session.ended_time is not None
    killed = replace(session, ended_at=None, ended_time=None, signals=None, writer_deaths=None)
    second = replace(
        session,
        started_at=session.ended_at + 1,
        time=session.ended_time + 1,
        ended_at=session.ended_at + 2,
        ended_time=session.ended_time + 2,
    )
    unseen = replace(attempt, exit_code=None, ended_at=None)
    for rank in range(2):
        edit_lines(layout.attempt(0).spans(rank), without(category="idle"))
    record = replace(whole, sessions=(killed, second), attempts=(unseen,))
    write_json(layout.supervisor, encode(record))
    write_json(layout.supervisor, encode(replace(record, attempts=with_phases(layout, record))))
    write_json(layout.metrics, metrics_document(load(layout)))
    verdict = verify_run(layout.root)
    assert verdict.status == VALID, render(verdict)


def test_a_rank_that_hangs_after_the_final_record_makes_its_run_unknown(tmp_path: Path) -> None:
    """As one that ends badly after it: the run is complete, and nothing explains the hang."""
    layout = build_states(tmp_path, "ref")
    whole = read_record(layout)
    (session,), (attempt,) = whole.sessions, whole.attempts
    assert session.ended_at and session.ended_time and attempt.ended_at
    place = "rank 0 is stopped in done of step 24"
    hang = Hang((0,), "done", 24, 10.1, 10.0, f"{place}; nothing moved for 10.1 s (limit 10.0 s)")
    record = replace(
        whole,
        sessions=(
            replace(session, ended_at=session.ended_at + 20, ended_time=session.ended_time + 20),
        ),
        attempts=(replace(attempt, exit_code=None, ended_at=attempt.ended_at + 20, hang=hang),),
    )
    write_json(layout.supervisor, encode(record))
    write_json(layout.supervisor, encode(replace(record, attempts=with_phases(layout, record))))
    write_json(layout.metrics, metrics_document(load(layout)))
    finding = next(f for f in verify_run(layout.root).findings if f.promise == "records-consistent")
    said = "attempt 0 completed, and hung after that: nothing on record explains that"
    assert "no exit code" not in str(finding) and said in str(finding), finding
