"""Checks survivor reports: survivors agree with each other and with the other records, and samples
given up are exactly those recorded as lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import digest, is_digest
from ecrl_cli.checkpoint.format.manifest import Manifest
from ecrl_cli.checkpoint.format.train_document import tensor_digests
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.data.order import epoch_order, position, shard, steps_per_epoch, window
from ecrl_cli.errors import plural, shown
from ecrl_cli.failures.fault_kind import recorded_kind
from ecrl_cli.history.lineage import Lineage, ancestry, lines_of
from ecrl_cli.history.membership import continuing_ranks, lost_lines, successor
from ecrl_cli.records.events import Attempt, RankLine
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.records.survivor_records import (
    SURVIVED,
    SURVIVORS,
    AppliedSamples,
    RedoneStep,
    SurvivorReport,
)
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.sample_accounting import unaccounted
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

Line = tuple[int, int, int]  # attempt, rank, step
Reports = dict[int, SurvivorReport]
# What survivors must agree on; their waiting times may differ.
_AGREED: dict[str, Callable[[SurvivorReport], Any]] = {
    "how far they came": lambda t: t.global_step,
    "who was left": lambda t: t.alive,
    "what was done again": lambda t: [
        (r.global_step, r.first, r.buckets, r.lost, r.left) for r in t.redone
    ],
    "the layers": lambda t: t.layers,
    "the state": lambda t: t.state_digest,
}
_PARAMETER = "parameters."


def survivals(case: Case, notes: FindingBuilder) -> frozenset[Line]:
    """Check every survivor report and lost-sample record; returns the lines of dead ranks that may
    be missing.

    These are the lines of the step after which the survivors left.
    """
    excused: set[Line] = set()
    for a in case.attempts:
        logs = case.run.logs(a.attempt)
        if (
            a.outcome == SURVIVED
            or logs.survivor_reports
            or logs.lost_sample_records
            or continuing_ranks(case.run, a.attempt)
        ):
            excused |= _survival(case, a, notes)
    return frozenset(excused)


def allowed_missing_lines(case: Case) -> frozenset[Line]:
    """The result of `survivals`, without recording findings."""
    return survivals(case, FindingBuilder("exactly-once"))


def dead(a: Attempt, report: SurvivorReport) -> set[int]:
    """The ranks that had died when the survivors left."""
    return set(range(a.world_size)) - set(report.alive)


def _survival(case: Case, a: Attempt, notes: FindingBuilder) -> set[Line]:
    reports = _complete_reports(case, a, notes)
    _check_went_on(case, a, reports, notes)
    _check_against_records(case, a, reports, notes)
    count = len(reports)
    reports = {rank: t for rank, t in reports.items() if _check_report(case, a, rank, t, notes)}
    if not reports:
        _check_unreported(case, a, notes)
        return set()
    first, first_report = min(reports.items())
    # otherwise all restart from a checkpoint
    agreed, relied_on = count == len(reports), a.outcome == SURVIVED
    for rank, other in sorted(reports.items()):
        for what, aspect in _AGREED.items():
            if aspect(other) != aspect(first_report):
                agreed = False
                if relied_on:
                    notes.broken(
                        f"survivors differ: ranks {first} and {rank} of attempt {a.attempt} do not"
                        f" report the same in {what}"
                    )
    _check_lost_samples(case, a, first_report, notes)
    _check_lost_in_forward(case, a, first_report, notes)
    complete = agreed and set(continuing_ranks(case.run, a.attempt)) <= reports.keys()
    return _excused(case, a, first_report) if complete else set()


def _complete_reports(case: Case, a: Attempt, notes: FindingBuilder) -> Reports:
    """By rank, the survivor reports that are complete."""
    reports: Reports = {}
    for rank, lines in case.run.logs(a.attempt).survivor_reports.items():
        who = f"the survivor report of attempt {a.attempt} rank {rank}"
        if len(lines.events) > 1:
            notes.broken(
                f"{who} has {plural(len(lines.events), 'line')}: a rank leaves an attempt once"
            )
        elif lines.torn:
            notes.missing(f"{who} is torn")
        elif not lines.events:
            notes.missing(f"{who} is empty or cannot be read")
        else:
            reports[rank] = lines.events[0]
    return reports


def _check_unreported(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Samples on record as lost end what is claimed of the trajectory: only a survivor's report
    says how they came to be lost.
    """
    lines = [line for attempt, line in lost_lines(case.run, case.path) if attempt == a.attempt]
    if lines:
        note = notes.missing if recovery_of(case.run.stored.config).loses_samples else notes.broken
        note(
            f"attempt {a.attempt} has samples of step {lines[0].global_step} on record as lost, and"
            " no survivor reports that step"
        )


