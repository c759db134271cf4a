"""Checks every rank's spans against its own lines, the checkpoint lines, and the other ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from ecrl_cli.errors import plural
from ecrl_cli.history.membership import continuing_ranks
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import (
    COPY_WAIT,
    RANK_CATEGORIES,
    STALL_PARTS,
    Attempt,
    CheckpointLine,
    RankLine,
    Span,
)
from ecrl_cli.records.journal import Log
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.verify.checkpoint_folder import lost_power, tail_may_be_lost
from ecrl_cli.verify.clocks import local_ranks, processes_over
from ecrl_cli.verify.disturbance import ENDED_WELL
from ecrl_cli.verify.rank_spans import ROUNDING_S, SpanAccount
from ecrl_cli.verify.span_columns import begun_together, contiguous, lines_booked, steps_booked
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# categories that no stall contains
_FREE = ("compute", "evaluate", "warm_up", "idle", "import", "rendezvous", "load")
# nothing is computed ahead of these
_STARTING = ("import", "rendezvous", "load", "warm_up", "compute")
_AFTERWARDS_S = 0.05  # computing after the last step: a few statements
# how much later than rank 0 another rank may log the last step: it may be suspended, or wait for
# the processor
_LAST_STEP_S = 60.0


def check_spans(case: Case, notes: FindingBuilder) -> None:
    """Check all spans, attempt by attempt."""
    for reason in case.spans.unread:
        notes.missing(reason)
    for a in case.attempts:
        logs, sound = case.run.logs(a.attempt), True
        for rank, lines in sorted(logs.ranks.items()):
            account = case.spans.of(a.attempt, rank)
            if account is None:
                if lines.events and rank:  # rank 0's are reported by another check
                    notes.missing(f"attempt {a.attempt} left no spans of rank {rank}")
                continue
            if _check_account(a, rank, account, notes):
                waits = _waits(account, logs.checkpoints.events) if rank == 0 else set()
                lost = tail_may_be_lost(case, a.attempt)
                if not _booked(lines, account, waits):
                    who = f"attempt {a.attempt} rank {rank}"
                    _check_lines(who, lines.events, account, waits, notes, lost=lost)
                _check_span_steps(case, a, rank, account, notes)
            else:
                sound = False
        for key in sorted(key for key in case.spans.accounts if key[0] == a.attempt):
            if key[1] >= a.world_size:
                notes.broken(
                    f"attempt {a.attempt} rank {key[1]} left spans, the attempt had"
                    f" {plural(a.world_size, 'rank')}"
                )
            elif key[1] < local_ranks(case, a.attempt) and key[1] in logs.ranks:
                _check_ends_of_spans(case, a, key[1], notes)
        _check_steps_together(case, a, notes)
        if sound:
            _check_saves(case, a, notes)
            _check_final(case, a, notes)


def _check_account(a: Attempt, rank: int, account: SpanAccount, notes: FindingBuilder) -> bool:
    """Spans are contiguous, have positive length and a valid category; returns whether other checks
    can rely on them.
    """
    who = f"attempt {a.attempt} rank {rank}"
    for before, after in pairwise(account.of_steps((0,))):
        if before.category == "compute" and after.category in _STARTING:
            notes.broken(f"{who} computes before its first step, and ahead of {after.category}")
            return False
    if account.columns is not None and contiguous(account.columns, a.attempt):
        return True
    for span in account.spans:
        if (
            span.category not in RANK_CATEGORIES
            or span.attempt != a.attempt
            or not span.end > span.start
        ):
            notes.broken(
                f"{who} has a span that cannot be: {span.category} of attempt {span.attempt},"
                f" {span.start} to {span.end}"
            )
            return False
    for before, after in pairwise(account.spans):
        if abs(after.start - before.end) > ROUNDING_S:
            how = (
                f"{after.start - before.end:.6f} s open"
                if after.start > before.end
                else f"{before.end - after.start:.6f} s counted twice"
            )
            notes.broken(
                f"{who} leaves {how} between {before.category} and {after.category} (step"
                f" {after.global_step})"
            )
            return False
        if after.global_step < before.global_step:
            notes.broken(f"{who} books step {after.global_step} after step {before.global_step}")
            return False
    return True


def _check_ends_of_spans(case: Case, a: Attempt, rank: int, notes: FindingBuilder) -> None:
    """A rank's spans lie between the launch of its attempt and the end of its process."""
    account, until = case.spans.accounts[a.attempt, rank], processes_over(case, a)
    if account.start < a.launched_at - ROUNDING_S:
        notes.broken(f"the spans of attempt {a.attempt} rank {rank} begin before the launch")
    # a process that was there before has imported already
    if account.spans[0].category != ("rendezvous" if a.origins else "import"):
        notes.broken(
            f"the spans of attempt {a.attempt} rank {rank} begin with {account.spans[0].category}"
            f" of step {account.spans[0].global_step}"
        )
    # Where nobody saw the end, the supervisor was killed and the ranks with it: perhaps between the
    # final record and their last spans.
    ended_by_itself = (
        a.outcome in ENDED_WELL
        and a.ended_at is not None
        and a.hang is None
        and a.exit_code in (0, None)
        and a.signal is None
    ) or rank in continuing_ranks(case.run, a.attempt)
    if (
        ended_by_itself
        and account.spans[-1].category != "idle"
        and recorded_by_rank(case.run.stored.config)
    ):
        notes.broken(
            f"attempt {a.attempt} {a.outcome}, and the spans of rank {rank} end with"
            f" {account.spans[-1].category}"
        )
    if until is not None and account.end > until + ROUNDING_S:
        notes.broken(
            f"the spans of attempt {a.attempt} rank {rank} end {account.end - until:.6f} s after"
            " its process was over"
        )


