"""A run whose disk failed and that was resumed: the last lines of each log may never have reached
the disk; nothing that rests on them is broken.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.records.events import Rejected, ResumedFrom
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import worked_out
from ecrl_cli.supervision.attempts import checkpoint_reconciliation as reconciliation
from ecrl_cli.supervision.attempts.supervisor_record import step_range
from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import RunBuilder, config_of
from tests.runs.spoil import line_at

DRAWS = 24
COMPUTE_S = 0.02  # of a step


@dataclass
class LosingTails(RunBuilder):
    """The first attempt ends at step 21 with its supervisor, which records nothing of that; of each
    of its logs so many lines are left.
    """

    kept: dict[str, int] = field(default_factory=dict)

    def tick(self, seconds: float) -> float:
        """The first attempt computes a little longer over each step: no line of another one has the
        times of its steps.
        """
        return super().tick(seconds if self.attempts or seconds != COMPUTE_S else seconds * 1.25)

    def stay(self) -> None:
        if self.attempts:
            self.lose()
        super().stay()

    def lose(self) -> None:
        interval = worked_out(1e-6, line_at(self.layout.attempt(0).rank(0), 2)["seconds"])
        self.layout.state_digests.write_text(json.dumps(encode(interval)))
        for log in sorted(self.layout.attempt(0).folder.glob("*.jsonl")):
            lines = log.read_bytes().splitlines(keepends=True)
            log.write_bytes(b"".join(lines[: self.kept.get(log.name, len(lines))]))
        with self.clocks():
            reconciliation.reconcile_checkpoints(self.layout, 0, self.store)
        first, last = step_range(self.layout, 0)
        abandoned = {
            "outcome": "died",
            "signal": None,
            "ended_at": None,
            "first_step": first,
            "last_step": last,
        }
        self.attempts[0] = replace(self.attempts[0], **abandoned)
        self.sessions[0] = replace(
            self.sessions[0], ended_at=None, ended_time=None, signals=None, writer_deaths=None
        )

    def choose(self, number: int) -> tuple[ResumedFrom | None, tuple[Rejected, ...]]:
        resumed, rejected = super().choose(number)
        if resumed:
            with self.clocks():
                reconciliation.acknowledge(self.layout, self.store.verify(self.root / resumed.path))
        return resumed, rejected

    def clocks(self):  # type: ignore[no-untyped-def]
        return patch.multiple(reconciliation, monotonic=lambda: self.now, wall=lambda: self.wall)


def resumed(folder: Path, kept: dict[str, int]) -> LosingTails:
    config = replace(config_of("blk"), state_digests="auto", target_steps=36)
    run = LosingTails(
        folder / "run",
        replace(config, checkpoint=replace(config.checkpoint, keep=2)),
        stops={0: 21},
        kept=kept,
    )
    run.build()
    return run


def told(run: RunLayout, status: str) -> list[str]:
    return [
        text
        for finding in verify_run(run.root).findings
        if finding.status == status
        for text in (finding.message, *finding.evidence)
    ]


def test_where_nothing_was_lost_nothing_is_in_doubt(tmp_path: Path) -> None:
    run = resumed(tmp_path, {}).layout
    doubted = {
        finding.promise for finding in verify_run(run.root).findings if finding.status == UNKNOWN
    }
    assert told(run, INVALID) == [] and doubted == {"same-trajectory"}, "that one needs a reference"


def test_where_all_lines_were_lost_it_cannot_be_told(tmp_path: Path) -> None:
    run = resumed(
        tmp_path,
        dict.fromkeys(
            (
                "rank0.jsonl",
                "rank1.jsonl",
                "spans_rank0.jsonl",
                "spans_rank1.jsonl",
                "checkpoint_rank0.jsonl",
            ),
            0,
        ),
    ).layout
    assert told(run, INVALID) == []
    unknown = told(run, UNKNOWN)
    assert any(
        "state_digests.json rests on a step of rank 0 that no line tells of" in text
        for text in unknown
    )
    assert any(
        "step 18 of attempt 0 was submitted 0 times and ended 1 times" in text for text in unknown
    )
    assert any("attempt 1 retired step 12" in text and "nobody saved" in text for text in unknown)


@pytest.mark.parametrize("draw", range(DRAWS))
def test_whatever_was_lost_nothing_is_broken(draw: int, tmp_path: Path) -> None:
    rng = random.Random(draw)
    names = (
        "rank0.jsonl",
        "rank1.jsonl",
        "spans_rank0.jsonl",
        "spans_rank1.jsonl",
        "checkpoint_rank0.jsonl",
    )
    run = resumed(
        tmp_path,
        {name: rng.choice((0, rng.randrange(60), rng.randrange(12), 10**6)) for name in names},
    )
    assert told(run.layout, INVALID) == []


@pytest.mark.parametrize("log", ["rank1.jsonl", "checkpoint_rank0.jsonl"])
def test_what_is_missing_of_an_attempt_that_ended_is_broken_or_missing_as_before(
    log: str, tmp_path: Path
) -> None:
    """In the attempt after it, whose supervisor lived to see its end."""
    run = resumed(tmp_path, {}).layout
    path = run.attempt(1).folder / log
    path.write_bytes(
        b"".join(
            line
            for line in path.read_bytes().splitlines(keepends=True)
            if b'"global_step":24' not in line
        )
    )
    assert told(run, INVALID) != []
