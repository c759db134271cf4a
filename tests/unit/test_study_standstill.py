"""The studies of hangs and of signals: a few of their trials under the real supervisor, their
plans, and gates that can fail.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.studies import Hangs, Signals
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies import signals as signals_study
from ecrl_cli.studies.fake_ranks import supervisor_harness
from ecrl_cli.studies.fake_ranks.supervisor_harness import SupervisorHarness
from ecrl_cli.studies.frame import limits
from ecrl_cli.studies.frame.study import PreparedStudy, StudyContext, Trial
from ecrl_cli.studies.hangs import detector_scenarios
from ecrl_cli.studies.hangs import study as hangs_study
from ecrl_cli.studies.hangs.cases import CASES, _found_after, _limit
from ecrl_cli.studies.hangs.study import SIDE_THREAD
from ecrl_cli.studies.signals import ALONE_MUTANT, DEAF_MUTANT, EVERY, PHASES, WORDS, acknowledged


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisorHarness]:
    """One zygote for all: most of a small study's time is its start."""
    with closing(SupervisorHarness(tmp_path_factory.mktemp("stage"))) as made:
        yield made


@pytest.fixture
def hangs(harness: SupervisorHarness, tmp_path: Path) -> PreparedStudy:
    context = StudyContext(StudyConfig(Hangs(slow=1)), tmp_path)
    context._shared[supervisor_harness.harness_of] = harness
    return hangs_study.STUDY.open(context)


@pytest.fixture
def signals(harness: SupervisorHarness, tmp_path: Path) -> PreparedStudy:
    context = StudyContext(StudyConfig(Signals()), tmp_path)
    context._shared[supervisor_harness.harness_of] = harness
    return signals_study.STUDY.open(context)


def trial_of(study: PreparedStudy, **facts: Any) -> Trial:
    return next(trial for trial in study.plan() if facts.items() <= trial.facts.items())


@pytest.mark.parametrize(
    "what",
    [
        "one rank skips a collective",
        "os._exit(0) early",
        "SIGSEGV",
        "a late writer wakes up",
        "a slow disk",
        "SIGKILL of the agent",
    ],
)
def test_what_stands_still_or_dies_ends_as_promised(hangs: PreparedStudy, what: str) -> None:
    found = hangs.run(trial_of(hangs, arm="case", what=what))
    assert found["good"] and not found["shared_memory"], found


def test_the_detector_passes_its_stories_and_broken_ones_do_not(hangs: PreparedStudy) -> None:
    for story in ("slow", "suspended", "standing"):
        assert hangs.run(trial_of(hangs, arm="story", what=story))["good"]
    # where steps are far shorter than the timeout
    quickest = min(range(40), key=lambda seed: random.Random(seed).uniform(0.0, 1.0))
    for seed in (3, quickest):
        for bug in detector_scenarios.DETECTOR_MUTANTS:
            assert bug.shown(random.Random(seed)), (bug.name, seed)


def test_what_is_left_in_shared_memory_is_found_by_whose_name_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_SHARED", tmp_path)
    for name in ("ecrl-1", "sem.ecrl-2", "torch_3", "somebody-else"):
        (tmp_path / name).touch()
    (tmp_path / "ecrl-folder").mkdir()
    assert limits.shared_memory() == {"ecrl-1", "sem.ecrl-2", "torch_3", "ecrl-folder"}


def test_how_late_a_hang_was_found_is_told_by_the_ranks_and_not_by_the_supervisor(
    tmp_path: Path,
) -> None:
    layout = RunLayout(tmp_path)
    for rank, last in ((0, 19), (1, 20)):
        layout.attempt(0).rank(rank).parent.mkdir(parents=True, exist_ok=True)
        with closing(Journal(layout.attempt(0).rank(rank))) as journal:
            for step in range(1, last + 1):
                journal.append(
                    RankLine(
                        step, 0, step - 1, rank, 2, "", 0, 0.5, 0, 0.0, 100.0 + 0.01 * step, 0.0
                    )
                )
    attempt = {
        "attempt": 0,
        "world_size": 2,
        "launched_at": 99.0,
        "ended_at": 104.2,
        "hang": {"phase": "backward", "waited_s": 1.0, "limit_s": 1.0},
    }
    assert _found_after(layout, attempt) == pytest.approx(4.0)
    with closing(Journal(layout.attempt(0).rank(1))) as journal:  # woken up for its stacks
        journal.append(RankLine(21, 0, 20, 1, 2, "", 0, 0.5, 0, 0.0, 104.1, 0.0))
    assert _found_after(layout, attempt) == pytest.approx(3.9)
    steps = [0.2 * n for n in range(10)]
    assert _limit([1.0, 1.1], False) == 3.0 and _limit(steps, False) == pytest.approx(2.0), (
        "ten times the longest step"
    )
    assert _limit(steps, True) == 3.0, "a save has as long as a start"
    assert _found_after(layout, attempt | {"hang": {"phase": "saving"}}) == pytest.approx(1.3)


@pytest.mark.slow
def test_a_heartbeat_from_a_side_thread_hides_a_hang(hangs: PreparedStudy) -> None:
    assert hangs.run(trial_of(hangs, arm="planted", what=SIDE_THREAD))["shown"]


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("SIGTERM", "first step"),
        ("SIGHUP", "saving"),
        ("SIGINT", "recovery"),
        ("a storm", "training"),
        ("SIGINT twice", "training"),
    ],
)
def test_a_stop_keeps_what_was_done_and_the_run_goes_on(
    signals: PreparedStudy, word: str, phase: str
) -> None:
    found = signals.run(trial_of(signals, word=word, phase=phase))
    assert found["good"], found


def test_planted_ranks_are_found(signals: PreparedStudy) -> None:
    assert [
        signals.run(trial_of(signals, what=bug))["shown"] for bug in (DEAF_MUTANT, ALONE_MUTANT)
    ] == [True, True]
    assert signals.run(trial_of(signals, arm="control"))["good"], (
        "and not because of their little grace"
    )


def test_a_checkpoint_was_acknowledged_before_the_next_step() -> None:
    assert [acknowledged(done) for done in (0, 1, EVERY, EVERY + 1, 2 * EVERY, 2 * EVERY + 1)] == [
        0,
        0,
        0,
        EVERY,
        EVERY,
        2 * EVERY,
    ]


def test_everything_is_planned_as_often_as_asked(tmp_path: Path) -> None:
    setting = StudyContext(StudyConfig(Hangs(each=2, slow=3, planted=False)), tmp_path)
    assert len(hangs_study.STUDY.open(setting).plan()) == 2 * len(CASES) + 3 * 3
    setting = StudyContext(StudyConfig(Signals(each=2, planted=False)), tmp_path)
    assert len(signals_study.STUDY.open(setting).plan()) == 2 * len(WORDS) * len(PHASES)
