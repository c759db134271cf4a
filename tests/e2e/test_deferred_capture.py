"""checkpoint.capture=deferred in whole runs: bit for bit the undisturbed run under kills, and a
torn checkpoint does not pass `ecrl verify`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.writer.server import UNCONFIRMED
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.planting import plant, suite_of
from tests.e2e.runs import end_state, last_losses, metrics, supervisor, tiny
from tests.in_process import SharedLaunchers, ecrl_in_process

SHAPE = tiny(
    "checkpoint.capture=deferred",
    "checkpoint.every=3",
    "state_digests=true",
    "failure=",
    "failure.steps=",
    "failure.rank=",
)
KILLS = (
    "failure=listed",
    "failure.entries=[kill@4.forward/0.1:0,kill@11.optimizer/0.5:0,kill@17.backward/0.5:1]",
)
pytestmark = pytest.mark.timeout(900)

# The state reaches the writer behind the update that follows, uncounted and without the digest that
# rank 0 logged: what a missing wait may lead to.
LATE = """
    from dataclasses import replace
    submit, idle = module.WriterClient.submit, module.WriterClient.wait_idle
    def late(self, number, image, changes=None):
        self.late = (number, replace(image, state_digest=""), changes)
    def hand_over(self):
        given, self.late = getattr(self, "late", None), None
        if given:
            submit(self, *given)
            self.confirm("")
    def wait_idle(self):
        hand_over(self)
        idle(self)
    module.WriterClient.submit, module.WriterClient.wait_idle = late, wait_idle
    from ecrl_cli.checkpoint.capture.live_state import ChangeCount
    from ecrl_cli.checkpoint.strategies.deferral import Deferral
    ChangeCount.add = lambda self: None
    Deferral.wait = lambda self: None
    after = Deferral._after_step
    def after_step(self, *given):
        after(self)
        if self._client:
            hand_over(self._client)
    Deferral._after_step = after_step
"""

# Every update after a deferred capture waits, however quick the writer is.
WAITS = """
    submit, wait = module.WriterClient.submit, module.WriterClient.wait_copied
    uncopied = module.WriterClient.uncopied
    idle = module.WriterClient.wait_idle
    def settled(self):
        self.due = False
        idle(self)
    module.WriterClient.wait_idle = settled
    def submitted(self, number, image, changes=None):
        self.due = changes is not None
        submit(self, number, image, changes)
    def waited(self, beat, every_s):
        self.due = False
        wait(self, beat, every_s)
    module.WriterClient.submit, module.WriterClient.wait_copied = submitted, waited
    def due_or_uncopied(self):
        return getattr(self, "due", False) or uncopied.fget(self)
    module.WriterClient.uncopied = property(due_or_uncopied)
