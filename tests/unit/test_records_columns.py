"""Logs as columns: they say what the lines say, and lines of another form are not read as such."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.errors import RecordError
from ecrl_cli.records import safe_read
from ecrl_cli.records.columns import FileLines, rank_columns, read_log, span_columns
from ecrl_cli.records.events import RankLine, Span
from ecrl_cli.records.journal import line_of, read_journal
from ecrl_cli.records.state_digests import RANK_COMPONENTS


def sha(number: int) -> str:
    return f"{number:064x}"


def rank_line(step: int, **changed: Any) -> RankLine:
    """With digests of the state after every third step, and a learning rate after all but the
    first.
    """
    digested = step % 3 == 0
    line = RankLine(
        global_step=step,
        epoch=0,
        cursor_step=step - 1,
        rank=1,
        world_size=2,
        sample_ids_hash=sha(step),
        sample_ids_count=4,
        loss=1 / step,
        attempt=0,
        seconds=0.1,
        at=step / 7,
        time=1e9 + step / 7,
        state_digest=sha(100 + step) if digested else None,
        inputs_hash=f"blake3:{sha(200 + step)}",
        components=(
            {name: sha(1000 * step + place) for place, name in enumerate(RANK_COMPONENTS)}
            if digested
            else None
        ),
        lr=0.1 / step if step > 1 else None,
        targets_hash=f"blake3:{sha(300 + step)}",
    )
    return replace(line, **changed)


LINES = [rank_line(step) for step in range(1, 9)]
SPANS = [Span("compute", step / 10, step / 10 + 0.1, 0, step) for step in range(1, 9)]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_bytes(b"".join(map(line_of, lines)))
    return path


@pytest.mark.parametrize("targets", [True, False])
def test_columns_have_what_the_lines_have(
    targets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of older records, which have no hash of targets."""
    monkeypatch.setattr(safe_read, "_PIECE", 1000)  # the columns are of several pieces
    if not targets:
        older = [replace(line, targets_hash=None) for line in LINES]
        path = written(tmp_path / "older.jsonl", older)
        assert list(read_log(path, RankLine).events) == older
        columns = rank_columns(read_log(path, RankLine))
        assert columns is not None and not columns.has_targets
        return
    path = written(tmp_path / "rank1.jsonl", LINES)
    log, line_by_line = read_log(path, RankLine), read_journal(path, RankLine)
    columns = rank_columns(log)
    assert columns is not None and columns.consecutive
    assert [log.events[place] for place in range(-8, 8)] == [*LINES, *LINES]
    assert list(log.events[2:5]) == LINES[2:5]
    assert tuple(log.events) == line_by_line.events
    assert tuple(log.raw) == line_by_line.raw
    digested = [(2, sha(103)), (5, sha(106))]
    for rows in (slice(None), slice(1, 2)):
        assert [(row, state) for row, state, _ in columns.digested(rows)] == digested[rows]
    rows = columns.rows(2, 100)
    assert [line.global_step for line in columns.lines(rows.start, rows.stop)] == list(range(3, 9))
    assert columns.rows(20, 30) == slice(8, 8)


def test_lines_of_which_later_ones_have_no_targets_are_read_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_read, "_PIECE", sum(len(line_of(line)) for line in LINES))
    mixed = [*LINES, *(replace(rank_line(step), targets_hash=None) for step in range(9, 40))]
    log = read_log(written(tmp_path / "rank1.jsonl", mixed), RankLine)
    assert rank_columns(log) is None and list(log.events) == mixed


def test_spans_have_columns_too(tmp_path: Path) -> None:
    log = read_log(written(tmp_path / "spans_rank1.jsonl", SPANS), Span)
    columns = span_columns(log.events)
    assert columns is not None and columns.ordered
    assert list(log.events) == SPANS


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "rank1.jsonl", LINES)
    path.write_bytes(path.read_bytes() + line_of(rank_line(9))[:40])
    log = read_log(path, RankLine)
    assert (log.torn, len(log.events), rank_columns(log) is None) == (1, 8, False)


