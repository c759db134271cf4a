"""Checks what is on record of quality on held-out data: measured after the steps that were due,
within the time booked for it, twice alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ecrl_cli.config.legs import targets
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.errors import ConfigError, plural, shown
from ecrl_cli.history.divergence import same_float
from ecrl_cli.history.lineage import Lineage, evaluations, steps_of
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.membership import History, membership_history
from ecrl_cli.records.evaluations import Evaluation, evaluation_due
from ecrl_cli.records.events import Attempt
from ecrl_cli.verify.checkpoint_folder import lost_power, tails_may_be_lost
from ecrl_cli.verify.disturbance import ENDED_WELL
from ecrl_cli.verify.rank_spans import ROUNDING_S, SpanAccount
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case


def check_evaluations(case: Case, notes: FindingBuilder) -> int:
    """Part of records-consistent; returns how many evaluations are on record."""
    found = [
        (a, line) for a in case.attempts for line in case.run.logs(a.attempt).evaluations.events
    ]
    _check_samples(case, [line for _, line in found], notes)
    for a, line in found:
        if text := next(_wrong(case, a, line), ""):
            notes.broken(
                f"the evaluation after step {line.global_step} in attempt {a.attempt} {text}"
            )
            return len(found)
    for a in case.attempts:
        _check_spans(case, a, notes)
    _check_due(case, notes)
    _check_repeats(case, notes)
    _check_final(case, notes)
    return len(found)


def _check_samples(case: Case, lines: list[Evaluation], notes: FindingBuilder) -> None:
    """All evaluations of a run measure the same things on the same samples."""
    for what, values in (
        ("samples", {line.samples for line in lines}),
        ("measures", {tuple(line.measures) for line in lines}),
    ):
        if len(values) > 1:
            notes.broken(
                f"the evaluations are not all of the same {what}:"
                f" {' and '.join(shown(value) for value in sorted(values)[:2])}"
            )
    asked = case.run.stored.config.dataset.held_out
    if (
        asked
        and (other := next((line.samples for line in lines if line.samples != asked), None))
        is not None
    ):
        notes.broken(
            f"quality was measured on {plural(other, 'sample')}, config.json holds out {asked}"
        )


def _wrong(case: Case, a: Attempt, line: Evaluation) -> Iterator[str]:
    config, path = case.run.stored.config, case.run.logs(a.attempt)
    if not evaluation_due(config, line.global_step):
        yield f"was not due: evaluate.every is {config.evaluate.every}"
    if line.attempt != a.attempt:
        yield f"is of attempt {line.attempt}"
    steps = [each.global_step for each in path.evaluations.events]
    if steps.count(line.global_step) > 1 or steps != sorted(steps):
        yield "stands there twice, or out of order"
    reached = max(
        [
            a.resumed_from_step,
            max(steps_of(path.ranks[0]) if 0 in path.ranks else (), default=0),
        ]
    )
    if not a.resumed_from_step <= line.global_step <= max(reached, a.last_step or 0):
        yield f"is of a step that the attempt, {a.resumed_from_step} to {reached}, did not reach"
    if line.samples < 1 or not line.measures:
        yield "measured nothing"
    if not all(math.isfinite(value) and value >= 0 for value in (line.seconds, line.at, line.time)):
        yield "has a time that cannot be"
    yield from _wrong_measures(config.task.name, line)
    account = case.spans.of(a.attempt, 0)
    if account is not None and line.at <= account.end + ROUNDING_S and not _booked(account, line):
        yield (
            f"took {line.seconds:.6f} s until {line.at:.6f}, and the spans of rank 0 do not book"
            " that as evaluate"
        )


def _wrong_measures(task: str, line: Evaluation) -> Iterator[str]:
    """Errors in the measures. Classification: an accuracy that is no count of the samples. A task
    with a summary: measures that do not follow from one another.
    """
    accuracy = line.measures.get("accuracy")
    if (
        accuracy is not None
        and task == "classification"
        and (not 0 <= accuracy <= 1 or round(accuracy * line.samples) / line.samples != accuracy)
    ):
        yield (
            f"has an accuracy of {accuracy!r}, which is no share of"
            f" {plural(line.samples, 'sample')}"
        )
    try:
        again = TASKS.of(task).summarised(line.measures)
    except (ConfigError, KeyError):
        return  # of a package that is not here, or measures of another version of it
    if again.keys() != line.measures.keys() or any(
        not same_float(again[name], value) for name, value in line.measures.items()
    ):
        yield f"has measures {shown(line.measures)} that do not follow from one another"


def _booked(account: SpanAccount, line: Evaluation) -> bool:
    """Whether rank 0's span that ends the evaluation began with it, is of its step, and is booked
    as evaluate.
    """
    began = line.at - line.seconds
    spans = [
        span
        for span in account.between(began, line.at)
        if span.category == "evaluate" and span.global_step == line.global_step
    ]
    return (
        len(spans) == 1
        and abs(spans[0].start - began) <= ROUNDING_S
        and spans[0].end >= line.at - ROUNDING_S
    )


def _check_spans(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Checks that time booked by rank 0 as evaluate is on record as an evaluation: all but the
    last, during which it may have died.
    """
    account, recorded = (
        case.spans.of(a.attempt, 0),
        {line.global_step for line in case.run.logs(a.attempt).evaluations.events},
    )
    spans = account.of_category("evaluate") if account else []
    unrecorded = [span for span in spans if span.global_step not in recorded]
    if not unrecorded or lost_power(case):
        return
    if a.outcome not in ENDED_WELL and unrecorded == [spans[-1]]:
        return
    notes.missing(
        f"attempt {a.attempt} evaluated after step {unrecorded[0].global_step} by the spans of rank"
        " 0, and what it found is not on record"
    )