def _check_went_on(case: Case, a: Attempt, reports: Reports, notes: FindingBuilder) -> None:
    went, after = continuing_ranks(case.run, a.attempt), successor(case.run, a.attempt)
    for rank in sorted(set(went) - set(case.run.logs(a.attempt).survivor_reports)):
        notes.missing(f"rank {rank} of attempt {a.attempt} went on and left no survivor report")
    for rank, report in reports.items():
        if gone := sorted(set(went) - set(report.alive)):
            notes.broken(
                f"rank {gone[0]} of attempt {a.attempt} went on, rank {rank} reports that it had"
                " died"
            )
        # a snapshot may be of an earlier step
        relied_on = after and (after.continues, after.memory) == (a.attempt, SURVIVORS)
        if after and relied_on and report.global_step != after.resumed_from_step:
            text = f"rank {rank} of attempt {a.attempt} left after step {report.global_step}"
            notes.broken(
                f"{text}, attempt {after.attempt} goes on after step {after.resumed_from_step}"
            )


def _check_report(
    case: Case, a: Attempt, rank: int, t: SurvivorReport, notes: FindingBuilder
) -> bool:
    """Check one report by itself and against its rank's lines; returns whether it can be relied
    on.
    """
    wrong = [*_contradictions(a, rank, t), *_of_its_recovery(case, t), *_denied(case, a, rank, t)]
    for text in wrong:
        notes.broken(f"the survivor report of attempt {a.attempt} rank {rank} {text}")
    lines = case.run.logs(a.attempt).ranks.get(rank)
    if t.finished_step > a.resumed_from_step and not (lines and lines.events):
        notes.missing(
            f"the log of attempt {a.attempt} rank {rank}, which reports step {t.finished_step}, is"
            " not there"
        )
        return False
    return not wrong


def _contradictions(a: Attempt, rank: int, t: SurvivorReport) -> list[str]:
    found = []
    if (t.attempt, t.rank) != (a.attempt, rank):
        found.append(f"is that of attempt {t.attempt} rank {t.rank}")
    if rank not in t.alive or not set(t.alive) <= set(range(a.world_size)):
        found.append(f"names {_ranks(t.alive)} as left")
    for redone in t.redone:
        if living := sorted(set(redone.lost) & set(t.alive)):
            found.append(f"names rank {living[0]} as lost, which it says is left")
        if redone.left and not set(t.alive) <= set(redone.left):
            found.append(
                f"says that {_ranks(redone.left)} did step {redone.global_step} to its end, and"
                f" that {_ranks(t.alive)} are left"
            )
        if redone.global_step != t.global_step:
            found.append(
                f"is about step {redone.global_step}, and it left after step {t.global_step}"
            )
        if redone.buckets != len(t.layers) or not 0 <= redone.first <= redone.buckets:
            found.append(
                f"has bucket {redone.first} of {redone.buckets} done again and names the layers of"
                f" {len(t.layers)}"
            )
    return found


def _of_its_recovery(case: Case, t: SurvivorReport) -> list[str]:
    """A step is dropped, whole, or finished without the dead ranks, as the recovery says."""
    recovery = recovery_of(case.run.stored.config)
    if t.dropped and not recovery.drops_step:
        return [f"drops step {t.global_step}, which its recovery does not allow"]
    if recovery.drops_step and (
        finished := next((redone for redone in t.redone if redone.left), None)
    ):
        return [
            f"says that {_ranks(finished.left)} did step {finished.global_step} to its end, which"
            f" recovery={recovery.name} drops"
        ]
    if t.dropped and any(redone.first for redone in t.redone):
        return [
            f"drops step {t.global_step} from bucket {max(redone.first for redone in t.redone)} on"
            " only"
        ]
    return []


def _denied(case: Case, a: Attempt, rank: int, t: SurvivorReport) -> list[str]:
    """Contradictions with the lines: its own last step, or ranks called lost that logged the step
    themselves.
    """
    found = []
    last = {
        r: lines.events[-1].global_step
        for r, lines in case.run.logs(a.attempt).ranks.items()
        if lines.events
    }
    if rank in last and last[rank] != t.finished_step:
        found.append(f"claims step {t.finished_step}, its log ends at step {last[rank]}")
    for loser in sorted(gave_nothing(a, t)):
        if last.get(loser, a.resumed_from_step) >= t.global_step:
            found.append(
                f"claims that rank {loser} was lost in step {t.global_step}, which that rank logged"
            )
    return found


