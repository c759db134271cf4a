"""The storm of signals is drawn evenly, says in which phase a run is, and counts what it sent."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from tests.signal_storm import (
    KINDS,
    PHASES,
    SIGNALS,
    TARGETS,
    Drawn,
    Observer,
    Played,
    draw,
    impossible,
    table,
)


def test_signals_are_spread_evenly_over_processes_phases_and_signals() -> None:
    drawn = draw(500, 1)
    assert drawn == draw(500, 1) != draw(500, 2)
    pairs = Counter((each.target, each.phase) for each in drawn)
    assert {target for target, _ in pairs} == set(TARGETS)
    assert {phase for _, phase in pairs} == set(PHASES)
    assert max(pairs.values()) - min(pairs.values()) <= 1
    for pair in pairs:
        names = Counter(each.name for each in drawn if (each.target, each.phase) == pair)
        assert set(names) == set(SIGNALS) and max(names.values()) - min(names.values()) <= 1
    assert not [each for each in drawn if impossible(each.target, each.phase, each.kind)]
    assert {each.kind for each in drawn} == set(KINDS)


def _lines(path: Path, *lines: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def _save(*events: str) -> list[dict[str, object]]:
    return [{"event": event, "global_step": 5, "attempt": 0} for event in events]


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ([], {"step"}),
        (["submitted"], {"save"}),
        (["submitted", "received"], {"save", "write in flight"}),
        (["submitted", "received", "released"], {"write in flight"}),
        (["submitted", "received", "released", "committed"], {"step"}),
    ],
)
def test_the_phase_of_a_run_is_read_from_its_logs(
    tmp_path: Path, events: list[str], phases: set[str]
) -> None:
    observer = Observer(RunLayout(tmp_path), 1)
    assert observer.phases() == {"start"}
    logs = RunLayout(tmp_path).attempt(0)
    _lines(logs.launch, {})
    assert observer.phases() == {"start"}
    _lines(logs.spans(0), {"category": "import"})
    assert observer.phases() == {"rendezvous"}
    _lines(logs.rank(0), {"global_step": 5})
    _lines(logs.checkpoints, *_save(*events))
    assert observer.phases() == phases
    _lines(logs.final, {})
    assert observer.phases() == {"end"}
    _lines(RunLayout(tmp_path).attempt(1).launch, {})
    assert observer.phases() == {"start", "restart"}
    assert Observer(RunLayout(tmp_path), 1).phases() == {"start"}


def test_the_table_counts_what_was_sent_and_says_what_was_not() -> None:
    one = Drawn("writer", "save", "STOP", "zygote overlapped")
    text = table([Played([one, one]), Played([], "left [7] []")], [one], 3)
    assert "| writer | 0 | 0 | 0 | 2 | 0 | 0 | 0 |" in text
    assert "2 signals (STOP 2, CONT 0, SEGV 0, TERM 0, KILL 0) in 2 runs, seed 3: 1 of them" in text
    assert "1 more did not meet their phase" in text
