"""Verify beside a run that is still running: all its records are read as they were at one instant,
whatever it writes meanwhile.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.history import load as history_load
from ecrl_cli.records import cut as cuts
from ecrl_cli.records.cut import MovedOn, take_cut
from ecrl_cli.records.events import Attempt, SupervisorRecord, SupervisorSession
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.report.build import report
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.run_lock import held, run_lock
from ecrl_cli.verify import disk_state
from ecrl_cli.verify.rank_spans import read_spans
from ecrl_cli.verify.reference import read_records
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, Verdict
from ecrl_cli.verify.verify_run import verify_run
from tests.in_process import ecrl_in_process
from tests.runs import builder
from tests.runs.builder import BOOT, WALL, RunBuilder, Worker, config_of

BEHIND = (1, 16)  # the attempt, and the step after which the run is looked at


class Watched(Worker):
    """Leaves a copy of the run directory as it is right after a step."""

    def one_step(self) -> None:
        super().one_step()
        if (self.number, self.step) == BEHIND:
            shutil.copytree(self.run.root, self.run.root.with_name("instant"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole`: a run to its end. `instant`: the same run in the middle of its second attempt."""
    folder = tmp_path_factory.mktemp("recorded")
    config = config_of("blk", "kill", (9, 20), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "Worker", Watched)
        made = RunBuilder(
            folder / "whole", replace(config, checkpoint=replace(config.checkpoint, keep=2))
        )
        made.build()
    layout = RunLayout(folder / "instant")
    order = decode(AttemptSpec, read_json(layout.attempt(BEHIND[0]).launch))
    running = Attempt(
        1,
        2,
        resumed_from_step=order.resume_step,
        resumed_from=order.resume_from,
        launched_at=made.attempts[1].launched_at,
    )
    sessions = (SupervisorSession(1000.0, 1000.0 + WALL, BOOT),)
    record = SupervisorRecord(
        1, made.run_id, 24, "running", 1, (made.attempts[0], running), sessions
    )
    write_json(layout.supervisor, encode(record))
    return folder


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Iterator[RunLayout]:
    """The run at that instant, under the supervisor's lock."""
    layout = RunLayout(Path(shutil.copytree(recorded / "instant", tmp_path / "run")))
    with run_lock(layout):
        yield layout


@pytest.fixture(scope="module")
def due(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """What is said of the run at that instant where nothing is written meanwhile."""
    layout = RunLayout(
        Path(shutil.copytree(recorded / "instant", tmp_path_factory.mktemp("due") / "run"))
    )
    with run_lock(layout):
        return verify_run(layout.root)


def go_on(layout: RunLayout, whole: Path, *, documents: bool) -> None:
    """The run does all its further steps: journals grow, checkpoints come and go; with `documents`
    those are replaced, and attempts begin.
    """
    for path in sorted(whole.rglob("*")):
        there = layout.root / path.relative_to(whole)
        if there.parent.exists() and path.suffix == ".jsonl" and there.exists():
            with there.open("ab") as journal:
                journal.write(path.read_bytes()[there.stat().st_size :])
        elif documents or "step_00000018" in path.parts:
            # those that the attempt still saves, or all
            if path.is_dir() and not path.is_symlink():
                there.mkdir(exist_ok=True)
            elif there.parent.exists() and not path.is_symlink():
                shutil.copy2(path, there.with_name(".new"))
                there.with_name(".new").rename(there)
    shutil.rmtree(layout.checkpoints / "step_00000006", ignore_errors=True)  # two are kept


def at_call(
    number: int, function: Callable[..., Any], then: Callable[[], None]
) -> Callable[..., Any]:
    """`function`, before whose call `number` something happens."""
    calls = []

    def called(*given: Any, **named: Any) -> Any:
        calls.append(0)
        if len(calls) == number:
            then()
        return function(*given, **named)

    return called


def at_read(monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[], None]) -> None:
    """Before the journal `number` of a run is read, something happens."""
    reads = at_call(number, lambda: None, then)

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            reads()
            return read(*given, **named)

        return called

    for name in ("read_journal", "read_log"):
        monkeypatch.setattr(history_load, name, counted(getattr(history_load, name)))


def test_a_run_in_the_middle_is_judged_to_where_it_is(due: Verdict) -> None:
    assert (due.status, due.judged_to_step) == (UNKNOWN, 16)
    assert [finding.promise for finding in due.findings if finding.status == INVALID] == []
    assert any(
        finding.message.endswith(
            "target-reached - the run is still running: judged to step 16 of 24"
        )
        for finding in due.findings
    )


