"""Every gate of a study fails, it alone, for the one record that breaks what it promises."""

from __future__ import annotations

from typing import Any

import pytest

from tests.studies import concluded, failing
from tests.study_records import RECORDS

SPOILT = [(name, *spoilt) for name, records in RECORDS.items() for spoilt in records.spoilt]


@pytest.mark.parametrize("name", RECORDS)
def test_good_records_pass_and_each_gate_is_broken_once(name: str) -> None:
    records = RECORDS[name]
    findings = concluded(records.study, records.keys, records.good)
    assert failing(findings) == set()
    never_broken = {gate.name for gate in findings.gates} - {gate for gate, *_ in records.spoilt}
    assert never_broken - NEEDS_MANY.get(name, set()) == set()


# Gates that no single record breaks: they have tests of their own.
NEEDS_MANY = {"hostile": {"inputs"}}


@pytest.mark.parametrize(
    ("name", "gate", "key", "change"), SPOILT, ids=lambda value: str(value)[:40]
)
def test_a_record_that_breaks_a_promise_fails_its_gate(
    name: str, gate: str, key: str, change: dict[str, Any] | None
) -> None:
    records = RECORDS[name]
    findings = concluded(records.study, records.keys, records.changed(key, change))
    assert failing(findings) == {gate}