PLAIN = line_of(LINES[1]).decode()
# lines that the strict reader takes too: they have no columns
TAKEN: dict[str, str] = {
    "a loss that is no number": PLAIN.replace('"loss":0.5', '"loss":NaN'),
    "losses of replicas": PLAIN.replace('"loss":0.5', '"loss":[0.5,0.25]'),
    "a digest in capital letters": PLAIN.replace(sha(2), sha(0xABC).upper()),
    "a digest with a space": PLAIN.replace(sha(2), " " + sha(2)[1:]),
    "a digest of 63 digits": PLAIN.replace(sha(2), sha(2)[1:]),
    "inputs hashed otherwise": PLAIN.replace(f"blake3:{sha(202)}", f"sha256:{sha(202)}"),
    "inputs of two names": PLAIN.replace(f"blake3:{sha(202)}", f"blake3:blake3:{sha(202)}"),
    "no inputs": PLAIN.replace(f'"blake3:{sha(202)}"', "null"),
    "no targets": PLAIN.replace(f'"blake3:{sha(302)}"', "null"),
    "targets hashed otherwise": PLAIN.replace(f"blake3:{sha(302)}", f"sha256:{sha(302)}"),
    "a gradient scaler": PLAIN.replace('"loss_scale":null', '"loss_scale":2.0'),
    "a digest of the state alone": PLAIN.replace(
        '"state_digest":null', f'"state_digest":"{sha(7)}"'
    ),
    "components under other names": PLAIN.replace(
        '"components":null', '"components":{"parameters":"a"}'
    ).replace('"state_digest":null', f'"state_digest":"{sha(7)}"'),
    "a space before it": " " + PLAIN,
}
# what the strict reader refuses
REFUSED: dict[str, str] = {
    "two lines without a newline between them": PLAIN.rstrip("\n") + PLAIN,
    "an object on two lines": PLAIN.replace('"epoch"', '\n"epoch"'),
    "two on one line and one on two": PLAIN.rstrip("\n") + PLAIN.replace('"epoch"', '\n"epoch"'),
    "an empty line": "\n" + PLAIN,
    "an unknown field": PLAIN.replace('"epoch"', '"more":1,"epoch"'),
    "a missing field": PLAIN.replace('"epoch":0,', ""),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_line_of_another_form_is_read_line_by_line(tmp_path: Path, name: str) -> None:
    assert TAKEN[name] != PLAIN
    path = tmp_path / "rank1.jsonl"
    path.write_bytes(line_of(LINES[0]) + TAKEN[name].encode() + line_of(LINES[2]))
    log = read_log(path, RankLine)
    assert rank_columns(log) is None
    assert repr(log) == repr(read_journal(path, RankLine))


def test_a_log_that_is_missing_has_no_lines(tmp_path: Path) -> None:
    for kind in (RankLine, Span):
        log = read_log(tmp_path / "missing.jsonl", kind)
        assert (tuple(log.events), tuple(log.raw), log.torn) == ((), (), 0)


def test_two_lines_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    """Digests of 63 and 65 digits, or one line with a digest of the state and another with those by
    component, are as much in all as two whole ones.
    """
    path = tmp_path / "rank1.jsonl"
    for one, other in (
        ({"sample_ids_hash": sha(1)[1:]}, {"sample_ids_hash": sha(2) + "0"}),
        ({"state_digest": sha(1)}, {"components": dict.fromkeys(RANK_COMPONENTS, sha(2))}),
    ):
        lines = [rank_line(1, **one), rank_line(2, **other)]
        log = read_log(written(path, lines), RankLine)
        assert rank_columns(log) is None
        assert list(log.events) == lines


def said(read: Callable[[], object]) -> str:
    with pytest.raises(RecordError) as refused:
        read()
    return str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_line_is_refused_as_ever(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rank1.jsonl"
    path.write_bytes(line_of(LINES[0]) + REFUSED[name].encode() + line_of(LINES[2]))
    assert said(lambda: read_log(path, RankLine)) == said(lambda: read_journal(path, RankLine))


def test_lines_that_changed_since_are_not_read_again(tmp_path: Path) -> None:
    path = written(tmp_path / "rank1.jsonl", LINES)
    raw = read_log(path, RankLine).raw
    assert isinstance(raw, FileLines)
    assert list(raw[3:5]) == list(map(line_of, LINES[3:5]))
    assert list(raw.between(3, 5)) == [[line_of(line)[:-1] for line in LINES[3:5]]]
    path.write_bytes(b"".join(map(line_of, [*LINES[:4], rank_line(44, loss=1.5), *LINES[5:]])))
    assert "changed while it was read" in said(lambda: list(raw.between(3, 5)))
    path.write_bytes(b"".join(map(line_of, LINES[:4])))
    assert "changed while it was read" in said(lambda: list(raw.between(3, 5)))


def test_what_is_appended_later_is_not_read(tmp_path: Path) -> None:
    """Of a run that is still running, the lines are read that were there at one instant."""
    path = written(tmp_path / "rank1.jsonl", LINES[:4])
    until = path.stat().st_size
    path.write_bytes(path.read_bytes() + json.dumps({"more": 1}).encode() + b"\n")
    log = read_log(path, RankLine, until=until)
    assert list(log.events) == LINES[:4]
    assert list(log.raw) == list(map(line_of, LINES[:4]))
