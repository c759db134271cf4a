"""Restart or stop, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecrl_cli.records.events import Attempt, SupervisorSession
from ecrl_cli.records.messages import RankError
from ecrl_cli.supervision.attempts.restart_policy import (
    charged_attempts,
    decide,
    restarts,
    without_gain,
)


def attempt(
    number: int = 0,
    last_step: int | None = None,
    outcome: str = "died",
    session: int = 0,
    **how: int | None,
) -> Attempt:
    how = how or {"signal": 9, "rank": 1}
    return Attempt(number, 2, outcome=outcome, last_step=last_step, session=session, **how)  # type: ignore[arg-type]


def steps(*last: int | None) -> tuple[Attempt, ...]:
    return tuple(attempt(number, step) for number, step in enumerate(last))


def test_a_reached_target_ends_the_run_well() -> None:
    decision = decide((attempt(0, 100, "completed"),), 20, None)
    assert (decision.status, decision.exit_code, decision.restart) == ("completed", 0, False)


def test_a_death_that_gained_steps_is_followed_by_a_restart() -> None:
    decision = decide(steps(40, 120), 20, None)
    assert decision.restart
    assert decision.reason == "rank 1 was killed by signal 9"


@pytest.mark.parametrize(
    ("last_steps", "storm"),
    [
        ((None, None), True),
        ((None,), False),
        ((50, 50, 50), True),
        ((50, 49, None), True),
        ((50, 50), False),
        ((50, 50, 51), False),
        ((50, 50, 51, 51), False),
        ((20, 40), False),
    ],
)
def test_two_attempts_in_a_row_without_a_new_step_are_a_storm(
    last_steps: tuple[int | None, ...], storm: bool
) -> None:
    decision = decide(steps(*last_steps), 20, None)
    assert decision.restart is not storm
    assert ("storm" in decision.reason) is storm
    assert decision.exit_code == (7 if storm else 0)


@pytest.mark.parametrize(
    ("signals", "outside"),
    [((9, 9), True), ((15, 9), True), ((11, 9), False), ((9, 11), False)],
)
def test_a_storm_of_signals_from_outside_says_that_they_came_from_there(
    signals: tuple[int, int], outside: bool
) -> None:
    attempts = tuple(
        replace(each, signal=number, exit_code=None)
        for each, number in zip(steps(40, 40, 40)[1:], signals, strict=True)
    )
    decision = decide((steps(40)[0], *attempts), 20, None)
    assert decision.exit_code == 7
    names = "SIGKILL" if signals == (9, 9) else "SIGKILL and SIGTERM"
    assert (
        decision.reason.endswith(
            f"; {names} came from outside the run: from a person, a scheduler or the kernel's"
            " out-of-memory killer"
        )
        == outside
    )


def test_the_restart_limit_ends_the_run() -> None:
    assert decide(steps(10, 20), 2, None).restart
    decision = decide(steps(10, 20, 30), 2, None)
    assert (decision.status, decision.exit_code) == ("gave_up", 7)
    assert "all 2 restarts are spent" in decision.reason
    assert (
        "; the last attempt" in decide(steps(10, 20), 1, None).reason
        and "its only restart is spent" in decide(steps(10, 20), 1, None).reason
    )
    assert not decide(steps(10), 0, None).restart and decide(steps(10), 0, None).reason.startswith(
        "no restart is allowed; "
    )


@pytest.mark.parametrize(
    ("code", "status"), [(2, "refused"), (4, "gave_up"), (5, "gave_up"), (9, "gave_up")]
)
def test_what_no_restart_would_cure_ends_the_run_with_its_own_code(code: int, status: str) -> None:
    decision = decide(steps(10), 20, RankError(0, "E-dataset dataset: is missing", code))
    assert (decision.status, decision.exit_code, decision.reason) == (
        status,
        code,
        "E-dataset dataset: is missing",
    )


def test_an_unexpected_error_of_a_rank_is_restarted_and_named() -> None:
    decision = decide(
        (attempt(0, 10, exit_code=1, rank=0),), 20, RankError(0, "ValueError: odd", 1)
    )
    assert decision.restart
    assert decision.reason == "ValueError: odd"


def test_ranks_that_leave_early_with_code_0_have_not_completed() -> None:
    decision = decide((attempt(0, 10, exit_code=0, rank=0),), 20, None)
    assert decision.restart
    assert "before the target" in decision.reason


def test_only_attempts_after_a_death_are_restarts() -> None:
    runs = (
        attempt(0, 10, "stopped"),
        attempt(1, 20, "died"),
        attempt(2, 30, "resized"),
        attempt(3, 40, "completed"),
    )
    assert restarts(runs) == 1


def resized(number: int, last_step: int) -> Attempt:
    return attempt(number, last_step, "resized", exit_code=0)


def test_a_planned_change_of_size_spends_no_restart() -> None:
    decision = decide((resized(0, 40),), 0, None)
    assert decision.restart and "2 ranks ended after step 40, a planned change" in decision.reason
    assert restarts((resized(0, 40), attempt(1, 50), resized(2, 60), attempt(3, 70))) == 1


def test_a_change_of_size_that_never_sticks_is_a_storm() -> None:
    """Its checkpoint is refused each time: without this the run would go round for ever, at no cost
    in restarts.
    """
    assert decide((resized(0, 40), resized(1, 40)), 20, None).restart
    assert decide((resized(0, 40), resized(1, 40), resized(2, 40)), 20, None).exit_code == 7
    assert decide(
        (resized(0, 40), attempt(1, 60), resized(2, 40), attempt(3, 80)), 20, None
    ).restart


def test_the_budget_outlives_a_killed_supervisor_and_is_new_when_a_person_starts_again() -> None:
    attempts = tuple(attempt(n, 10 * (n + 1), session=n) for n in range(3))
    ended, killed = SupervisorSession(0.0, 0.0, "b", 1.0), SupervisorSession(0.0, 0.0, "b")
    assert len(charged_attempts(attempts, (killed, killed, killed))) == 3
    assert len(charged_attempts(attempts, (ended, killed, killed))) == 2
    assert len(charged_attempts(attempts, (killed, ended, killed))) == 1


def test_what_went_down_with_its_supervisor_is_no_evidence_of_a_storm() -> None:
    gone = attempt(1, 50, exit_code=None)
    assert without_gain((attempt(0, 50), gone, gone)) == 0
    assert without_gain((attempt(0, 50), gone, attempt(2, 50))) == 1


def test_a_replay_that_does_not_pass_the_highest_step_is_no_gain() -> None:
    assert without_gain(steps(100, 60)) == 1
    assert without_gain(steps(100, 101)) == 0


def test_an_attempt_that_ranks_outlived_spends_no_restart() -> None:
    attempts = tuple(attempt(number, 10 + number, "survived") for number in range(5))
    assert restarts(attempts) == 0
    assert decide(attempts, 0, None).restart
    assert decide(attempts, 0, None).reason == "rank 1 was killed by signal 9"


def test_ranks_that_outlive_attempts_without_a_new_step_are_a_storm() -> None:
    decision = decide(tuple(attempt(number, 40, "survived") for number in range(3)), 20, None)
    assert not decision.restart
    assert "storm" in decision.reason
    assert decide(
        tuple(attempt(number, 40, "survived") for number in range(3)), 20, None, frozenset({1, 2})
    ).restart, "planned ones are no evidence"
