"""A run with faults follows the trajectory of the undisturbed run, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from ecrl_cli.checkpoint.format.names import COMPONENTS
from ecrl_cli.checkpoint.format.train_document import tensor_digests
from ecrl_cli.config.elastic import may_shrink, owned
from ecrl_cli.config.legs import schedule_after
from ecrl_cli.config.recoveries import recovery_of, survivors_stay
from ecrl_cli.errors import plural, shown
from ecrl_cli.history.divergence import (
    Losses,
    differing_names,
    first_differing_step,
    loss_divergence,
    same_float,
)
from ecrl_cli.history.lineage import Lineage, lineage, lines_of, losses, losses_of, same_sized
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.membership import History, first_loss, lost_lines, membership_history
from ecrl_cli.records.state_digests import RANK_COMPONENTS, digests_configured
from ecrl_cli.verify.disk_state import StoredCheckpoint, on_disk
from ecrl_cli.verify.disturbance import ENDED_WELL, disturbance, uninterrupted
from ecrl_cli.verify.evaluations import check_against, check_repeated
from ecrl_cli.verify.line_columns import repeated_lines
from ecrl_cli.verify.saved_states import differing_saves
from ecrl_cli.verify.state_columns import any_digests, equal_steps
from ecrl_cli.verify.state_values import (
    NO_TENSORS,
    STATE,
    Values,
    differing,
    differing_documents,
    differing_ends,
    has_digests,
    values_of,
)
from ecrl_cli.verify.survivor_reports import allowed_missing_lines, unrecorded_loss
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, same_sizes

PROMISE = "same-trajectory"
NOT_SHOWN = (
    "not shown: that the losses and updates after the recovery are right; no run computes them"
    " again"
)
States = dict[tuple[int, int], Values]  # by step and rank
# step, rank or replica, world size, and survival history: equal keys must give equal results
Again = tuple[int, int, int, History]
_ENDS = ("parameters_digest", "buffers_digest", "optimizer_digest", "rng_digest")


def same_trajectory(case: Case) -> Finding:
    """Compare losses, state digests, checkpoints and final digests with the reference, and replayed
    steps with their first pass.

    A disturbed run without a reference is unknown: its replayed steps show too little. Not checked:
    an undisturbed run with no other beside it, or one whose recovery claims no trajectory. In plain
    DDP the claim ends where the world size begins to differ from the reference's; how far the runs
    diverge from there, and why, is evidence. With replicas the claim continues. A recovery after
    that step is not proven: it needs a reference with the same changes of the world size. The claim
    also ends before the first step that lacks samples (lossy_forward, skip).
    """
    replays = FindingBuilder(PROMISE)
    replayed = _check_replays(case, replays)
    again = f"{replayed} replayed lines repeated their losses"
    if repeated := check_repeated(case.run, replays):
        again += f", {plural(repeated, 'evaluation')} what was measured before"
    if case.reference is None:
        return _alone(case, replays, again)
    finding = _compare(case, case.reference, replays, again)
    if finding.status == INVALID and (cause := unrecorded_loss(case)):
        message = finding.message.replace(f"{PROMISE} - ", f"{PROMISE} - {cause}: ", 1)
        finding = replace(finding, message=message)
    for other in case.others:
        if difference := _disagreement(case.reference, other):
            return _torn(case, finding, other, difference)
    return finding


def _alone(case: Case, notes: FindingBuilder, again: str) -> Finding:
    """Without a reference: not checked if the run needs none or its recovery claims nothing;
    otherwise unknown.
    """
    disturbed = disturbance(case.run)
    if not disturbed:
        return notes.finding(
            f"undisturbed, no other such run ended beside it; {again}", checked=False
        )
    if not recovery_of(case.run.stored.config).exact:
        evidence = (*case.doubts, NOT_SHOWN)
        return notes.finding(
            f"not claimed under recovery={case.run.stored.config.recovery.name}; {again}",
            evidence,
            checked=False,
        )
    if uninterrupted(case.run):
        return notes.finding(
            f"undisturbed since it began anew ({disturbed}), no other such run ended beside it;"
            f" {again}",
            checked=False,
        )
    for doubt in case.doubts:
        notes.missing(doubt)
    if not case.doubts:
        notes.missing(
            f"not proven: {_why_no_reference(case.disturbed_alike)}; `ecrl verify --with-reference"
            f" {case.run.layout.root.name}` runs one"
        )
    return notes.finding("", [f"disturbed: {disturbed}; {again}"])


def _why_no_reference(disturbed_alike: tuple[str, ...]) -> str:
    if not disturbed_alike:
        return "no undisturbed run to compare with"
    which = (
        f"{disturbed_alike[0]} and {len(disturbed_alike) - 1} more share"
        if len(disturbed_alike) > 1
        else f"{disturbed_alike[0]} shares"
    )
    return f"{which} its reference_id, and none of them is undisturbed"


def _torn(case: Case, finding: Finding, other: RunRecords, difference: str) -> Finding:
    """Two references disagree: a run that equals neither is invalid; one that equals either is
    unknown.
    """
    assert case.reference is not None
    text = (
        f"the references {case.reference.layout.root.name} and {other.layout.root.name} disagree:"
        f" {difference}"
    )
    second = same_trajectory(replace(case, reference=other, others=()))
    if finding.status == second.status == INVALID:
        return replace(finding, evidence=(*finding.evidence, text))
    return Finding(PROMISE, UNKNOWN, f"{PROMISE} - {text}", (finding.message, second.message))


def _compare(case: Case, reference: RunRecords, replays: FindingBuilder, again: str) -> Finding:
    """Compare with one reference. `replays`: findings on replayed steps, added after the first step
    that differs from the reference.
    """
    notes = FindingBuilder(PROMISE)
    theirs = lineage(reference)
    for gap in theirs.gaps:
        notes.missing(f"the reference: {gap}")
    # with fixed replicas the world size does not matter
    replicated = case.run.stored.config.elastic.replicas > 0
    claimed = case.path.last_step if replicated else same_sized(case.path, theirs)
    lost = first_loss(case.run, case.path)
    claimed = claimed if lost is None else min(claimed, lost - 1)
    ends = reference.stored.config.target_steps
    # a reference of the first target alone
    shorter = bool(case.run.stored.config.continued_at) and ends < claimed
    claimed = ends if shorter else claimed
    check_steps(case, reference, theirs, claimed, notes)
    notes.add_all(replays)
    check_checkpoints(case, reference, claimed, notes)
    if notes.clean and (text := differing_saves(case, reference, theirs, claimed)):
        notes.broken(f"{text}: apart from that step on at the latest")
    if evaluated := check_against(case, reference, theirs, claimed, notes):
        again = f"{plural(evaluated, 'evaluation')} on held-out data equal; {again}"
    name = reference.layout.root.name
    if claimed < case.path.last_step:
        evidence = [*_extent(case, reference, theirs), *_reasons(case, reference, theirs)]
        which = (
            "with as many ranks"
            if lost is None or claimed < lost - 1
            else "before samples were lost"
        )
        which = "to its target, from which this run was continued" if shorter else which
        evidence += (*case.doubts, *(() if lost is None else (NOT_SHOWN,)))
        if unvouched := _recovered_after(case, claimed):
            limit = "ends there" if shorter else "has as many ranks up to that step only"
            notes.missing(f"not proven after step {claimed}: {unvouched}, and {name} {limit}")
        return notes.finding(
            f"equal to {name} in every loss of the {claimed} steps {which}; not claimed after them;"
            f" {again}",
            evidence,
        )
    check_finals(case, reference, notes)
    evidence = [] if notes.clean else _extent(case, reference, theirs)
    evidence += case.doubts
    return notes.finding(
        f"equal to {name} in every loss of {case.path.last_step} steps and in the final state;"
        f" {again}",
        evidence,
    )


def _recovered_after(case: Case, claimed: int) -> str:
    """The first recovery or fault after the compared steps, which end with `claimed`; empty if
    there is none.

    Only if an undisturbed run with the same changes of the world size could be compared: not if
    ranks were lost for good.
    """
    config = case.run.stored.config
    if (
        not recovery_of(config).exact
        or may_shrink(config)
        or not (config.elastic.schedule or config.continued_at)
    ):
        return ""
    for before, after in pairwise(case.attempts):
        if before.outcome not in ENDED_WELL and after.resumed_from_step >= claimed:
            return (
                f"attempt {before.attempt} {before.outcome}, attempt {after.attempt} went on after"
                f" step {after.resumed_from_step}"
            )
    late = next(
        (fired for fired in case.run.fired if (fired.at_step or fired.global_step) > claimed), None
    )
    return (
        f"a failure ({late.kind}) fired at step {late.at_step or late.global_step}" if late else ""
    )


def _reasons(case: Case, reference: RunRecords, theirs: Lineage) -> list[str]:
    """How the end states differ, and why: lost samples, and what plain DDP computes differently
    with another world size.
    """
    lines = [
        f"step {line.global_step} (attempt {attempt}): {len(line.samples)} samples of ranks"
        f" {list(line.ranks)} are on record as lost on {len(line.layers)} layers ({line.cause})"
        for attempt, line in lost_lines(case.run, case.path)
    ]
    ours, others = case.run.final, reference.final
    if (
        apart := same_sized(case.path, theirs)
    ) < case.path.last_step and not case.run.stored.config.elastic.replicas:
        lines += _sizes(case, theirs, apart)
    if ours and others and ours.global_step == others.global_step:
        differing = [
            name
            for name in COMPONENTS
            if getattr(ours, f"{name}_digest") != getattr(others, f"{name}_digest")
        ]
        lines.append(f"of the final state differ: {', '.join(differing) or 'nothing'}")
    return lines


def _sizes(case: Case, theirs: Lineage, apart: int) -> list[str]:
    ranks = [
        segment.world_size if segment else 0
        for segment in (path.of(apart + 1) for path in (case.path, theirs))
    ]
    ours = case.run.final
    model, batch = case.run.stored.config.model, case.run.stored.config.global_batch
    causes = [
        f"gradients are added up in another order (shards of {batch // max(1, ranks[0])} samples"
        f" instead of {batch // max(1, ranks[1])})"
    ]
    if ours is None or ours.buffers_digest != NO_TENSORS:
        causes.append("BatchNorm normalises each rank's own shard")
    if model.dropout:
        causes.append("each rank draws its own dropout")
    return [
        f"world size {ranks[0]} from step {apart + 1} on, {ranks[1]} in the reference: in plain"
        " DDP " + ", ".join(causes)
    ]


def _check_replays(case: Case, notes: FindingBuilder) -> int:
    """A step repeated with the same world size, or with replicas on any, must give the same losses
    and states; returns how many lines were compared.

    A state counts only if every rank logged the step: a step that one rank rejected (loss is not
    finite) also spoilt the others' state, which was discarded.
    """
    replicas = case.run.stored.config.elastic.replicas
    losses_before: dict[Again, tuple[int, float]] = {}
    states_before: dict[Again, tuple[int, Values]] = {}
    # otherwise two attempts may have logged digests after different steps
    always = case.run.stored.config.state_digests != "auto"
    compared, whole, past = 0, _whole_steps(case), membership_history(case.run)
    for attempt, rank, line in repeated_lines(case.run):
        step, ranks = line.global_step, 0 if replicas else line.world_size
        again, came = False, past.get(attempt, ())
        for part, loss in losses_of(line, replicas).items():
            before, earlier = losses_before.setdefault((step, part, ranks, came), (attempt, loss))
            again |= before != attempt
            if before != attempt and not same_float(earlier, loss):
                notes.broken(
                    f"step {step} {_unit(case)} {part}: loss {loss!r} in attempt {attempt},"
                    f" {earlier!r} in attempt {before}"
                )
        compared += again
        if (attempt, step) not in whole:
            continue
        values, where = values_of(line), f"step {step} rank {rank}"
        before, state = states_before.setdefault(
            (step, 0 if replicas else rank, ranks, came), (attempt, values)
        )
        if before != attempt and always and has_digests(values) != has_digests(state):
            notes.missing(
                f"{where}: no digest of the state in attempt"
                f" {attempt if has_digests(state) else before}"
            )
        elif before != attempt and (names := differing(values, state)):
            notes.broken(
                f"{where}: the state in attempt {attempt} is not that in attempt {before}"
                f" ({', '.join(names)})"
            )
    return compared


def _whole_steps(case: Case) -> set[tuple[int, int]]:
    """(attempt, step) of each step that all ranks of the attempt logged, and another attempt
    too.
    """
    logged: dict[tuple[int, int], set[int]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for attempt, rank, line in repeated_lines(case.run):
        logged.setdefault((attempt, line.global_step), set()).add(rank)
        sizes[attempt, line.global_step] = line.world_size
    return {key for key, ranks in logged.items() if len(ranks) == sizes[key]}


def _unit(case: Case) -> str:
    """Whether losses are logged by replica or by rank."""
    return "replica" if case.run.stored.config.elastic.replicas else "rank"


def check_steps(
    case: Case,
    reference: RunRecords,
    theirs: Lineage,
    claimed: int,
    notes: FindingBuilder,
    after: int = 0,
) -> None:
    """Compare losses, and states after steps whose digest both runs logged; the first differing
    step comes first. `after`: the step after which the reference began, from the same state.
    """
    if not after and _equal_at_once(case, reference, theirs, claimed):
        return
    ours, others = (
        {s: each for s, each in losses(r, p).items() if after < s <= claimed}
        for r, p in ((case.run, case.path), (reference, theirs))
    )
    states = {
        key: state
        for key, state in _states(case.run, case.path).items()
        if after < key[0] <= claimed
    }
    compared, theirs_by_step = _comparable(states, case, reference), _states(reference, theirs)
    for step, component in sorted(
        [*_differing_loss(ours, others, _unit(case)), *_differing_state(compared, theirs_by_step)]
    ):
        certain = step == after + 1 or _equal_before(step, compared, theirs_by_step)
        late = "" if certain else " at the latest"
        notes.broken(f"the first differing step is step {step}{late}, component {component}")
    if digests_configured(reference.stored.config) and not any(
        map(has_digests, theirs_by_step.values())
    ):
        notes.missing("the reference was to log digests of its state, and has none")
    excused = {
        (step, part)
        for attempt, rank, step in allowed_missing_lines(case)
        for part in _parts_of(case, attempt, rank, step)
    }
    for step in range(after + 1, claimed + 1):
        pair = (
            set(ours.get(step, {})),
            {part for part in others.get(step, {}) if (step, part) not in excused},
        )
        if pair[0] != pair[1]:
            side = "this run" if pair[0] < pair[1] else "the reference"
            notes.missing(
                f"step {step}: {side} lacks the losses of {_unit(case)}s"
                f" {sorted(pair[0] ^ pair[1])}"
            )


def _equal_at_once(case: Case, reference: RunRecords, theirs: Lineage, claimed: int) -> bool:
    """Whether columns show at once that all is as `check_steps` has it."""
    mine, other = case.run.stored.config, reference.stored.config
    if mine.elastic.replicas or mine.continued_at or not case.path.whole or not theirs.whole:
        return False
    if digests_configured(other) and not any_digests(reference, theirs):
        return False
    alike = survivors_stay(mine) == survivors_stay(other)

    def compared(rank: int) -> set[str]:
        return set(RANK_COMPONENTS) - (set() if alike or rank == 0 else {"buffers"})

    return equal_steps((case.run, case.path), (reference, theirs), claimed, compared)


def _parts_of(case: Case, attempt: int, rank: int, step: int) -> Iterable[int]:
    """The rank, or its replicas, if `attempt` did `step` in the committed sequence; else
    nothing.
    """
    done, replicas = case.path.of(step), case.run.stored.config.elastic.replicas
    if done is None or done.attempt != attempt:
        return ()
    return owned(replicas, rank, done.world_size) if replicas else (rank,)


def _differing_loss(ours: Losses, others: Losses, unit: str) -> list[tuple[int, str]]:
    step = first_differing_step(ours, others)
    if step is None:
        return []
    parts = [
        r
        for r in sorted(ours[step])
        if r in others[step] and not same_float(ours[step][r], others[step][r])
    ]
    return [
        (
            step,
            "loss ("
            + ", ".join(f"{unit} {r}: {ours[step][r]!r} for {others[step][r]!r}" for r in parts)
            + ")",
        )
    ]


def _differing_state(ours: States, others: States) -> list[tuple[int, str]]:
    for step, rank in sorted(set(ours) & set(others)):
        if names := differing(ours[step, rank], others[step, rank]):
            what = f": {', '.join(names)}" if names != [STATE] else ""
            return [(step, f"state (rank {rank}{what})")]
    return []


def _equal_before(first: int, ours: States, others: States) -> bool:
    """Whether nothing differed before step `first`: the states after the previous step were
    compared on every rank and are equal.
    """
    before = [key for key in ours if key[0] == first - 1]
    known = [(key, others.get(key, {})) for key in before]
    return bool(known) and all(
        has_digests(ours[key]) and has_digests(theirs) and not differing(ours[key], theirs)
        for key, theirs in known
    )


def _comparable(states: States, case: Case, reference: RunRecords) -> States:
    """The values with the same definition in both runs.

    Stock DDP synchronizes BatchNorm's buffers only in the next forward pass; with in-place recovery
    all ranks hold rank 0's. So if only one of the runs has it, buffers are compared on rank 0 only.
    """
    mine, other = case.run.stored.config, reference.stored.config
    apart = (
        {step for step, _ in states if schedule_after(mine, step) != schedule_after(other, step)}
        if mine.continued_at
        else set()
    )
    # The state of the schedule names its length, also where no learning rate depends on it.
    states = {
        key: {n: v for n, v in state.items() if n != "train"} if key[0] in apart else state
        for key, state in states.items()
    }
    alike = survivors_stay(case.run.stored.config) == survivors_stay(reference.stored.config)
    final = case.run.final
    if alike or (final is not None and final.buffers_digest == NO_TENSORS):
        return states
    without = ("buffers", STATE)
    return {
        key: state if key[1] == 0 else {n: v for n, v in state.items() if n not in without}
        for key, state in states.items()
    }


def _states(records: RunRecords, path: Lineage) -> States:
    """By step and rank, the state values on its line."""
    return {
        key: values_of(lines[0])
        for segment in path.segments
        for key, lines in lines_of(records, segment).items()
    }


def _tensors(c: StoredCheckpoint) -> dict[str, str]:
    return tensor_digests(c.report.manifest) if c.report.manifest else {}


def check_checkpoints(
    case: Case, reference: RunRecords, claimed: int, notes: FindingBuilder
) -> None:
    """Compare checkpoints of the same step tensor by tensor, where both runs still have them; only
    the first that differs is reported.
    """
    # else look again: a checkpoint whose contents are damaged is compared by its metadata
    whole = all(c.report.ok for c in case.disk)
    own = case.disk if whole or case.live else on_disk(case.run, contents=False)
    ours, others = (
        {c.step: c for c in found if c.report.ok}
        for found in (own, on_disk(reference, contents=False))
    )
    for step in sorted(step for step in set(ours) & set(others) if step <= claimed):
        # not one that another checkpointer wrote
        readable = ours[step].report.manifest and others[step].report.manifest
        names = differing_names(_tensors(ours[step]), _tensors(others[step])) if readable else []
        if names:
            parts = sorted({name.partition(".")[0] for name in names})
            what = (
                f"the checkpoints of step {step} differ in {', '.join(parts)} ({len(names)}"
                f" tensors, first {names[0]})"
            )
            notes.broken(
                what
                + (f": the runs are apart from step {step} on at the latest" if notes.clean else "")
            )
        documents = differing_documents(ours[step].train, others[step].train)
        if schedule_after(case.run.stored.config, step) != schedule_after(
            reference.stored.config, step
        ):
            documents = [name for name in documents if name != "scheduler"]
        if documents:
            notes.broken(
                f"train.json of the checkpoints of step {step} differs in {', '.join(documents)}"
            )
        if names or documents:
            return


def check_finals(case: Case, reference: RunRecords, notes: FindingBuilder) -> None:
    ours, others = case.run.final, reference.final
    if others is None:
        notes.missing("the reference has no final record: it did not come to its end")
    if ours is None:
        notes.missing("this run has no final record: its end state is not known")
    if ours is None or others is None:
        return
    if ours.global_step != others.global_step:
        notes.missing(
            f"this run ends at step {ours.global_step}, the reference at step {others.global_step}"
        )
        return
    for component in COMPONENTS:
        if getattr(ours, f"{component}_digest") != getattr(others, f"{component}_digest"):
            notes.broken(
                f"the final {component} differ"
                + (f": apart by step {ours.global_step} at the latest" if notes.clean else "")
            )
    for text in differing_ends(case.run, reference):
        notes.broken(text)
    evaluate = [
        (bool(run.stored.config.evaluate.every), run.stored.config.evaluate.batch)
        for run in (case.run, reference)
    ]
    if evaluate[0] == evaluate[1] and ours.accuracy != others.accuracy:
        notes.broken(
            f"the final accuracy is {shown(ours.accuracy)}, the reference's"
            f" {shown(others.accuracy)}"
        )
    if not same_float(ours.loss, others.loss):
        notes.broken(f"the final loss is {ours.loss!r}, the reference's {others.loss!r}")


def _extent(case: Case, reference: RunRecords, theirs: Lineage) -> list[str]:
    """The size of the loss difference, and of the noise floor between two undisturbed runs."""
    apart = loss_divergence(losses(case.run, case.path), losses(reference, theirs))
    lines = [
        f"absolute difference of the mean loss over {apart.steps} steps: max {apart.maximum:.3g},"
        f" mean {apart.mean:.3g}, area {apart.auc:.3g}"
    ]
    if case.floor is None:
        return [*lines, "noise floor: not known, it takes two undisturbed runs beside this one"]
    a, b = case.floor
    floor = loss_divergence(losses(a, lineage(a)), losses(b, lineage(b)))
    names = f"{a.layout.root.name} and {b.layout.root.name}"
    if floor.first_differing_step is None:
        return [*lines, f"noise floor: {names}, both undisturbed, are equal in every loss"]
    return [
        *lines,
        (
            f"noise floor: {names}, both undisturbed, differ from step"
            f" {floor.first_differing_step}, max {floor.maximum:.3g}"
        ),
    ]


def _disagreement(one: RunRecords, other: RunRecords) -> str:
    """How two references differ, as text; empty if they are equal or cannot be compared."""
    ours, theirs = one.final, other.final
    if ours is None or theirs is None or not same_sizes(one, other):
        return ""
    differing = [
        name.partition("_")[0] for name in _ENDS if getattr(ours, name) != getattr(theirs, name)
    ]
    if differing:
        return f"the final {', '.join(differing)} differ"
    step = first_differing_step(losses(one, lineage(one)), losses(other, lineage(other)))
    return "" if step is None else f"the losses of step {step} differ"