@pytest.mark.parametrize("call", [1, 2, 3, 5, 8])
def test_lines_written_and_checkpoints_removed_meanwhile_are_not_seen(
    call: int, run: RunLayout, recorded: Path, due: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def then() -> None:
        go_on(run, recorded / "whole", documents=False)
        happened.append("went on")

    at_read(monkeypatch, call, then)
    assert verify_run(run.root).findings == due.findings and happened


@pytest.mark.parametrize("call", [1, 4, 7])
def test_where_documents_were_replaced_meanwhile_all_is_read_again(
    call: int, run: RunLayout, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_read(monkeypatch, call, lambda: go_on(run, recorded / "whole", documents=True))
    verdict = verify_run(run.root)
    assert (
        verdict.judged_to_step == 24
        and [finding.message for finding in verdict.findings if finding.status == INVALID] == []
    )


def test_a_checkpoint_removed_while_it_is_read_is_no_loss(
    run: RunLayout, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = partial(go_on, run, recorded / "whole", documents=False)
    monkeypatch.setattr(
        disk_state, "verify_checkpoint", at_call(1, disk_state.verify_checkpoint, then)
    )
    verdict = verify_run(run.root)
    assert (
        verdict.judged_to_step == 20
        and [finding.message for finding in verdict.findings if finding.status == INVALID] == []
    )


def test_a_checkpoint_that_is_damaged_is_a_loss_in_a_running_run_too(run: RunLayout) -> None:
    builder.flip(run.checkpoints / "step_00000012" / "model.safetensors")
    assert [
        finding.promise for finding in verify_run(run.root).findings if finding.status == INVALID
    ] == ["no-acknowledged-loss"]


def test_a_wrong_line_is_wrong_in_a_running_run_too(run: RunLayout) -> None:
    log = run.attempt(1).rank(1)
    log.write_text(log.read_text().replace('"sample_ids_count":4', '"sample_ids_count":3'))
    assert "exactly-once" in [
        finding.promise for finding in verify_run(run.root).findings if finding.status == INVALID
    ]


def test_where_no_instant_is_found_the_answer_is_that_it_cannot_be_told(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter(range(10**9))
    monkeypatch.setattr(cuts, "WITHIN_S", 0.0)
    monkeypatch.setattr(cuts, "_state", lambda path: (next(sizes), 0, 0))
    with pytest.raises(
        MovedOn, match="changes faster than it can be read; verify again, or when the run has ended"
    ):
        read_records(run)


def test_a_running_directory_of_too_many_files_is_refused(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "MOST_ENTRIES", 12)
    with pytest.raises(EvidenceMissing, match="the run directory holds more than 12 files"):
        take_cut(run)


def test_the_command_says_that_it_runs_and_stores_nothing(run: RunLayout) -> None:
    said = ecrl_in_process(run.root.parent, "verify", "run", check=3).stdout
    assert (
        said.splitlines()[0].endswith("; still running, judged to step 16")
        and "not stored: the records go on" in said
    )
    assert not run.verdict.exists() and not run.divergence.exists()
    document = json.loads(
        ecrl_in_process(run.root.parent, "verify", "run", "--json", check=3).stdout
    )["run"]
    assert document["judged_to_step"] == 16


def test_the_report_says_that_it_runs(
    run: RunLayout, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_read(monkeypatch, 3, lambda: go_on(run, recorded / "whole", documents=False))
    made = report([run.root])
    assert "is still running (step 16 of 24)" in (made.page.parent / "report.md").read_text()


def test_spans_that_a_rank_began_meanwhile_are_not_seen(run: RunLayout) -> None:
    cut = take_cut(run)
    assert (1, 1) in read_spans(history_load.load(run, cut)).accounts
    del cut.states[run.attempt(1).spans(1)]
    assert (1, 1) not in read_spans(history_load.load(run, cut)).accounts


def test_a_run_that_ended_says_nothing_of_it(recorded: Path, tmp_path: Path) -> None:
    run = RunLayout(Path(shutil.copytree(recorded / "whole", tmp_path / "run")))
    verdict = verify_run(run.root)
    assert verdict.judged_to_step is None and "judged_to_step" not in verdict.to_json()
    ecrl_in_process(tmp_path, "verify", "run", check=None)
    assert run.verdict.exists()


def test_who_asks_whether_a_lock_is_held_neither_takes_nor_makes_it(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert not held(layout) and not layout.lock.exists()
    with run_lock(layout):
        assert held(layout)
    assert not held(layout)


def test_an_end_that_is_still_being_recorded_is_not_wrong(recorded: Path, tmp_path: Path) -> None:
    """The supervisor writes its end first, the phases of the attempts after that, metrics and seal
    last.
    """
    run = RunLayout(Path(shutil.copytree(recorded / "whole", tmp_path / "run")))
    record = read_json(run.supervisor)
    write_json(
        run.supervisor,
        record | {"attempts": [attempt | {"phases": {}} for attempt in record["attempts"]]},
    )
    run.metrics.unlink()
    with run_lock(run):
        assert [
            finding.message
            for finding in verify_run(run.root).findings
            if finding.status == INVALID
        ] == []