"""


def deferred(run: Path) -> list[bool]:
    """By checkpoint, whether it was left to the writer to copy."""
    layout = RunLayout(run)
    lines = [
        line
        for number in layout.attempts()
        for line in read_journal(layout.attempt(number).checkpoints, CheckpointLine).events
    ]
    return [bool(line.deferred_bytes) for line in lines if line.event == "submitted"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    ecrl_in_process(
        folder,
        "train",
        *tiny("failure=", "failure.steps=", "failure.rank=", "state_digests=true"),
        "run_dir=run",
    )
    return folder / "run"


@pytest.mark.parametrize("strategy", ["overlapped", "in_memory"])
def test_kills_at_any_moment_change_nothing(tmp_path: Path, reference: Path, strategy: str) -> None:
    """Of the rank whose memory the writer copies, in forward right after a checkpoint and in the
    middle of an update, and of the other.
    """
    ecrl_in_process(tmp_path, "train", *SHAPE, *KILLS, f"checkpoint={strategy}", "run_dir=run")
    run = tmp_path / "run"
    assert end_state(run) == end_state(reference) and metrics(run)["restarts"] == 3
    assert all(last_losses(run, rank) == last_losses(reference, rank) for rank in (0, 1))
    assert sum(deferred(run)) >= len(deferred(run)) - 3 > 0, (
        "at most the first of an attempt may be a copy"
    )
    verdict = verify_run(run, reference)
    assert verdict.status == VALID, render(verdict)


@pytest.fixture(scope="module")
def with_replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicas")
    undisturbed = tiny(
        "failure=", "failure.steps=", "failure.rank=", "state_digests=true", "elastic.replicas=8"
    )
    ecrl_in_process(folder, "train", *undisturbed, "run_dir=run")
    return folder / "run"


def test_fixed_replicas_killed_and_resized_end_where_the_undisturbed_ones_do(
    tmp_path: Path, with_replicas: Path
) -> None:
    """From two processes on four and back on one, each attempt with its own shared memory."""
    kills = ("failure=listed", "failure.entries=[kill@4.forward/0.1:0,kill@11.optimizer/0.5:1]")
    elastic = ("elastic.replicas=8", "elastic.schedule={7: 4, 16: 1}")
    ecrl_in_process(
        tmp_path, "train", *SHAPE, *kills, *elastic, "checkpoint=overlapped", "run_dir=run"
    )
    run = tmp_path / "run"
    assert end_state(run) == end_state(with_replicas)
    assert [a["world_size"] for a in supervisor(run)["attempts"]] == [2, 2, 4, 4, 1]
    assert sum(deferred(run)) > 0
    verdict = verify_run(run, with_replicas)
    assert verdict.status == VALID, render(verdict)


@pytest.mark.parametrize("recovery", ["immediate_rollback", "redistribute"])
def test_survivors_go_on_from_a_memory_that_the_writer_copies(
    tmp_path: Path, request: pytest.FixtureRequest, recovery: str
) -> None:
    """Rank 1 dies in forward right after a checkpoint, while the writer may still copy, and in the
    middle of an update; a spare takes its place.
    """
    replicas = "8" if recovery == "redistribute" else "0"
    undisturbed: Path = request.getfixturevalue(
        "with_replicas" if recovery == "redistribute" else "reference"
    )
    kills = ("failure=listed", "failure.entries=[kill@4.forward/0.1:1,kill@11.optimizer/0.5:1]")
    live = (f"recovery={recovery}", "supervision.spares=1", f"elastic.replicas={replicas}")
    ecrl_in_process(
        tmp_path, "train", *SHAPE, *kills, *live, "checkpoint=overlapped", "run_dir=run"
    )
    run = tmp_path / "run"
    assert end_state(run) == end_state(undisturbed)
    assert [a["outcome"] for a in supervisor(run)["attempts"]] == [
        "survived",
        "survived",
        "completed",
    ]
    assert sum(deferred(run)) > 0
    verdict = verify_run(run, undisturbed)
    assert verdict.status == VALID, render(verdict)


def test_a_kill_behind_a_checkpoint_that_nobody_confirmed_goes_on_from_the_one_before(
    tmp_path: Path, reference: Path
) -> None:
    """Without digests only rank 0 could have told that its state was not written to while it was
    copied: the checkpoint has failed, on record.
    """
    shape = [word for word in SHAPE if word != "state_digests=true"]
    kill = ("failure=listed", "failure.entries=[kill@10.forward/0.1:0]")
    ecrl_in_process(
        tmp_path,
        "train",
        *shape,
        "state_digests=false",
        *kill,
        "checkpoint=overlapped",
        "run_dir=run",
    )
    run = tmp_path / "run"
    assert [
        (line.global_step, UNCONFIRMED in str(line.reason)) for line in lines_of(run, "failed")
    ] == [(9, True)]
    assert [line.global_step for line in lines_of(run, "committed")] == [3, 6]
    assert end_state(run) == end_state(reference) and metrics(run)["restarts"] == 1
    verdict = verify_run(run, reference)
    assert not [finding for finding in verdict.findings if finding.status == INVALID], render(
        verdict
    )


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which each update after a checkpoint waited for the copy."""
    folder = tmp_path_factory.mktemp("waiting")
    launchers = SharedLaunchers(
        plant(folder / "plant", {"waits": ("ecrl_cli.checkpoint.writer.client", WAITS)})
    )
    try:
        named = f"suite_name={suite_of('waits')}"
        ecrl_in_process(
            folder,
            "train",
            *SHAPE,
            "checkpoint=overlapped",
            named,
            "run_dir=run",
            launchers=launchers,
        )
    finally:
        launchers.end()
    return folder / "run"


