"""What every recovery keeps: runs that do as its object says are valid, and runs that do otherwise
are not. One that a package registers is held to it as ours are.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.recoveries import LOSSY_FORWARD, RECOVERIES, SKIP, RecoveryKind
from ecrl_cli.config.schema import ElasticConfig, RecoveryConfig, RunConfig, SupervisionConfig
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.supervision.in_place.regroup_plan import plan_regroup
from ecrl_cli.verify.verdict import INVALID, VALID, Verdict, render
from ecrl_cli.verify.verify_run import verify_run
from tests.contract.test_verify_spoilt_runs import found
from tests.contract.variants import check_description, check_registration, refused
from tests.runs.builder import RunBuilder, config_of
from tests.runs.spoilt import TRAJECTORY
from tests.runs.survived import REPLICAS, Death, SurvivedBuilder

ABLE = next(name for name in LAUNCHERS.names() if LAUNCHERS.of(name).in_place)
UNABLE = next(name for name in LAUNCHERS.names() if not LAUNCHERS.of(name).in_place)


@pytest.fixture(params=RECOVERIES.names())
def kind(request: pytest.FixtureRequest) -> RecoveryKind:
    return RECOVERIES.of(request.param)


def chosen(kind: RecoveryKind, spares: int = 0, launcher: str = ABLE) -> RunConfig:
    supervision, elastic = SupervisionConfig(launcher=launcher, spares=spares), replicas_of(kind)
    return RunConfig(
        global_batch=60,
        recovery=RecoveryConfig(kind.name),
        supervision=supervision,
        elastic=elastic,
    )


def replicas_of(kind: RecoveryKind) -> ElasticConfig:
    return ElasticConfig(replicas=REPLICAS if kind.needs_replicas else 0)


def test_it_is_said_in_one_sentence_and_chosen_by_a_file(kind: RecoveryKind) -> None:
    check_description(RECOVERIES, kind.name, "recovery", "name")


def test_what_it_lacks_and_what_cannot_be_combined_is_refused_in_one_line(
    kind: RecoveryKind,
) -> None:
    assert refused(kind, chosen(kind, spares=1)) == ""
    assert ("needs spares" in refused(kind, chosen(kind))) == kind.needs_spares
    for spares in (0, 1):
        stay = kind.survivors_stay(spares)
        assert (
            f"needs supervision.launcher={ABLE}, got {UNABLE}"
            in refused(kind, chosen(kind, spares, UNABLE))
        ) == stay
        with_replicas, without = (
            replace(chosen(kind, spares), elastic=ElasticConfig(replicas=count)) for count in (4, 0)
        )
        assert ("elastic.replicas cannot be combined" in refused(kind, with_replicas)) == (
            stay and not kind.needs_replicas
        )
        assert ("needs elastic.replicas" in refused(kind, without)) == kind.needs_replicas
        resized = replace(chosen(kind, spares), elastic=replace(replicas_of(kind), schedule={9: 1}))
        assert (
            "a planned change of the world size cannot be combined" in refused(kind, resized)
        ) == stay


def test_the_object_does_not_contradict_itself(kind: RecoveryKind) -> None:
    assert not (kind.loses_samples and kind.exact), (
        "a step without some of its samples leads elsewhere"
    )
    assert kind.from_memory or not (kind.loses_samples or kind.shrinks or kind.needs_spares), (
        "a checkpoint holds all, and all begin anew from it"
    )
    assert not (kind.shrinks and kind.needs_spares)
    assert kind.loses_samples or not kind.drops_step, "a step that is dropped loses all it had"
    assert not (kind.exact and kind.shrinks) or kind.needs_replicas, (
        "fewer ranks add in another order, unless there are replicas"
    )
    assert callable(kind.load_session().take_part)


def test_who_goes_on_is_as_the_object_says(kind: RecoveryKind) -> None:
    """Of three ranks one has died: with a spare as many go on as before, without one fewer do, or
    all begin anew.
    """
    filled = plan_regroup(chosen(kind, spares=1), 3, {0: 9, 2: 9}, spares=1)
    assert (filled.origins, filled.joined, filled.memory) == (
        (0, 1, 2),
        (1,),
        SURVIVORS if kind.from_memory else "",
    )
    fewer = plan_regroup(chosen(kind, spares=1), 3, {0: 9, 2: 9}, spares=0)
    assert fewer.origins == ((0, 2) if kind.shrinks else ())


def test_a_run_that_does_as_the_object_says_is_valid(kind: RecoveryKind, tmp_path: Path) -> None:
    """Rank 1 dies in step 9, a spare takes its place; an undisturbed run vouches for the trajectory
    where one is claimed.
    """
    RunBuilder(tmp_path / "ref", replace(config_of("ref"), elastic=replicas_of(kind))).build()
    verdict = verify_run(
        SurvivedBuilder(tmp_path / "run", kind.name, (Death(9, first=(0,), spares=1),)).build().root
    )
    assert verdict.status == VALID, render(verdict)
    assert ("not claimed" in found(verdict, TRAJECTORY).message) == (not kind.exact)


def test_a_run_that_loses_samples_is_invalid_unless_the_object_says_so(
    kind: RecoveryKind, tmp_path: Path
) -> None:
    run = SurvivedBuilder(
        tmp_path / "run", kind.name, (Death(9, first=(0,), spares=1),), does=LOSSY_FORWARD
    ).build()
    verdict = verify_run(run.root)
    assert verdict.status == (VALID if kind.finishes_without else INVALID), render(verdict)
    if kind.drops_step:
        assert (
            f"says that rank 0 did step 9 to its end, which recovery={kind.name} drops"
            in broken(verdict)
        )
    elif not kind.finishes_without:
        assert (
            "which its recovery does not allow"
            if kind.from_memory
            else f"attempt 0 survived under {kind.name}"
        ) in broken(verdict)


def test_a_run_that_drops_a_mini_batch_is_invalid_unless_the_object_says_so(
    kind: RecoveryKind, tmp_path: Path
) -> None:
    verdict = verify_run(
        SurvivedBuilder(tmp_path / "run", kind.name, (Death(9, first=(0,), spares=1),), does=SKIP)
        .build()
        .root
    )
    assert verdict.status == (VALID if kind.drops_step else INVALID), render(verdict)
    if not kind.drops_step:
        assert "drops step 9, which its recovery does not allow" in broken(verdict)


def broken(verdict: Verdict) -> str:
    return "\n".join(
        text
        for finding in verdict.findings
        if finding.status == INVALID
        for text in (finding.message, *finding.evidence)
    )


def test_a_package_registers_nothing_else_under_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_registration(RECOVERIES, monkeypatch)