def _check_span_steps(
    case: Case, a: Attempt, rank: int, account: SpanAccount, notes: FindingBuilder
) -> None:
    """A span is of the step that was being worked on: the last one logged before it, or the next
    one; 0 before the attempt's first step.

    Not where the disk failed or power was lost, which may take the last lines and leave the spans.
    """
    logs, done, behind = case.run.logs(a.attempt), a.resumed_from_step, 0
    lines = logs.ranks[rank].events if rank in logs.ranks else ()
    if lost_power(case) or tail_may_be_lost(case, a.attempt) or not lines:
        return
    last = max(a.last_step or 0, lines[-1].global_step) + (a.outcome not in ENDED_WELL)
    columns = rank_columns(logs.ranks[rank])
    if (
        columns is not None
        and account.columns is not None
        and steps_booked(columns, account.columns, a.resumed_from_step, last)
    ):
        return
    for span in account.spans:
        while behind < len(lines) and lines[behind].at <= span.start + ROUNDING_S:
            done, behind = lines[behind].global_step, behind + 1
        # a line may be missing
        following = lines[behind].global_step if behind < len(lines) else done + 1
        if not done <= span.global_step <= min(following, last) and (span.global_step or behind):
            text = (
                f"{span.category} of step {span.global_step}, when step {done} was the last that"
                " the rank had logged"
            )
            notes.broken(f"attempt {a.attempt} rank {rank} has a span of {text}")
            return


def _booked(lines: Log[RankLine], account: SpanAccount, waits: set[float]) -> bool:
    """Whether columns show at once that all lines are as `_check_lines` has them."""
    columns = rank_columns(lines)
    return not lines.events or (
        columns is not None
        and account.columns is not None
        and lines_booked(columns, account.columns, waits)
    )


def _check_lines(
    who: str,
    lines: Sequence[RankLine],
    account: SpanAccount,
    waits: set[float],
    notes: FindingBuilder,
    *,
    lost: bool,
) -> None:
    """A step is `compute` from its beginning to its line, but for the waits for a deferred copy,
    which begin at `waits`. Only the last line's span may be missing: it was open when the rank
    died. `lost`: the last spans may never have reached the disk.
    """
    for number, line in enumerate(lines):
        step = f"step {line.global_step} of {who}"
        if line.at > account.end + ROUNDING_S:
            if number < len(lines) - 1:
                text = f"the spans of {who} end before {step} does, and later steps are on record"
                (notes.missing if lost else notes.broken)(text)
                return
            continue
        spans = account.covering(line.at)
        if not any(
            span.category == "compute" and span.global_step == line.global_step for span in spans
        ):
            booked = f"{spans[-1].category} of step {spans[-1].global_step}" if spans else "nothing"
            notes.broken(f"{step} was logged at an instant that is booked as {booked}")
            return
        inside = [
            span
            for span in account.between(line.at - line.seconds, line.at)
            if span.category != "compute"
        ]
        other = next((span for span in inside if span.start not in waits), None)
        if other is not None:
            notes.broken(
                f"{step} took {line.seconds:.6f} s, and part of that is booked as {other.category}"
            )
            return
        began = account.step_starts.get(line.global_step)
        if began is not None and line.at - line.seconds > began + ROUNDING_S:
            notes.broken(
                f"{step} took {line.seconds:.6f} s by its line, {line.at - began:.6f} s by its"
                " spans"
            )
            return