def gave_nothing(a: Attempt, t: SurvivorReport) -> dict[int, tuple[str, ...]]:
    """By rank, the layers on which its shard of the last step has no influence; only ranks with
    any.
    """
    found: dict[int, list[str]] = {}
    for bucket, layers in enumerate(t.layers):
        took_part = _took_part(t.redone, bucket, a.world_size)
        for rank in sorted(set(range(a.world_size)) - took_part):
            found.setdefault(rank, []).extend(layers)
    return {rank: tuple(layers) for rank, layers in found.items() if layers}


def unrecorded_loss(case: Case) -> str:
    """Samples that survivors report as lost and that no lost-samples record names; empty if none
    are.
    """
    for a in case.attempts:
        logs = case.run.logs(a.attempt)
        for report in (t for lines in logs.survivor_reports.values() for t in lines.events):
            if not logs.lost_samples and (losers := gave_nothing(a, report)):
                return (
                    f"no lost-samples record says what the survivors of attempt {a.attempt} report,"
                    f" that samples of {_ranks(losers)} were lost in step {report.global_step}"
                )
    return ""


def _took_part(redone: tuple[RedoneStep, ...], bucket: int, world_size: int) -> set[int]:
    """The ranks whose gradients the bucket holds: those that redid it last."""
    again = [each for each in redone if each.first <= bucket]
    return set(again[-1].left) if again else set(range(world_size))


def _check_lost_samples(case: Case, a: Attempt, t: SurvivorReport, notes: FindingBuilder) -> None:
    """All survivors have the same lost-sample record, and it covers exactly what was not
    applied.
    """
    losers, recorded, who = (
        gave_nothing(a, t),
        case.run.logs(a.attempt).lost_sample_records,
        f"attempt {a.attempt}",
    )
    if losers and not recovery_of(case.run.stored.config).loses_samples:
        notes.broken(
            f"{who} went on without the samples of {_ranks(losers)} in step {t.global_step}, which"
            " its recovery does not allow"
        )
    holders = continuing_ranks(case.run, a.attempt) or tuple(
        case.run.logs(a.attempt).survivor_reports
    )
    for rank in sorted(set(holders) - set(recorded)) if losers else ():
        notes.missing(
            f"the lost-samples record of {who} rank {rank} is not there, samples of"
            f" {_ranks(losers)} were lost in step {t.global_step}"
        )
    whole = {}
    for rank, lines in sorted(recorded.items()):
        if lines.torn:
            notes.missing(f"the lost-samples record of {who} rank {rank} is torn")
        else:
            whole[rank] = lines.events
    for rank, events in whole.items():
        if events != next(iter(whole.values())):
            notes.broken(
                f"survivors differ: ranks {next(iter(whole))} and {rank} of {who} do not have the"
                " same lost-samples record"
            )
    for text in _account(case, a, t, notes) if whole else ():
        notes.broken(f"{who}: {text}")


def _check_lost_in_forward(
    case: Case, a: Attempt, t: SurvivorReport, notes: FindingBuilder
) -> None:
    """A rank that died in its forward pass contributed no gradient: if the others finished that
    step, its samples are lost on every layer. One that died when it had a share of its gradients
    could not give all: they are lost on some.
    """
    planned, lost, layers = (
        {entry.index: entry for entry in case.run.plan or ()},
        gave_nothing(a, t),
        sum(map(len, t.layers)),
    )
    # where some have no gradient, all that there are may be fewer than the share of all
    all_used = not case.run.stored.config.ddp.find_unused_parameters
    for fired in case.run.fired:
        entry, step = planned.get(fired.index), fired.at_step
        if fired.attempt != a.attempt or step is None or entry is None:
            continue
        if not recorded_kind(entry.kind).others_go_on or t.global_step < step:
            continue
        if entry.moment == "backward":
            given = max(1, math.ceil(entry.share * layers))
            if given < layers and all_used and not lost.get(fired.rank):
                who = f"rank {fired.rank} was hit in step {step} of attempt {a.attempt}"
                notes.broken(
                    f"{who}, after {entry.share:.0%} of its gradients, and others finished the"
                    " step: they do not report that its samples are lost on any layer"
                )
        elif entry.moment == "forward" and not 0 < layers == len(lost.get(fired.rank, ())):
            who = (
                f"rank {fired.rank} was hit in the forward pass of step {step} of attempt"
                f" {a.attempt}"
            )
            notes.broken(
                f"{who}, which others finished: they do not report that its samples are lost on"
                " every layer"
            )