def unrecorded(case: Case) -> list[int]:
    """The due steps of the committed sequence after which no evaluation is on record. The last step
    of an unfinished run is left out: the run may have been stopped before it was evaluated.
    """
    config, last = case.run.stored.config, case.path.last_step
    every = config.evaluate.every
    if not every:
        return []
    recorded = {line.global_step for a in case.run.attempt_logs for line in a.evaluations.events}
    due = sorted(
        {*range(every, last + 1, every), *(step for step in targets(config) if step <= last)}
    )
    # a run that began with the checkpoint of another
    begun = case.path.segments[0].after if config.begins_from and case.path.segments else 0
    due = [step for step in due if step > begun]
    return [step for step in due if step not in recorded and (case.completed or step < last)]


def _check_due(case: Case, notes: FindingBuilder) -> None:
    if missing := unrecorded(case):
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        if (
            skipped := next((step for step in missing if _went_past(case, step)), None)
        ) is not None:
            notes.broken(
                f"quality was to be measured after step {skipped}, and rank 0 went on without"
                " measuring it, by its spans"
            )
            return
        notes.missing(
            f"quality was to be measured after step {missing[0]}{more}, and no evaluation of it is"
            " on record"
        )


def _went_past(case: Case, step: int) -> bool:
    """Whether rank 0 logged the step after `step`, and by the spans of all attempts never evaluated
    before it. Where others finished that step without rank 0, it may have died evaluating.
    """
    accounts = [case.spans.of(a.attempt, 0) for a in case.attempts]
    if lost_power(case) or tails_may_be_lost(case, len(case.attempts)) or None in accounts:
        return False
    spans = (span for account in accounts if account for span in account.of_category("evaluate"))
    ranks = (case.run.logs(a.attempt).ranks.get(0) for a in case.attempts)
    return any(lines and step + 1 in steps_of(lines) for lines in ranks) and all(
        span.global_step != step for span in spans
    )


def _check_repeats(case: Case, notes: FindingBuilder) -> None:
    """An attempt does not measure again what is on record of the step that it begins after: rank 0
    looks there first. On another machine it may see an older state of the record.
    """
    recorded = set[int]()
    for a in case.attempts:
        measured = {line.global_step for line in case.run.logs(a.attempt).evaluations.events}
        if a.resumed_from_step in measured & recorded:
            alone = case.run.stored.config.supervision.nodes == 1
            (notes.broken if alone else notes.missing)(
                f"attempt {a.attempt} measured quality after step {a.resumed_from_step}, which was"
                " on record already"
            )
        recorded |= measured


def _check_final(case: Case, notes: FindingBuilder) -> None:
    """The accuracy of final.json is that of the evaluation at its step."""
    final = case.run.final
    if final is None:
        return
    there = [
        line
        for a in case.run.attempt_logs
        for line in a.evaluations.events
        if line.global_step == final.global_step
    ]
    if not there and final.global_step in unrecorded(case):
        return
    measured = there[-1].measures.get("accuracy") if there else None
    if final.accuracy != measured:
        found = (
            f"the evaluation says {shown(measured)}"
            if there
            else "no evaluation of that step is on record"
        )
        notes.broken(f"final.json has an accuracy of {shown(final.accuracy)}, {found}")


def check_repeated(run: RunRecords, notes: FindingBuilder) -> int:
    """Part of same-trajectory: what was measured twice after one step, with as many ranks (with
    replicas: any number), is the same; returns how many were compared.
    """
    replicas, past = run.stored.config.elastic.replicas, membership_history(run)
    sizes = {a.attempt: a.world_size for a in run.attempts}
    first: dict[tuple[int, int, History], tuple[int, Evaluation]] = {}
    compared = 0
    for a in run.attempt_logs:
        for line in a.evaluations.events:
            key = (
                line.global_step,
                0 if replicas else sizes.get(a.attempt, 0),
                past.get(a.attempt, ()),
            )
            before, earlier = first.setdefault(key, (a.attempt, line))
            compared += before != a.attempt
            if before != a.attempt and (text := _unequal(earlier.measures, line.measures)):
                notes.broken(
                    f"step {line.global_step}: held-out {text} in attempt {before}, not what"
                    f" attempt {a.attempt} measured"
                )
    return compared


def check_against(
    case: Case, reference: RunRecords, path: Lineage, claimed: int, notes: FindingBuilder
) -> int:
    """Part of same-trajectory: quality after each step that both runs evaluated, up to `claimed`,
    is the reference's; returns how many steps those are. `path`: the reference's. Only the first
    that differs is reported.
    """
    theirs = evaluations(reference, path)
    if case.run.stored.config.evaluate.batch != reference.stored.config.evaluate.batch:
        return 0  # another size of batch may choose other kernels
    ours = {
        step: each
        for step, each in evaluations(case.run, case.path).items()
        if step <= claimed and step in theirs
    }
    for step, each in ours.items():
        if text := _unequal(each.measures, theirs[step].measures):
            notes.broken(f"step {step}: held-out {text} is not what the reference measured")
            break
    return len(ours)


def _unequal(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    """The first measure that differs; empty if none does."""
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs or not same_float(ours[name], theirs[name]):
            return f"{name} {ours.get(name)!r} for {theirs.get(name)!r}"
    return ""
