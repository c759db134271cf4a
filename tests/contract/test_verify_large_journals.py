"""A journal that is too large to read contradicts nothing: what rests on it is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, render
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_blk, build_ref

TOO_LARGE = b"x" * (5 * 2**20)


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("name", ["checkpoint_rank0", "rank0", "rank1", "spans_rank0"])
def test_a_line_that_is_too_large_to_read_is_unknown(
    tmp_path: Path, name: str, attempt: int
) -> None:
    build_ref(tmp_path)
    run = build_blk(tmp_path)
    with (run.attempt(attempt).folder / f"{name}.jsonl").open("ab") as journal:
        journal.write(TOO_LARGE)
    verdict = verify_run(run.root)
    assert verdict.status == UNKNOWN, render(verdict)
    assert f"logs/attempt-0{attempt}/{name}.jsonl cannot be read: has" in render(verdict)


def test_a_journal_that_is_gone_is_invalid_as_before(tmp_path: Path) -> None:
    run: RunLayout = build_blk(tmp_path)
    run.attempt(1).checkpoints.unlink()
    assert verify_run(run.root).status == INVALID