def _account(case: Case, a: Attempt, t: SurvivorReport, notes: FindingBuilder) -> list[str]:
    """The entries that the lost-sample record lacks, as sentences; its errors are recorded in
    `notes`.
    """
    losers, lines, step = (
        gave_nothing(a, t),
        next(
            e.events
            for _, e in sorted(case.run.logs(a.attempt).lost_sample_records.items())
            if not e.torn
        ),
        t.global_step,
    )
    blamed = dead(a, t) if t.dropped else losers.keys()
    for line in lines:
        if others := sorted(set(line.ranks) - blamed):
            what = "was left" if others[0] in t.alive else "lost nothing"
            notes.broken(
                f"the lost-samples record of attempt {a.attempt} names rank {others[0]}, which"
                f" {what}"
            )
    recovery = recovery_of(case.run.stored.config).name
    if causes := sorted({line.cause for line in lines} - {recovery}):
        notes.broken(
            f"the lost-samples record of attempt {a.attempt} has the cause {shown(causes[0])},"
            f" recovery={recovery}"
        )
    if lines and not losers:
        return [
            f"the lost-samples record names samples of step {lines[0].global_step}, in which"
            " nothing was done again without the dead"
        ]
    if case.run.dataset is None or not losers:
        return []
    ids, layers = _window(case, step), [name for bucket in t.layers for name in bucket]
    applied = []
    for rank in range(a.world_size):
        mine = tuple(
            int(each)
            for each in shard(ids, rank, a.world_size, case.run.stored.config.elastic.replicas)
        )
        without = set(losers.get(rank, ()))
        applied.append(
            AppliedSamples(step, mine, tuple(name for name in layers if name not in without))
        )
    return unaccounted({step: [int(each) for each in ids]}, layers, applied, lines)


def _window(case: Case, step: int) -> Any:
    config, size = case.run.stored.config, case.run.dataset.size if case.run.dataset else 0
    epoch, cursor = position(step, steps_per_epoch(size, config.global_batch))
    return window(
        epoch_order(config.seed, epoch, size, config.global_batch), cursor, config.global_batch
    )


def _excused(case: Case, a: Attempt, t: SurvivorReport) -> set[Line]:
    """The lines of ranks that did not continue which may be missing.

    Of the step after which the others left; and, if the rank took no part in it at all, of the step
    before, whose exchange was complete on all survivors: the rank died between that exchange and
    its line. Of a step that was dropped, the lines of all.
    """
    found: set[Line] = (
        {(a.attempt, rank, t.global_step) for rank in range(a.world_size)} if t.dropped else set()
    )
    losers, everything = gave_nothing(a, t), sum(len(bucket) for bucket in t.layers)
    for rank in set(range(a.world_size)) - set(continuing_ranks(case.run, a.attempt)):
        lines = case.run.logs(a.attempt).ranks.get(rank)
        last = lines.events[-1].global_step if lines and lines.events else a.resumed_from_step
        absent = 2 if len(losers.get(rank, ())) == everything > 0 else 1
        if t.global_step - absent <= last < t.global_step:
            found |= {(a.attempt, rank, step) for step in range(last + 1, t.global_step + 1)}
    return found


def _ranks(ranks: Any) -> str:
    return f"ranks {sorted(ranks)}" if len(list(ranks)) != 1 else f"rank {next(iter(ranks))}"


def _check_against_records(case: Case, a: Attempt, reports: Reports, notes: FindingBuilder) -> None:
    """Check each report against the recorded deaths, the rank's own log and spans, and the
    checkpoints.
    """
    for rank, report in sorted(reports.items()):
        who = f"rank {rank} of attempt {a.attempt}"
        _check_living(case, a, who, report, notes)
        _check_log(case, a, rank, report, notes)
        if (
            a.outcome == SURVIVED
            and recorded_by_rank(case.run.stored.config)
            and not is_digest(report.state_digest)
        ):
            notes.broken(
                f"{who} kept its state, and reports {shown(report.state_digest)} as the digest"
                " of it"
            )
    # all agree on these, or the difference is reported elsewhere
    for report in list(reports.values())[:1]:
        _check_layers(case, a, report, notes)
        _check_state(case, a, report, notes)


def _check_living(
    case: Case, a: Attempt, who: str, report: SurvivorReport, notes: FindingBuilder
) -> None:
    """Ranks leave because of a death: the report knows at least one of those on record. Of several
    at once it may not know all.
    """
    others = {entry.index: entry.others for entry in case.run.plan or ()}
    dead = {a.rank} if a.outcome == SURVIVED and a.rank is not None else set[int]()
    for fired in case.run.fired:
        if (
            fired.attempt == a.attempt
            and recorded_kind(fired.kind).others_go_on
            and fired.at < report.at
        ):
            victims = (fired.rank, *others.get(fired.index, ()))
            dead |= {victim for victim in victims if _silent_after(case, a, victim, fired.at)}
    if dead and dead <= set(report.alive):
        notes.broken(f"{who} reports ranks {sorted(dead)} as living, whose deaths are on record")


