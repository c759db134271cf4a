"""As test_verify_sentences, of held-out evaluations, and of a run that was continued after its
first target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ecrl_cli.config.identity import reference_id
from ecrl_cli.history.lineage import evaluations, lineage
from ecrl_cli.history.load import NOTHING, RunRecords, load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.evaluations import Evaluation
from ecrl_cli.verify.consistency import records_consistent, target_reached
from ecrl_cli.verify.evaluations import _check_repeats, check_against
from ecrl_cli.verify.reference import reference_ids
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.trajectory import same_trajectory
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import HELD_OUT
from tests.runs.changed import (
    Records,
    attempts,
    configured,
    kept,
    left,
    sessions,
    supervised,
)
from tests.runs.continued import (
    build_continued,
    build_evaluated,
    build_evaluated_ref,
    build_first_leg,
)
from tests.runs.sentence import Judged, Row, told


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """`evaluated`: measured every 4 steps, killed after steps 9 and 20, resumed from 6 and from 18.
    `continued`: its first leg ends at step 12; in the second it was stopped after step 15.
    """
    folder = tmp_path_factory.mktemp("evaluated")
    built = {"evaluated": build_evaluated(folder), "ref": build_evaluated_ref(folder)}
    built |= {
        "continued": build_continued(folder / "legs"),
        "first leg": build_first_leg(folder / "legs"),
    }
    return Judged({name: load(layout) for name, layout in built.items()})


def every(number: int, keep: Callable[[Evaluation], Evaluation | None]) -> Records:
    """With other evaluations of attempt `number`."""

    def change(found: RunRecords) -> RunRecords:
        lines = found.logs(number).evaluations
        return left(
            found,
            number,
            evaluations=replace(
                lines,
                events=tuple(line for each in lines.events if (line := keep(each)) is not None),
            ),
        )

    return change


def measured(number: int, step: int, **changes: Any) -> Records:
    """With another evaluation after `step`; nothing changed: without it."""
    return every(
        number,
        lambda line: (
            (replace(line, **changes) if changes else None) if line.global_step == step else line
        ),
    )


def scored(number: int, step: int, **measures: float) -> Records:
    return every(
        number,
        lambda line: (
            replace(line, measures=line.measures | measures) if line.global_step == step else line
        ),
    )


def timed(number: int, step: int, by: float, name: str = "seconds") -> Records:
    return every(
        number,
        lambda line: (
            replace(line, **{name: getattr(line, name) + by}) if line.global_step == step else line
        ),
    )


def both(*changes: Records) -> Records:
    def change(found: RunRecords) -> RunRecords:
        for each in changes:
            found = each(found)
        return found

    return change


def ended_by(found: RunRecords, number: int) -> RunRecords:
    """Attempt `number` left a final record of its own, the same as the last one's."""
    assert found.final is not None
    return left(found, number, final=replace(found.final, attempt=number))


def smaller(found: RunRecords) -> RunRecords:
    """Attempt 1 had one rank, and measured something else after step 8."""
    return attempts(scored(1, 8, loss=0.25)(found), 1, world_size=1)


def reordered(found: RunRecords) -> RunRecords:
    lines = found.logs(1).evaluations
    return left(found, 1, evaluations=replace(lines, events=lines.events[::-1]))


def in_every_attempt(keep: Callable[[Evaluation], Evaluation | None]) -> Records:
    return both(*(every(number, keep) for number in range(3)))


def unmeasured(found: RunRecords) -> RunRecords:
    """Nothing was to be measured, and nothing was; final.json has an accuracy all the same."""
    without = in_every_attempt(lambda line: None)(found)
    return configured(without, evaluate=replace(found.stored.config.evaluate, every=0))


def gone_past(step: int) -> Records:
    """No evaluation after `step` of attempt 1, nor time for it."""

    def change(found: RunRecords) -> RunRecords:
        spans = kept(
            found.logs(1).spans,
            lambda span: (
                replace(span, category="compute")
                if (span.category, span.global_step) == ("evaluate", step)
                else span
            ),
        )
        return left(measured(1, step)(found), 1, spans=spans)

    return change


