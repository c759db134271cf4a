"""A trial that hangs does not hold its study up: it is ended, told, and nothing that it started
lives on.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.studies import Hangs, Signals
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies import signals
from ecrl_cli.studies.fake_ranks.supervisor_harness import TRIAL_S
from ecrl_cli.studies.frame.limits import Overdue, deadline
from ecrl_cli.studies.frame.study import Record, Study, StudyContext, Trial
from ecrl_cli.studies.hangs import study as hangs

SLEEP = ["sleep", "3600"]


@pytest.mark.parametrize(
    ("kind", "config"),
    [(hangs.STUDY, Hangs(slow=1)), (signals.STUDY, Signals())],
    ids=["hangs", "signals"],
)
def test_a_trial_that_is_never_over_is_ended_and_told(
    tmp_path: Path, kind: Study, config: Any
) -> None:
    """Blocked for good in a read of a process that neither speaks nor dies; and on its way out it
    waits for that process again.
    """
    ended: list[int] = []

    def wait_for_ever(context: StudyContext, trial: Trial) -> dict[str, Any]:
        with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as silent:
            try:
                raise AssertionError(silent.communicate())
            finally:
                ended.append(silent.wait())

    assert all(arm.limit_s == TRIAL_S for arm in kind.arms)
    blocked = replace(
        kind, arms=[replace(arm, run=wait_for_ever, limit_s=0.3) for arm in kind.arms]
    )
    with closing(blocked.open(StudyContext(StudyConfig(config), tmp_path))) as study:
        trial = next(trial for trial in study.plan() if trial.facts["arm"] == "case")
        found = study.run(trial)
        assert found["overdue"] and not found["good"] and ended == [-signal.SIGKILL]
        gates = {
            gate.name: gate.passed
            for gate in study.findings([Record(trial.key, trial.facts, found, 0.3)]).gates
        }
    assert not gates["over"] and not gates["as_promised"]


def test_what_ends_well_because_it_was_overdue_is_overdue_all_the_same() -> None:
    with pytest.raises(Overdue, match="not over after"), deadline(0.2), suppress(Overdue):
        subprocess.run(SLEEP, check=False)


def test_what_is_over_in_time_is_left_alone() -> None:
    with pytest.raises(KeyError), deadline(60.0):
        raise KeyError
    with subprocess.Popen(SLEEP) as process:
        with deadline(60.0):
            pass
        assert process.poll() is None and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
        process.kill()