def _silent_after(case: Case, a: Attempt, rank: int, at: float) -> bool:
    """Whether the rank recorded nothing after `at`."""
    logs = case.run.logs(a.attempt)
    return rank not in logs.survivor_reports and all(
        line.at <= at for lines in [logs.ranks.get(rank)] if lines for line in lines.events
    )


def _check_log(
    case: Case, a: Attempt, rank: int, report: SurvivorReport, notes: FindingBuilder
) -> None:
    """The report is the rank's last action in its attempt; its waiting time lies within the step;
    its state is that of the rank's last line.
    """
    who, account = f"rank {rank} of attempt {a.attempt}", case.spans.of(a.attempt, rank)
    if account and report.at < account.end - ROUNDING_S:
        notes.broken(
            f"{who} dates its report {account.end - report.at:.6f} s before the end of its own"
            " spans"
        )
    line = _line(case, a, rank, report.finished_step)
    if line is None:
        _check_state_before(case, a, report, notes)
        return
    spent = sum(redone.seconds for redone in report.redone)
    if spent > line.seconds + ROUNDING_S:
        notes.broken(
            f"{who} reports {spent:.6f} s of doing again in step {line.global_step}, which took"
            f" {line.seconds:.6f} s"
        )
    if line.state_digest and report.state_digest and line.state_digest != report.state_digest:
        notes.broken(f"{who} reports another state after step {line.global_step} than it logged")


def _check_state_before(
    case: Case, a: Attempt, report: SurvivorReport, notes: FindingBuilder
) -> None:
    """Where the attempt dropped its first step, the state is still the one that was logged last in
    an attempt before it.
    """
    line = (
        _last_line(case, ancestry(case.run, a.attempt, a.resumed_from_step))
        if report.dropped
        else None
    )
    if (
        line
        and line.state_digest
        and report.state_digest
        and line.state_digest != report.state_digest
    ):
        text = (
            f"dropped step {report.global_step} and reports another state than attempt"
            f" {line.attempt} logged after step {line.global_step}"
        )
        notes.broken(f"rank {report.rank} of attempt {a.attempt} {text}")


def _last_line(case: Case, path: Lineage) -> RankLine | None:
    """The line of the lowest rank that logged the last step of `path`."""
    for segment in reversed(path.segments):
        if lines := lines_of(case.run, segment):
            last = max(step for step, _ in lines)
            return lines[min(key for key in lines if key[0] == last)][0]
    return None


def _line(case: Case, a: Attempt, rank: int, step: int) -> RankLine | None:
    lines = case.run.logs(a.attempt).ranks.get(rank)
    return (
        next((line for line in reversed(lines.events) if line.global_step == step), None)
        if lines
        else None
    )


def _check_layers(case: Case, a: Attempt, report: SurvivorReport, notes: FindingBuilder) -> None:
    """Layers are the model's parameters, each in one bucket."""
    names = Counter(name for bucket in report.layers for name in bucket)
    if twice := [name for name, count in names.items() if count > 1]:
        notes.broken(
            f"survivors of attempt {a.attempt} name {twice[0]} in {names[twice[0]]} buckets"
        )
    known = {
        name.removeprefix(_PARAMETER)
        for manifest in _manifests(case).values()
        for name in tensor_digests(manifest)
        if name.startswith(_PARAMETER)
    }
    if known and (others := sorted(names.keys() - known)):
        notes.broken(
            f"survivors of attempt {a.attempt} name {others[0]!r}, which is no parameter of the"
            " checkpoints"
        )


def _check_state(case: Case, a: Attempt, report: SurvivorReport, notes: FindingBuilder) -> None:
    """The state that survivors carried on equals a checkpoint of the same step in the same
    history.
    """
    manifest = _manifests(case).get(report.global_step)
    segment = case.path.of(report.global_step)
    if (
        manifest is None
        or not report.state_digest
        or segment is None
        or segment.attempt != a.attempt
    ):
        return
    held = digest(
        [
            [name, sha]
            for name, sha in sorted(tensor_digests(manifest).items())
            if not name.startswith("rng.")
        ]
    )
    if held != report.state_digest:
        notes.broken(
            f"survivors of attempt {a.attempt} report another state than the checkpoint of step"
            f" {report.global_step} holds"
        )


def _manifests(case: Case) -> dict[int, Manifest]:
    return {c.step: c.report.manifest for c in case.disk if c.report.ok and c.report.manifest}
