"""How the checkpoints end that nobody has ended: a writer died between its commit and its word."""

from __future__ import annotations

from pathlib import Path

from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import close_received, lines
from tests.unit.checkpoint_support import commit, store_at


def ends(layout: RunLayout, attempt: int) -> list[tuple[str, int, str | None]]:
    return [
        (e.event, e.global_step, e.commit_sha256)
        for e in lines(layout, attempt)
        if e.event in ("committed", "lost", "failed")
    ]


def test_the_next_writer_ends_what_the_dead_one_had_received_before_retention_can_remove_it(
    tmp_path: Path,
) -> None:
    layout = RunLayout(tmp_path)
    store = store_at(layout.root)
    for attempt, steps in ((0, (10, 20)), (1, (30,))):
        log = CheckpointLog(Journal(layout.attempt(attempt).checkpoints), layout, attempt)
        for step in steps:
            log.write("submitted", step)
            log.write("received", step)
        log.close()
    log = CheckpointLog(Journal(layout.attempt(1).checkpoints), layout, 1)
    log.write("submitted", 40)  # on its way to the next writer
    log.close()
    saved = commit(store, 10)
    close_received(layout, store)
    assert ends(layout, 0) == [("committed", 10, saved.commit_sha256), ("lost", 20, None)]
    assert ends(layout, 1) == [("lost", 30, None)]
    close_received(layout, store)
    assert len(ends(layout, 0)) == 2, "each ends once"
