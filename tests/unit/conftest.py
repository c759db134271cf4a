"""What the unit tests of the report share."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ecrl_cli.history.load import RunRecords
from ecrl_cli.report.model import run_record
from tests.unit import report_runs


@pytest.fixture(scope="module", autouse=True)
def numbers_from_metrics(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the tests of what the report makes of numbers, a run's numbers are those that they write
    into metrics.json.

    That the report takes them from the records and not from there is tested in
    test_report_cache.py.
    """
    name = request.module.__name__.rpartition(".")[2]
    with pytest.MonkeyPatch.context() as patch:
        if name.startswith("test_report_") and name != "test_report_cache":
            patch.setattr(run_record, "metrics_from_records", _given)
            patch.setattr(run_record, "_file_differs", lambda *given: [])
            patch.setattr(report_runs, "GIVEN", True)
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take most of their time."""
    monkeypatch.setattr("ecrl_cli.report.figures.runs.run_pictures", lambda *given: [])
    monkeypatch.setattr("ecrl_cli.report.figures.studies.study_pictures", lambda study: [])
    monkeypatch.setattr("ecrl_cli.report.figures.history.history_pictures", lambda history: [])
    monkeypatch.setattr(
        "ecrl_cli.replication.report.publication.published_pictures", lambda found: ()
    )


def _given(records: RunRecords, account: object) -> object:
    return json.loads(records.layout.metrics.read_text())