def lines_of(run: Path, event: str) -> list[CheckpointLine]:
    lines = read_journal(RunLayout(run).attempt(0).checkpoints, CheckpointLine).events
    return [line for line in lines if line.event == event]


def test_each_wait_is_a_part_of_the_stall_and_of_no_step(waiting: Path, reference: Path) -> None:
    waits, released = lines_of(waiting, "waited"), lines_of(waiting, "released")
    assert [line.global_step for line in waits] == [3, 6, 9, 12, 15, 18, 21]
    counts = metrics(waiting)["checkpoints"]
    assert counts["stall_s"] == pytest.approx(
        math.fsum(line.stall_s for line in (*released, *waits))
    )
    assert (
        counts["stalled_copy_wait_s"] == pytest.approx(math.fsum(line.stall_s for line in waits))
        and counts["stalled_copy_wait_s"] > 0
    )
    assert math.fsum(
        value for name, value in counts.items() if name.startswith("stalled_")
    ) == pytest.approx(counts["stall_s"])
    verdict = verify_run(waiting, reference)
    assert verdict.status == VALID, render(verdict)


Change = Callable[[dict[str, Any]], dict[str, Any] | None]
TIME, ACCOUNTED = "time-conserved", "checkpoints-accounted"


def line(event: str, step: int, **values: Any) -> Change:
    return lambda found: (
        found | values if (found["event"], found["global_step"]) == (event, step) else found
    )


def without(event: str, step: int) -> Change:
    return lambda found: None if (found["event"], found["global_step"]) == (event, step) else found


@pytest.mark.parametrize(
    ("change", "promise", "said"),
    [
        (without("waited", 6), TIME, "part of that is booked as write_wait"),
        (
            line("waited", 6, stall_s=1.0, stall_parts={"copy_wait": 1.0}),
            TIME,
            "part of that is booked as write_wait",
        ),
        (line("waited", 6, stall_parts={"enqueue": 0.0}), TIME, "not copy_wait"),
        (line("waited", 6, stall_parts={"copy_wait": 1.0}), TIME, "its parts add up to 1.0"),
        (line("submitted", 6, deferred_bytes=0), ACCOUNTED, "was a copy, and does not say why"),
        (
            line("submitted", 6, deferred_bytes=0, reason="none"),
            ACCOUNTED,
            "waited for the copy of what was not left to the writer",
        ),
        (line("submitted", 6, reason="none"), ACCOUNTED, "gives a reason for a copy"),
        (line("submitted", 6, deferred_bytes=10**9), ACCOUNTED, "bytes to the writer"),
    ],
)
def test_records_of_a_wait_that_contradict_each_other_are_found(
    tmp_path: Path, waiting: Path, change: Change, promise: str, said: str
) -> None:
    run = Path(shutil.copytree(waiting, tmp_path / "run", symlinks=True))
    journal = RunLayout(run).attempt(0).checkpoints
    changed = [
        found for text in journal.read_text().splitlines() if (found := change(json.loads(text)))
    ]
    journal.write_text("".join(json.dumps(found) + "\n" for found in changed))
    verdict = verify_run(run)
    finding = next(finding for finding in verdict.findings if finding.promise == promise)
    assert finding.status == INVALID and said in finding.message, render(verdict)


def test_a_checkpoint_of_which_a_part_is_a_step_too_new_does_not_pass(
    tmp_path: Path, reference: Path
) -> None:
    """Nothing of it is damaged: only what rank 0 logged after that step says that it is no state of
    this run.
    """
    launchers = SharedLaunchers(
        plant(tmp_path / "plant", {"late": ("ecrl_cli.checkpoint.writer.client", LATE)})
    )
    try:
        ecrl_in_process(
            tmp_path,
            "train",
            *SHAPE,
            "checkpoint=overlapped",
            f"suite_name={suite_of('late')}",
            "run_dir=run",
            launchers=launchers,
        )
    finally:
        launchers.end()
    verdict = verify_run(tmp_path / "run", reference)
    broken = {
        finding.promise: finding.message
        for finding in verdict.findings
        if finding.status == INVALID
    }
    assert (
        verdict.status == INVALID
        and "in parameters, optimizer from what rank 0 logged after step"
        in broken["state-consistent"]
    ), render(verdict)