def _waits(account: SpanAccount, lines: Sequence[CheckpointLine]) -> set[float]:
    """Where the spans begin that a line `waited` tells of: it is written right after the span,
    before the next one ends.
    """
    waited = [line for line in lines if line.event == "waited"]
    ends, found = [span.end for span in account.spans] if waited else [], set[float]()
    for line in waited:
        span = account.spans[max(0, bisect_right(ends, line.at) - 1)]
        if (
            span.category == STALL_PARTS[COPY_WAIT]
            and abs(span.end - span.start - line.stall_s) <= ROUNDING_S
        ):
            found.add(span.start)
    return found


def _check_steps_together(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Ranks exchange gradients in every step: none ends it before all have begun it. Checked for
    ranks on one machine, which share a clock.
    """
    latest: dict[int, tuple[float, int]] = {}
    earliest: dict[int, tuple[float, int]] = {}
    local = local_ranks(case, a.attempt)
    logs = {rank: each for rank, each in case.run.logs(a.attempt).ranks.items() if rank < local}
    columns = {rank: rank_columns(lines) for rank, lines in logs.items() if lines.events}
    plain = {rank: each for rank, each in columns.items() if each is not None}
    if len(plain) == len(columns) and begun_together(plain):
        return
    for rank, lines in logs.items():
        for line in lines.events:
            step = line.global_step
            latest[step] = max(
                latest.get(step, (line.at - line.seconds, rank)), (line.at - line.seconds, rank)
            )
            earliest[step] = min(earliest.get(step, (line.at, rank)), (line.at, rank))
    for step in sorted(latest):
        (began, late), (ended, early) = latest[step], earliest[step]
        if began > ended + ROUNDING_S:
            text = (
                f"rank {late} began step {step} of attempt {a.attempt} {began - ended:.6f} s after"
                f" rank {early} had ended it"
            )
            notes.broken(f"{text}: they exchange gradients in between")
            return


def _check_saves(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The parts of each stall agree between checkpoint lines and rank 0's spans."""
    account, lines = case.spans.of(a.attempt, 0), case.run.logs(a.attempt).checkpoints.events
    if account is None:
        return
    for submitted in (
        line for line in lines if line.event == "submitted" and line.at <= account.end
    ):
        released = next(
            (
                line
                for line in lines
                if line.event == "released" and line.global_step == submitted.global_step
            ),
            None,
        )
        _check_save(case, a, account, (submitted, released), notes)
    _check_flush(case, a, account, notes)


def _check_save(
    case: Case,
    a: Attempt,
    account: SpanAccount,
    lines: tuple[CheckpointLine, CheckpointLine | None],
    notes: FindingBuilder,
) -> None:
    submitted, released = lines
    who = f"the save of step {submitted.global_step} in attempt {a.attempt}"
    here = account.index_at(submitted.at)
    # A checkpoint owed by survivors is saved before the attempt's first step, which earlier
    # versions recorded under step 0.
    steps = (
        (submitted.global_step, 0)
        if submitted.global_step == a.resumed_from_step
        else (submitted.global_step,)
    )
    if (
        here is None
        or account.spans[here].global_step not in steps
        or account.spans[here].category in (*_FREE, "sync")
    ):
        booked = (
            "nothing"
            if here is None
            else f"{account.spans[here].category} of step {account.spans[here].global_step}"
        )
        notes.broken(f"{who} was submitted at an instant that is booked as {booked}")
        return
    first, last = _extent(account, here)
    before, behind = account.spans[first:here], account.spans[here : last + 1]
    for name, recorded, spans in (
        ("snapshot", submitted.snapshot_s, before),
        ("serialize", submitted.serialize_s, before),
        ("backpressure", submitted.backpressure_s, before),
        ("enqueue", released.enqueue_s if released else None, behind),
    ):
        spent = sum(span.end - span.start for span in spans if span.category == name)
        lost = not spent and tail_may_be_lost(case, a.attempt)  # the spans end in the save
        if (
            recorded is not None
            and not lost
            and all(
                abs(recorded - spent - more) > ROUNDING_S
                for more in (0.0, _left_over(account, first, name))
            )
        ):
            notes.broken(
                f"{who} has {recorded:.6f} s of {name} by its line, {spent:.6f} s by the spans of"
                " rank 0"
            )
    if released and released.at <= account.end + ROUNDING_S:
        _check_stall(who, account, (first, last), released, notes)
        _check_barrier(case, a, account.spans[last].end, released, notes)


def _extent(account: SpanAccount, here: int) -> tuple[int, int]:
    """The spans of one save: those between two `sync` spans, from after gathering the ranks' state
    to before the barrier.
    """
    first, last, step = here, here, account.spans[here].global_step

    def inside(span: Span) -> bool:
        return span.global_step == step and span.category not in (*_FREE, "sync")

    while first > 0 and inside(account.spans[first - 1]):
        first -= 1
    while last + 1 < len(account.spans) and inside(account.spans[last + 1]):
        last += 1
    return first, last


def _left_over(account: SpanAccount, first: int, category: str) -> float:
    """Seconds of `category` right before the gathering: after an in-memory snapshot, a save begins
    while that category is still running.
    """
    before = [span for span in account.spans[max(0, first - 2) : first] if span.category != "sync"]
    return before[-1].end - before[-1].start if before and before[-1].category == category else 0.0


def _check_stall(
    who: str,
    account: SpanAccount,
    extent: tuple[int, int],
    released: CheckpointLine,
    notes: FindingBuilder,
) -> None:
    """A stall covers everything that rank 0 does from the gathered state to the barrier, and no
    training.
    """
    spans, (first, last) = account.spans, extent
    least = spans[last].end - spans[first].start
    if released.stall_s < least - ROUNDING_S:
        notes.broken(
            f"{who} stalled for {released.stall_s:.6f} s by its line, for {least:.6f} s at least by"
            " the spans of rank 0"
        )
        return
    free = [
        span
        for span in account.between(released.at - released.stall_s, released.at)
        if span.category in _FREE
    ]
    if free:
        notes.broken(
            f"{who} stalled for {released.stall_s:.6f} s by its line, and part of that is booked as"
            f" {free[0].category}"
        )


def _check_barrier(
    case: Case, a: Attempt, reached: float, released: CheckpointLine, notes: FindingBuilder
) -> None:
    """The other ranks wait until rank 0 reaches the barrier, and their spans show it."""
    step = released.global_step
    for rank in range(1, min(a.world_size, local_ranks(case, a.attempt))):
        account = case.spans.of(a.attempt, rank)
        if account is None or account.end <= released.at:
            continue  # it died there, or before
        steps = (step, 0) if step == a.resumed_from_step else (step,)  # see `_check_save`
        waited = [span for span in account.of_steps(steps) if span.category == "sync"]
        if not waited or waited[-1].end < reached - ROUNDING_S:
            text = (
                f"rank {rank} waited for the save of step {step} in attempt {a.attempt} until rank"
                " 0 had come to the barrier"
            )
            notes.broken(f"{text}, and its spans do not have it")


def _check_flush(case: Case, a: Attempt, account: SpanAccount, notes: FindingBuilder) -> None:
    """After its last step an attempt that ends well computes no more: it waits for the writer."""
    logs = case.run.logs(a.attempt)
    lines = logs.ranks[0].events if 0 in logs.ranks else ()
    if not lines or a.outcome not in ("completed", "resized"):
        return
    for end in (
        line
        for line in logs.checkpoints.events
        if line.event == "committed" and lines[-1].at + _AFTERWARDS_S < line.at < account.end
    ):
        computing = [
            span for span in account.covering(end.at) if span.category in ("compute", "idle")
        ]
        if (
            len(computing) == len(account.covering(end.at))
            and end.at - computing[-1].start > _AFTERWARDS_S
        ):
            notes.broken(
                f"step {end.global_step} was committed while rank 0 waited for it, which is booked"
                f" as {computing[-1].category}"
            )


def _check_final(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The goodput clock ends where rank 0 turns from its last work to idling."""
    final, account = case.run.logs(a.attempt).final, case.spans.of(a.attempt, 0)
    if final is None or account is None:
        return
    last = account.spans[-1]
    boundary = last.start if last.category == "idle" else last.end
    if abs(final.at - boundary) > ROUNDING_S:
        notes.broken(
            f"final.json ends the clock {final.at - boundary:+.6f} s from where rank 0 of attempt"
            f" {a.attempt} ended its work"
        )
    for rank, lines in case.run.logs(a.attempt).ranks.items():
        # There is no barrier after the last step: other ranks may still be updating and logging it.
        allowed = ROUNDING_S if rank == 0 else _LAST_STEP_S
        if (
            rank < local_ranks(case, a.attempt)
            and lines.events
            and lines.events[-1].at > final.at + allowed
        ):
            notes.broken(
                f"rank {rank} logged step {lines.events[-1].global_step}"
                f" {lines.events[-1].at - final.at:.6f} s after the end of final.json"
            )