def measured_again(found: RunRecords) -> RunRecords:
    """Attempts 0 and 2 both measured after step 18, where attempt 2 begins."""
    return both(measured(0, 8, global_step=18), measured(2, 20, global_step=18))(found)


def repeats(case: Case) -> Finding:
    notes = FindingBuilder("records-consistent")
    _check_repeats(case, notes)
    return notes.finding("")


UNDUE = "was not due: evaluate.every is 4"
UNREACHED = "is of a step that the attempt, 6 to 20, did not reach"
NO_SHARE = f"which is no share of {HELD_OUT} samples"
UNBOOKED = "the spans of rank 0 do not book that as evaluate"


def as_text(task: str = "next_token", **measures: float) -> Records:
    """The same of a task whose perplexity follows from its loss; what was measured after step 8 of
    attempt 1 is `measures`.
    """

    def change(found: RunRecords) -> RunRecords:
        found = configured(found, task=replace(found.stored.config.task, name=task))
        sound = {"perplexity": math.exp(0.5), "loss": 0.5}
        return measured(1, 8, measures=sound | measures)(
            in_every_attempt(lambda line: replace(line, measures=sound))(found)
        )

    return change


ROWS: dict[str, Row] = {
    **{
        f"a perplexity of {value}": Row(
            records_consistent,
            "evaluated",
            as_text(perplexity=value),
            "after step 8 in attempt 1 has measures",
            None,
            right=(
                as_text(),
                as_text(loss=0.25, perplexity=math.exp(0.25)),
                as_text(loss=1e6, perplexity=math.inf),
                as_text("of a package that is not here", perplexity=value),
            ),
        )
        for value in (1.0, math.nextafter(math.exp(0.5), 2.0), math.inf, math.nan)
    },
    "other samples": Row(
        records_consistent,
        "evaluated",
        measured(1, 8, samples=20),
        "the evaluations are not all of the same samples: 20 and 40",
    ),
    "other measures": Row(
        records_consistent,
        "evaluated",
        measured(1, 8, measures={"accuracy": 0.5}),
        "the evaluations are not all of the same measures",
    ),
    "all of fewer samples": Row(
        records_consistent,
        "evaluated",
        in_every_attempt(lambda line: replace(line, samples=39)),
        "quality was measured on 39 samples, config.json holds out 40",
        right=(
            lambda found: configured(
                found, dataset=replace(found.stored.config.dataset, held_out=0)
            ),
        ),
    ),
    "another step": Row(
        records_consistent,
        "evaluated",
        measured(0, 8, global_step=9),
        f"the evaluation after step 9 in attempt 0 {UNDUE}",
    ),
    "step 0": Row(
        records_consistent,
        "evaluated",
        measured(0, 4, global_step=0),
        f"the evaluation after step 0 in attempt 0 {UNDUE}",
    ),
    "another attempt": Row(
        records_consistent,
        "evaluated",
        measured(1, 8, attempt=0),
        "after step 8 in attempt 1 is of attempt 0",
    ),
    "twice": Row(
        records_consistent,
        "evaluated",
        measured(1, 12, global_step=16),
        "after step 16 in attempt 1 stands there twice, or out of order",
    ),
    "out of order": Row(
        records_consistent, "evaluated", reordered, "stands there twice, or out of order"
    ),
    "before the attempt": Row(
        records_consistent,
        "evaluated",
        measured(1, 8, global_step=4),
        f"after step 4 in attempt 1 {UNREACHED}",
    ),
    "after the attempt": Row(
        records_consistent,
        "evaluated",
        measured(1, 20, global_step=24),
        f"after step 24 in attempt 1 {UNREACHED}",
        right=(
            lambda found: attempts(measured(1, 20, global_step=24)(found), 1, last_step=24),
            lambda found: found,
        ),
    ),
    "after an attempt that logged no step": Row(
        records_consistent,
        "evaluated",
        lambda found: attempts(measured(1, 20, global_step=24)(found), 1, last_step=None),
        UNREACHED,
        None,
    ),
    "of nothing": Row(
        records_consistent,
        "evaluated",
        measured(1, 8, samples=0),
        "after step 8 in attempt 1 measured nothing",
    ),
    "without a measure": Row(
        records_consistent,
        "evaluated",
        measured(1, 8, measures={}),
        "after step 8 in attempt 1 measured nothing",
    ),
    **{
        f"{name} {value}": Row(
            records_consistent,
            "evaluated",
            measured(1, 8, **{name: value}),
            "after step 8 in attempt 1 has a time that cannot be",
            right=(measured(1, 8, **{name: 0.0}),),
        )
        for name in ("seconds", "at", "time")
        for value in (-1e-9, math.nan, math.inf)
    },
    **{
        f"an accuracy of {value}": Row(
            records_consistent,
            "evaluated",
            scored(1, 8, accuracy=value),
            f"has an accuracy of {value!r}, {NO_SHARE}",
            right=(
                scored(1, 8, accuracy=0.0),
                scored(1, 8, accuracy=1.0),
                scored(1, 8, accuracy=1 / HELD_OUT),
            ),
        )
        for value in (1 + 1 / HELD_OUT, -1 / HELD_OUT, 0.51)
    },
    "longer than its span": Row(
        records_consistent, "evaluated", timed(1, 8, 0.001), UNBOOKED, right=(timed(1, 8, 5e-7),)
    ),
    "shorter than its span": Row(
        records_consistent, "evaluated", timed(1, 8, -0.001), UNBOOKED, right=(timed(1, 8, -5e-7),)
    ),
    "no measure of what was booked": Row(
        records_consistent,
        "evaluated",
        measured(1, 8),
        "attempt 1 evaluated after step 8 by the spans of rank 0, and what it found is not on"
        " record",
        UNKNOWN,
        right=(measured(1, 20),),  # during the last one its attempt died
    ),
    "nor of the last one of an attempt that ended well": Row(
        records_consistent,
        "evaluated",
        measured(2, 24),
        "attempt 2 evaluated after step 24 by the spans of rank 0",
        UNKNOWN,
    ),
    "one that was due": Row(
        records_consistent,
        "evaluated",
        measured(1, 12),
        "quality was to be measured after step 12, and no evaluation",
        UNKNOWN,
        (measured(0, 8),),
    ),
    "one that rank 0 went past": Row(
        records_consistent,
        "evaluated",
        gone_past(12),
        "quality was to be measured after step 12, and rank 0 went on without measuring it",
        right=(
            measured(1, 12),
            # nothing says what another attempt spent its time on, or what this one did last
            lambda found: left(gone_past(12)(found), 0, spans=NOTHING),
            lambda found: sessions(gone_past(12)(found), 0, ended_at=None),
        ),
    ),
    "one that is on record where the attempt begins": Row(
        repeats,
        "evaluated",
        measured_again,
        "attempt 2 measured quality after step 18, which was on record already",
        right=(
            lambda found: measured(0, 18)(measured_again(found)),
            lambda found: measured(2, 18)(measured_again(found)),
        ),
    ),
    "the same by another machine's view": Row(
        repeats,
        "evaluated",
        lambda found: configured(
            measured_again(found), supervision=replace(found.stored.config.supervision, nodes=2)
        ),
        "attempt 2 measured quality after step 18, which was on record already",
        UNKNOWN,
    ),
    "two that were due": Row(
        records_consistent,
        "evaluated",
        both(measured(1, 12), measured(1, 16)),
        "quality was to be measured after step 12 (and 1 more), and no evaluation of it",
        UNKNOWN,
    ),
    "the one at the target": Row(
        records_consistent,
        "evaluated",
        measured(2, 24),
        "quality was to be measured after step 24, and no evaluation",
        UNKNOWN,
        # it may have been stopped after that step
        right=(lambda found: supervised(measured(2, 24)(found), terminal_status="stopped"),),
    ),
    "another accuracy at the end": Row(
        records_consistent,
        "evaluated",
        scored(2, 24, accuracy=0.5),
        "final.json has an accuracy of 0.",
        right=(measured(2, 24), scored(2, 20, accuracy=0.5)),
    ),
    "an accuracy that nobody measured": Row(
        records_consistent, "evaluated", unmeasured, "no evaluation of that step is on record"
    ),
    "measured twice and not alike": Row(
        same_trajectory,
        "evaluated",
        scored(1, 8, loss=0.25),
        "for 0.25 in attempt 0, not what attempt 1 measured",
        right=(scored(1, 12, loss=0.25),),
    ),
    "a leg without an end": Row(
        records_consistent,
        "continued",
        lambda found: left(found, 1, final=None),
        "the run went on after step 12, and no attempt is on record as having completed there",
        None,
    ),
    "a leg with two ends": Row(
        records_consistent,
        "continued",
        lambda found: attempts(left(found, 0, final=found.logs(1).final), 0, outcome="completed"),
        "attempts 0 and 1 both completed at step 12",
        right=(lambda found: left(found, 0, final=found.logs(1).final),),
    ),
    "a leg of the same session": Row(
        records_consistent,
        "continued",
        lambda found: attempts(found, 2, session=0),
        "attempt 2 goes on after an earlier target, in the session in which attempt 1 reached it",
    ),
    "a leg that left something out": Row(
        records_consistent,
        "continued",
        lambda found: attempts(found, 2, resumed_from_step=13),
        "attempt 2 began after step 13, the run had ended at step 12",
        right=(lambda found: attempts(found, 2, resumed_from_step=11),),
    ),
    "a completed attempt in the middle": Row(
        records_consistent,
        "continued",
        lambda found: configured(found, continued_at=()),
        "attempt 1 completed and another attempt follows it",
    ),
    "the final record of another attempt": Row(
        target_reached,
        "continued",
        lambda found: left(found, 2, final=found.logs(4).final),
        "attempt 2 left the final record of attempt 4, the last attempt is 4",
    ),
    "a final record in the middle": Row(
        target_reached,
        "continued",
        lambda found: ended_by(found, 2),
        "attempt 2 left the final record of attempt 2, the last attempt is 4",
        right=(lambda found: found, lambda found: ended_by(found, 4)),
    ),
    "measured twice, with another number of ranks": Row(
        same_trajectory,
        "evaluated",
        lambda found: configured(
            smaller(found), elastic=replace(found.stored.config.elastic, replicas=2)
        ),
        "for 0.25 in attempt 0, not what attempt 1 measured",
        right=(smaller,),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_is_told_and_what_is_right_is_not(judged: Judged, name: str) -> None:
    judged.hold(ROWS[name])


def test_quality_is_held_against_the_references_as_far_as_both_measured(judged: Judged) -> None:
    ours, theirs = judged.runs["evaluated"], judged.runs["ref"]
    whole = same_trajectory(Case(ours, theirs))
    assert whole.status == VALID and told(
        whole,
        "; 6 evaluations on held-out data equal; 10 replayed lines repeated their losses, 2"
        " evaluations what",
    )
    other = same_trajectory(Case(scored(1, 12, loss=0.25)(scored(1, 16, loss=0.5)(ours)), theirs))
    assert (
        other.status == INVALID
        and told(other, "step 12: held-out loss 0.25 for")
        and not told(other, "step 16")
    ), other
    last = same_trajectory(Case(scored(2, 24, loss=0.25)(ours), theirs))
    assert told(last, "step 24: held-out loss 0.25 for")
    fewer = same_trajectory(
        Case(ours, every(0, lambda line: line if line.global_step % 8 else None)(theirs))
    )
    assert fewer.status == VALID and told(fewer, "3 evaluations on held-out data equal")
    batch = configured(theirs, evaluate=replace(theirs.stored.config.evaluate, batch=7))
    assert not told(same_trajectory(Case(ours, batch)), "on held-out data equal")


def test_of_a_step_that_was_measured_twice_the_last_counts_and_none_behind_the_end(
    judged: Judged,
) -> None:
    found = scored(1, 8, accuracy=0.0)(judged.runs["evaluated"])
    assert evaluations(found, lineage(found))[8].measures["accuracy"] == 0.0
    cut = attempts(left(found, 2, final=None, ranks={}), 2, outcome="died")
    assert list(evaluations(cut, lineage(cut))) == [4, 8, 12, 16] and lineage(cut).last_step == 18


def test_final_states_of_different_steps_are_not_compared(judged: Judged) -> None:
    """The reference ended where the first leg does: its state is another because its step is."""
    found = judged.runs["continued"]
    shorter = same_trajectory(Case(found, judged.runs["first leg"]))
    assert told(shorter, "and ref ends there") and not told(shorter, "of the final state differ"), (
        shorter
    )


def test_a_reboot_between_two_legs_is_no_launch_ahead_of_time(judged: Judged) -> None:
    """After it the monotonic clock is far behind what it was when the attempt before ended."""
    found = judged.runs["continued"]
    assert (
        found.sessions[0].boot_id != found.sessions[1].boot_id
        and found.sessions[1].started_at < found.sessions[0].started_at
    )
    assert time_conserved(Case(found)).status == VALID


def test_each_leg_has_its_own_clock(judged: Judged) -> None:
    found = judged.runs["continued"]
    first, second = metrics_document(found)["legs"]
    windows = [session.ended_at - session.started_at for session in found.sessions]  # type: ignore[operator]
    finals = [found.logs(number).final for number in (1, 4)]
    walls = [
        final.at - found.sessions[number].started_at
        for final, number in zip(finals, (0, 2), strict=True)
        if final
    ]
    assert (first["from_step"], first["to_step"], first["attempts"]) == (0, 12, [0, 1])
    assert (second["from_step"], second["to_step"], second["attempts"]) == (12, 24, [2, 3, 4])
    assert first["wall_s"] == pytest.approx(walls[0]) and second["wall_s"] == pytest.approx(
        windows[1] + walls[1]
    )
    assert [leg["goodput"] for leg in (first, second)] == pytest.approx(
        [12 / first["wall_s"], 12 / second["wall_s"]]
    )
    cut = attempts(left(found, 4, final=None, ranks={}), 4, outcome="died")
    assert [leg["to_step"] for leg in metrics_document(cut)["legs"]] == [12, 18]


def test_the_end_of_an_earlier_target_is_no_end_of_the_run(judged: Judged) -> None:
    """The target was raised, and the run has not gone on yet."""
    ended = judged.runs["first leg"]
    assert ended.final is not None and ended.final.global_step == 12
    assert configured(ended, continued_at=(12,), target_steps=24).final is None
    assert configured(ended, continued_at=(8,), target_steps=12).final == ended.final


@pytest.mark.parametrize(("resumed", "wrong"), [(8, False), (9, True)])
def test_the_step_gone_on_from_may_be_measured_again(
    judged: Judged, resumed: int, wrong: bool
) -> None:
    """Attempt 0 died between the save of step 8 and its evaluation."""
    found = attempts(judged.runs["evaluated"], 1, resumed_from_step=resumed)
    assert (
        told(
            records_consistent(Case(found)),
            f"is of a step that the attempt, {resumed} to 20, did not reach",
        )
        == wrong
    )


def test_a_run_that_was_continued_twice_must_do_the_same_as_one_that_ended_with_its_first_leg(
    judged: Judged,
) -> None:
    found = judged.runs["ref"]
    config = replace(found.stored.config, continued_at=(8, 16))
    own, first = reference_ids(configured(found, continued_at=(8, 16)))
    assert (own, first) == (
        found.stored.reference_id,
        reference_id(replace(config, target_steps=8, continued_at=())),
    )


@pytest.mark.parametrize(
    ("claimed", "compared", "wrong"), [(12, 3, False), (15, 3, False), (16, 4, True)]
)
def test_quality_is_held_against_the_reference_as_far_as_the_run_claims_to_equal_it(
    judged: Judged, claimed: int, compared: int, wrong: bool
) -> None:
    """After that step another number of ranks may give other values."""
    ours, theirs, notes = (
        scored(1, 16, loss=0.5)(judged.runs["evaluated"]),
        judged.runs["ref"],
        FindingBuilder("it"),
    )
    assert (
        check_against(Case(ours, theirs), theirs, lineage(theirs), claimed, notes) == compared
        and notes.clean != wrong
    )
