"""Moves, deletes, links and forges whole files and folders, and compares the results with the
expectation of each row of `structural_cases`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import image_components
from ecrl_cli.records.events import Attempt
from ecrl_cli.studies.corruption.content import STEPS, StoreFixture, fixture
from ecrl_cli.studies.corruption.in_memory import verdict_of
from ecrl_cli.studies.corruption.structural_cases import GROUP, SINGLE, Row
from ecrl_cli.studies.frame.store_fixture import GUARD, put_zero_device
from ecrl_cli.studies.frame.study import Arm, Skip, StudyContext, Trial, asked
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import still_kept

ROWS = {"group": GROUP, "single": SINGLE}


def able(setting: StudyContext) -> frozenset[str]:
    """Which needs of the rows this machine meets."""
    path = setting.scratch / "node"
    with suppress(OSError):
        put_zero_device(path)
        path.unlink()
        return frozenset({"", "mknod"})
    return frozenset({""})


def trials(setting: StudyContext) -> list[Trial]:
    can = able(setting)
    kept = [(layout, row) for layout, rows in ROWS.items() for row in rows if row.needs in can]
    return [
        Trial(
            f"structural/{layout}/{row.name.replace(' ', '_')}/{number:02d}",
            {"arm": "structural", "layout": layout, "row": row.name},
        )
        for number in range(setting.config.study.seeds)
        for layout, row in kept
    ]


def skips(setting: StudyContext) -> list[Skip]:
    can = able(setting)
    return [
        Skip(f"structural: {row.name}", f"{row.needs} is not permitted here")
        for row in GROUP
        if row.needs not in can
    ]


def row_of(trial: Trial) -> Row:
    return next(row for row in ROWS[str(trial.facts["layout"])] if row.name == trial.facts["row"])


def run(
    setting: StudyContext,
    trial: Trial,
    judging: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Any]:
    """Tamper; then, within the context `judging`, run the integrity check, recovery and the readers
    of records.
    """
    root, row = setting.scratch / "run", row_of(trial)
    try:
        with fixture(
            root, setting.rng(trial.key), single=trial.facts["layout"] == "single"
        ) as made:
            suspect = row.do(made) or made.newest
            with judging():
                return _answers(made, row, suspect)
    finally:
        shutil.rmtree(root)


def _answers(made: StoreFixture, row: Row, suspect: Path) -> dict[str, Any]:
    verdict = verdict_of(lambda: verify_checkpoint(suspect, GUARD))
    report, untyped = _recovered(made)
    recovered = report.global_step if report else None
    found: dict[str, Any] = {
        "layer": verdict.layer,
        "reason": verdict.reason,
        "recovered": recovered,
        "missed": list(missed(made)),
        "untyped": verdict.untyped or untyped,
    }
    exact = bool(
        report
        and report.manifest
        and components(report.manifest) == image_components(made.image(report.global_step or 0))
    )
    right = (verdict.layer, recovered, tuple(found["missed"])) == (
        row.layer,
        row.recovers,
        row.missed,
    ) and not found["untyped"]
    return found | {
        "exact": exact,
        "as_expected": right and (recovered is None or exact == row.exact),
        "outcome": _outcome(found, exact),
    }


def _recovered(made: StoreFixture) -> tuple[IntegrityReport | None, str]:
    """The checkpoint that recovery chose, or the exception raised instead."""
    try:
        return made.store.newest_valid().report, ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:200]


def _outcome(found: dict[str, Any], exact: bool) -> str:
    if found["untyped"]:
        return "untyped"
    if found["recovered"] is None:
        return "lost_all"
    if not exact:
        return "silent_wrong"
    return "new" if found["recovered"] == STEPS[-1] else "previous"


def missed(made: StoreFixture) -> tuple[int, ...]:
    """Steps acknowledged by the records outside the folder that are not there, intact and under
    their commit.
    """
    kept = still_kept(made.layout, (Attempt(0, 1),))
    return tuple(
        sorted(
            step for step, line in kept.items() if _whole_as(made.step(step)) != line.commit_sha256
        )
    )


def _whole_as(path: Path) -> str | None:
    try:
        report = verify_checkpoint(path, GUARD)
    except Exception:  # counted at the first check of the same checkpoint
        return None
    return report.commit_sha256 if report.ok else None


STRUCTURAL = Arm("structural", trials, run, asked("structural"))
