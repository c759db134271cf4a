"""Checks when planned faults fired: in their attempt, at their step, before the death they caused;
and which attempts they were armed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ecrl_cli.config.fault_spec import STARTING
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import shown
from ecrl_cli.failures.fault_kind import Victim, recorded_kind
from ecrl_cli.failures.fault_log import fired_indices
from ecrl_cli.failures.storage_faults import acknowledges_after
from ecrl_cli.history.lineage import instants_by_step
from ecrl_cli.records.events import CHECKPOINT_ENDS, Attempt, InjectedFault, PlannedFailure
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.verify.verdict import SHOWN, FindingBuilder
from ecrl_cli.verify.verification_input import Case

# all processes of a boot share one clock; an instant is read just before its record is written
_SLACK_S = 0.001
# the time before this session may have been computed slightly differently then and now
_DUE_SLACK_S = 0.1
INSIDE = ("forward", "backward", "optimizer")
_AFTER_STEP = ("boundary", "capture", "save")


def check_instant(
    case: Case, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder
) -> None:
    """Check one fired fault against its attempt and its target's lines. Not across machines, whose
    monotonic clocks differ.
    """
    _check_step(case, fired, entry, notes)
    a = case.attempt(fired.attempt)
    if case.run.stored.config.supervision.nodes > 1 or case.run.supervisor is None:
        return
    began, ended = _window(case, fired, entry, a)
    who = f"entry {fired.index} ({entry.kind})"
    if fired.at < began - _SLACK_S:
        notes.broken(
            f"{who} fired {began - fired.at:.3f} s before attempt {fired.attempt} could be hit"
        )
    if fired.at > ended + _SLACK_S:
        notes.broken(f"{who} fired {fired.at - ended:.3f} s after attempt {fired.attempt} was over")
    if a is None or entry.moment == "rest":
        return
    if entry.moment == "wall":
        _check_due(case, fired, entry, a, notes)
    for bound, text in _beside_lines(case, fired, entry):
        if bound > _SLACK_S:
            notes.broken(f"{who} fired {bound:.3f} s {text}")
    _check_silence(case, fired, entry, notes)


def _check_silence(
    case: Case, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder
) -> None:
    """A rank that kills itself, or exits, records nothing after it has claimed the failure: neither
    a line nor the end of a span.
    """
    kind, logs = recorded_kind(entry.kind), case.run.logs(fired.attempt)
    of_rank = kind.victim in (Victim.RANK, Victim.RANKS, Victim.RANK_0)
    if not (of_rank and kind.death_tells) or kind.graceful or entry.moment in ("wall", "rest"):
        return
    lines, account = logs.ranks.get(fired.rank), case.spans.of(fired.attempt, fired.rank)
    ends = [line.at for line in lines.events[-1:]] if lines else []
    ends += [account.end] if account else []
    if ends and max(ends) > fired.at + _SLACK_S:
        notes.broken(
            f"entry {fired.index} ({entry.kind}) ended rank {fired.rank} of attempt"
            f" {fired.attempt}, which recorded more {max(ends) - fired.at:.3f} s after it had fired"
        )


def check_armed(case: Case, planned: tuple[PlannedFailure, ...], notes: FindingBuilder) -> None:
    """Each attempt was armed with exactly the planned faults that had not fired; and none due in it
    was left for a later attempt.
    """
    by_index = {entry.index: entry for entry in planned}
    # when they fired is unknown
    unread = set(fired_indices(case.run.layout)) - {fired.index for fired in case.run.fired}
    background = strategy_of(case.run.stored.config).background
    for a in case.attempts:
        order = case.run.logs(a.attempt).order
        if order is None:
            continue
        for entry in order.pending:
            if entry != by_index.get(entry.index):
                notes.broken(
                    f"attempt {a.attempt} was armed with an entry {entry.index} that is not the"
                    " plan's"
                )
        armed = {entry.index for entry in order.pending}
        spent = {
            fired.index
            for fired in case.run.fired
            if fired.attempt < a.attempt
            or (fired.attempt == a.attempt and _at_rest(by_index, fired))
        }
        if lacking := sorted(by_index.keys() - spent - armed - unread):
            notes.broken(
                f"attempt {a.attempt} was not armed with entry {lacking[0]}, which had not fired"
            )
        for entry in order.pending:
            # the writer may be hit in a save of the previous attempt
            overlapping = background and entry.moment == "save"
            if entry.index in spent and not overlapping and entry in planned:
                first = next(
                    fired.attempt for fired in case.run.fired if fired.index == entry.index
                )
                notes.broken(
                    f"entry {entry.index} fired in attempt {first} and attempt {a.attempt} was"
                    " armed with it again"
                )
        if (listed := [entry.index for entry in order.pending]) != sorted(armed):
            notes.broken(
                f"attempt {a.attempt} was armed with entries {listed[:SHOWN]}, which is no order of"
                " the plan"
            )
        _check_passed(case, a, order.pending, notes)


def check_files(case: Case, notes: FindingBuilder) -> None:
    """Each file in fired/ is named after the entry that it claims."""
    indices = fired_indices(case.run.layout)
    for fired in case.run.fired:
        if fired.index not in indices:
            notes.broken(f"a file in fired/ claims entry {fired.index}, and none has its name")


def _check_passed(
    case: Case, a: Attempt, pending: Iterable[PlannedFailure], notes: FindingBuilder
) -> None:
    """A rank does not pass a step at which a fault was armed for it without that fault firing."""
    fired_in = {fired.index: fired.attempt for fired in case.run.fired}
    for entry in pending:
        lines = case.run.logs(a.attempt).ranks.get(entry.rank)
        furthest = lines.events[-1].global_step if lines and lines.events else 0
        due = entry.moment == "boundary" or entry.moment in INSIDE
        if (
            due
            and a.resumed_from_step < entry.global_step < furthest
            and fired_in.get(entry.index, a.attempt + 1) > a.attempt
        ):
            notes.broken(
                f"entry {entry.index} ({entry.kind} at step {entry.global_step}) was not injected"
                f" into attempt {a.attempt}, which went past that step"
            )


def _check_step(
    case: Case, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder
) -> None:
    """The step at which it is recorded to have fired is possible for the planned entry."""
    step, a = fired.at_step, case.attempt(fired.attempt)
    by_supervisor = entry.moment in ("wall", "rest")
    # earlier versions did not say the step of every kind
    if recorded_by_rank(case.run.stored.config):
        if (step is None) != by_supervisor:
            how = f"says step {step}" if by_supervisor else "does not say at which step"
            notes.broken(f"entry {fired.index} ({entry.kind}) fired at {entry.moment}, and {how}")
        if fired.detail and entry.moment != "rest":
            notes.broken(
                f"entry {fired.index} ({entry.kind}) hit {shown(fired.detail)}: the plan leaves"
                f" nothing open at {entry.moment}"
            )
    if step is None:
        return
    first, last = entry.global_step, entry.global_step
    if entry.moment in ("capture", "save"):
        last = case.run.stored.config.target_steps
    elif entry.moment in INSIDE:
        last = entry.global_step + recorded_kind(entry.kind).lasts - 1
    elif entry.moment in STARTING:
        first = last = a.resumed_from_step if a else step
    if not first <= step <= last:
        notes.broken(
            f"entry {fired.index} ({entry.kind}) fired at step {step}, it was planned for step"
            f" {entry.global_step} ({entry.moment})"
        )


def _window(
    case: Case, fired: InjectedFault, entry: PlannedFailure, a: Attempt | None
) -> tuple[float, float]:
    """The instants between which it can have fired; infinite where not on record or on the clock of
    another boot.
    """
    before = case.attempt(fired.attempt - 1)
    if entry.moment == "rest":
        same = a is None or before is None or _boot(case, a) == _boot(case, before)
        began = before.ended_at if before and before.ended_at is not None and same else -math.inf
        return began, a.launched_at if a and same else math.inf
    if a is None:
        return -math.inf, math.inf
    following = case.attempt(fired.attempt + 1)
    session = case.run.session_of(a)
    ends = [session.ended_at] if session else []
    # it runs beside the ranks, which continue
    in_background = entry.moment == "save" and strategy_of(case.run.stored.config).background
    if following and not in_background and _boot(case, following) == _boot(case, a):
        ends.append(following.launched_at)
    if _is_the_death(case, fired, entry, a):
        ends.append(a.ended_at)
    return a.launched_at, min((end for end in ends if end is not None), default=math.inf)


def _is_the_death(case: Case, fired: InjectedFault, entry: PlannedFailure, a: Attempt) -> bool:
    """Whether only this fault can have ended the attempt: a signal or exit code specific to a
    planned fault.
    """
    alone = sum(other.attempt == fired.attempt for other in case.run.fired) == 1
    kind = recorded_kind(entry.kind)
    return (
        alone
        and a.outcome == "died"
        and kind.death_tells
        and kind.death == (a.exit_code, a.signal)
        and a.rank in (fired.rank, *entry.others)
    )


def _boot(case: Case, a: Attempt) -> str | None:
    session = case.run.session_of(a)
    return session.boot_id if session else None


def _check_due(
    case: Case, fired: InjectedFault, entry: PlannedFailure, a: Attempt, notes: FindingBuilder
) -> None:
    """It did not fire before its supervised time had passed."""
    windows = case.timeline.windows
    if 0 <= a.session < len(windows):
        lived = (
            sum(end - start for start, end in windows[: a.session])
            + fired.at
            - windows[a.session][0]
        )
        if lived < entry.seconds - _DUE_SLACK_S:
            notes.broken(
                f"entry {fired.index} ({entry.kind}) fired after {lived:.3f} s of supervised time,"
                f" it was due after {entry.seconds:.3f} s"
            )


def _beside_lines(
    case: Case, fired: InjectedFault, entry: PlannedFailure
) -> list[tuple[float, str]]:
    """By how many seconds it is dated before the step that it waited for, or after its target's
    next one, with a description.
    """
    saves = entry.moment == "save"
    if saves and strategy_of(case.run.stored.config).background:
        # the background writer is another process; it and the ranks do not wait for each other
        return _beside_save(case, fired, entry)
    lines = case.run.logs(fired.attempt).ranks.get(0 if saves else fired.rank)
    by_step = instants_by_step(lines) if lines else {}
    if entry.moment in STARTING:
        return (
            [(fired.at - min(by_step.values()), "after its victim had done a step")]
            if by_step
            else []
        )
    step = (
        entry.global_step
        if fired.at_step is None and entry.moment not in ("capture", "save")
        else fired.at_step
    )
    if step is None or entry.moment == "wall":
        return []
    found = []
    if (reached := by_step.get(step if entry.moment in _AFTER_STEP else step - 1)) is not None:
        found.append(
            (
                reached - fired.at,
                (
                    "before its victim had logged step"
                    f" {step if entry.moment in _AFTER_STEP else step - 1}"
                ),
            )
        )
    if (passed := by_step.get(step + 1)) is not None:
        found.append((fired.at - passed, f"after its victim had logged step {step + 1}"))
    return found


def _beside_save(
    case: Case, fired: InjectedFault, entry: PlannedFailure
) -> list[tuple[float, str]]:
    """Like `_beside_lines`, for a fault of the background writer: it hits a save that was submitted
    and has not ended. The points that follow the acknowledgement (pointers, retention) are passed
    after `committed` is logged.
    """
    lines = [
        line
        for line in case.run.logs(fired.attempt).checkpoints.events
        if line.global_step == fired.at_step
    ]
    found = [
        (line.at - fired.at, f"before step {fired.at_step} was {line.event}")
        for line in lines
        if line.event in ("submitted", "received")
    ]
    if not acknowledges_after(entry.point):
        return found
    return found + [
        (fired.at - line.at, f"after the save of step {fired.at_step} had ended ({line.event})")
        for line in lines
        if line.event in CHECKPOINT_ENDS
    ]


def _at_rest(by_index: dict[int, PlannedFailure], fired: InjectedFault) -> bool:
    entry = by_index.get(fired.index)
    return entry is not None and entry.moment == "rest"
