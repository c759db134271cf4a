"""Checks the checkpoint journal of each attempt by itself: known events in a possible order, with
possible values.
"""

from __future__ import annotations

import math
import re

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural, shown
from ecrl_cli.history.lineage import steps_of
from ecrl_cli.history.load import AttemptRecords
from ecrl_cli.records.events import (
    CHECKPOINT_ENDS,
    CHECKPOINT_EVENTS,
    FOUND,
    LEFT_UNCOMMITTED,
    LEFT_WHOLE,
    CheckpointLine,
)
from ecrl_cli.verify.checkpoint_folder import lost_power, tail_may_be_lost, tails_may_be_lost
from ecrl_cli.verify.disturbance import ENDED_WELL
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events, saves

_DURATIONS = (
    "snapshot_s",
    "copy_s",
    "serialize_s",
    "enqueue_s",
    "backpressure_s",
    "write_s",
    "hash_s",
    "commit_s",
    "stall_s",
)
_COUNTS = ("bytes", "inflight", "deferred_bytes")
# The fields of each event's line; metrics.json adds up the fields of all lines of a checkpoint.
_SAYS: dict[str, tuple[str, ...]] = {
    "submitted": (
        "snapshot_s",
        "copy_s",
        "serialize_s",
        "backpressure_s",
        "bytes",
        "inflight",
        "deferred_bytes",
        "reason",
    ),
    "received": (),
    "released": ("enqueue_s", "stall_s", "stall_parts"),
    "waited": ("stall_s", "stall_parts"),
    "committed": (
        "write_s",
        "hash_s",
        "commit_s",
        "bytes",
        "path",
        "commit_sha256",
        "saved_state",
        "reason",
    ),
    "failed": ("write_s", "reason"),
    "lost": ("bytes", "reason"),
    "retired": ("path", "commit_sha256"),
    "pointer_failed": ("reason",),
}
_FIELDS = sorted({name for names in _SAYS.values() for name in names})
_ERROR = re.compile(r"E-[a-z][a-z0-9-]* [^\n:]+: .+", re.DOTALL)  # `EcrlError.line`
# a line is dated just before it is written, and a duration is taken just before that
_SLACK_S = 0.001
_PATH = re.compile(r"checkpoints/step_([0-9]{8})(\.safetensors|\.pt)?")


def check_lines(case: Case, notes: FindingBuilder) -> None:
    """Check the journals of all attempts."""
    saved = {
        line.global_step
        for line in checkpoint_events(case.run)
        if line.event in ("submitted", "committed")
    }
    # recorded before stalls were split into parts
    early = not any(line.stall_parts for line in checkpoint_events(case.run))
    _check_retired(case, notes)
    for a in case.run.attempt_logs:
        if not early:
            _check_fields(a.attempt, a.checkpoints.events, notes)
            _check_stages(case, a, notes)
        _check_journal(case, a.attempt, a.checkpoints.events, notes)
        for line in a.checkpoints.events:
            if line.event == "retired" and line.global_step not in saved:
                text = f"attempt {a.attempt} retired step {line.global_step}, which nobody saved"
                (notes.missing if tails_may_be_lost(case, a.attempt - 1) else notes.broken)(text)


def _check_stages(case: Case, logs: AttemptRecords, notes: FindingBuilder) -> None:
    """Each save has a line for every stage that its strategy records, with the fields of that
    stage.
    """
    strategy, a = strategy_of(case.run.stored.config), case.attempt(logs.attempt)
    ended_well = a is not None and a.outcome in ENDED_WELL
    last = max(steps_of(logs.ranks[0]), default=0) if 0 in logs.ranks else 0
    stages = saves(logs.checkpoints.events)
    newest = max((step for step, found in stages.items() if "submitted" in found), default=0)
    for step, found in stages.items():
        who = f"the save of step {step} in attempt {logs.attempt}"
        submitted, committed, failed = (
            found.get("submitted"),
            found.get("committed"),
            found.get("failed"),
        )
        written = committed is not None and committed.reason is None
        if (written or (failed and not strategy.needs_writer)) and "received" not in found:
            notes.broken(
                f"{who} was {'committed' if written else 'said to have failed'}, and no line says"
                " that whoever writes had received it"
            )
        if submitted is None:
            continue
        if "released" not in found and (ended_well or last > step):
            text = f"{who} was submitted, and no line says that rank 0 went on, which it did"
            unsaid = tail_may_be_lost(case, logs.attempt) and step == newest
            (notes.missing if unsaid else notes.broken)(text)
        if submitted.inflight < 1:
            notes.broken(f"{who} was submitted with no checkpoint in flight, not even itself")
        handed_over = written or "received" in found
        if handed_over and not submitted.bytes and strategy.checkpointer is None:
            notes.broken(f"{who} was submitted with no bytes")
        if written and committed and not committed.bytes:
            notes.broken(f"{who} was committed with no bytes")


def _check_retired(case: Case, notes: FindingBuilder) -> None:
    """A checkpoint is retired under the path and the commit that it was committed with."""
    known: dict[int, set[tuple[str | None, str | None]]] = {}
    gone: set[int] = set()
    for line in checkpoint_events(case.run):
        place = (line.path, line.commit_sha256)
        if line.event == "committed":
            known.setdefault(line.global_step, set()).add(place)
            gone.discard(line.global_step)
        elif (
            line.event == "retired"
            and place != (None, None)
            and known.get(line.global_step, {place}).isdisjoint({place})
        ):
            named = f"{shown(line.path)} under the commit {shown((line.commit_sha256 or '')[:8])}"
            notes.broken(
                f"attempt {line.attempt} retired step {line.global_step} as {named}, which no line"
                " says that it was committed as"
            )
        if line.event == "retired":
            if line.global_step in gone and not lost_power(case):
                notes.broken(
                    f"attempt {line.attempt} retired step {line.global_step}, which was retired"
                    " before and not committed again"
                )
            gone.add(line.global_step)


def _check_journal(
    case: Case, attempt: int, lines: tuple[CheckpointLine, ...], notes: FindingBuilder
) -> None:
    earlier: dict[int, dict[str, CheckpointLine]] = {}
    in_flight: set[int] = set()
    committed = {
        line.global_step: line.at
        for line in lines
        if line.event == "committed" and line.reason is None
    }
    early = not any(line.stall_parts for line in lines)  # older records have none
    for line in lines:
        who = f"{line.event[:40]!r} of step {line.global_step} in the journal of attempt {attempt}"
        if line.event not in CHECKPOINT_EVENTS:
            notes.broken(f"{who} is no event of a checkpoint")
            continue
        if line.attempt != attempt:
            notes.broken(f"{who} is a line of attempt {line.attempt}")
        for text in _impossible(line, case.run.stored.config.storage.bytes_per_s):
            notes.broken(f"{who} {text}")
        before = earlier.setdefault(line.global_step, {})
        for text in _out_of_order(line, before):
            notes.broken(f"{who} {text}")
        for text in _undeferred(case, line, before):
            notes.broken(f"{who} {text}")
        if line.event == "submitted":
            _check_in_flight(case, line, len(in_flight) + 1, early, notes)
            handed_over = [step for step, found in earlier.items() if "submitted" in found]
            _check_count(line, [committed.get(step, 0.0) for step in handed_over], notes)
        elif line.event == "received":
            in_flight.add(line.global_step)
        elif line.event in CHECKPOINT_ENDS:
            in_flight.discard(line.global_step)
        before.setdefault(line.event, line)


def _check_fields(attempt: int, lines: tuple[CheckpointLine, ...], notes: FindingBuilder) -> None:
    """Each line has only the fields of its event, and a checkpoint is committed with as many bytes
    as were submitted.
    """
    submitted: dict[int, int] = {}
    for line in lines:
        who = f"{line.event!r} of step {line.global_step} in the journal of attempt {attempt}"
        foreign = [
            name
            for name in _FIELDS
            if line.event in _SAYS and name not in _SAYS[line.event] and getattr(line, name)
        ]
        if foreign:
            notes.broken(
                f"{who} has {foreign[0]} {shown(getattr(line, foreign[0]))}, which is of another"
                " event"
            )
        if line.event == "submitted":
            submitted[line.global_step] = line.bytes
        elif (
            line.event == "committed"
            and line.bytes
            and (due := submitted.get(line.global_step))
            and line.bytes != due
        ):
            # 0: size not known when it was recorded
            notes.broken(f"{who} has {line.bytes} bytes, {due} were submitted")


def _undeferred(case: Case, line: CheckpointLine, before: dict[str, CheckpointLine]) -> list[str]:
    """Contradictions to checkpoint.capture: bytes deferred that could not be, none deferred without
    a reason, a wait without a copy.
    """
    config = case.run.stored.config
    wanted = config.checkpoint.capture == "deferred" and strategy_of(config).defers
    if line.event == "waited":
        submitted = before.get("submitted")
        return (
            []
            if submitted and submitted.deferred_bytes
            else ["waited for the copy of what was not left to the writer"]
        )
    if line.event != "submitted":
        return []
    if not wanted:
        names = [name for name in ("deferred_bytes", "reason") if getattr(line, name)]
        return (
            [f"has {names[0]} {shown(getattr(line, names[0]))}, captures are copies"]
            if names
            else []
        )
    if line.deferred_bytes > line.bytes:
        return [f"left {line.deferred_bytes} of {line.bytes} bytes to the writer"]
    if bool(line.deferred_bytes) == bool(line.reason):
        return [
            (
                "gives a reason for a copy, and left it to the writer"
                if line.reason
                else "was a copy, and does not say why"
            )
        ]
    return []


def _impossible(line: CheckpointLine, most: float) -> list[str]:
    """Values and names that are impossible in any line of this kind, where `most` bytes may be
    written in a second (0: any).
    """
    found = [
        f"has {name} {value!r}"
        for name in _DURATIONS
        if not (math.isfinite(value := getattr(line, name)) and value >= 0)
    ]
    found += [f"has {name} {value}" for name in _COUNTS if (value := getattr(line, name)) < 0]
    # nothing is written of a checkpoint that is there already
    if most and 0 < line.write_s < line.bytes / most - _SLACK_S:
        found.append(f"wrote {line.bytes} bytes in {line.write_s} s, at {most:g} a second at most")
    if line.copy_s > max(0.0, line.snapshot_s) + _SLACK_S:
        found.append(f"copied for {line.copy_s} s of a capture of {line.snapshot_s} s")
    if line.event == "committed" or (line.event == "retired" and line.path is not None):
        match = _PATH.fullmatch(line.path or "")
        if match is None or int(match[1]) != line.global_step:
            found.append(f"names {str(line.path)[:80]!r} as its path")
    if text := _wrong_reason(line):
        found.append(text)
    return found


def _wrong_reason(line: CheckpointLine) -> str:
    """Error in the reason of an event that has one; empty if there is none."""
    if line.event in ("failed", "pointer_failed"):
        return (
            ""
            if _ERROR.fullmatch(line.reason or "")
            else f"has no error as its reason, but {shown(line.reason)}"
        )
    if line.event == "lost":
        return (
            ""
            if line.reason == LEFT_UNCOMMITTED
            else (
                f"has the reason {shown(line.reason)}, it can only be that its writer"
                f" {LEFT_UNCOMMITTED}"
            )
        )
    if line.event == "committed" and line.reason not in (None, FOUND, LEFT_WHOLE):
        return f"has the reason {shown(line.reason)}, which is none"
    if line.event == "committed" and line.reason and (line.write_s or line.hash_s or line.commit_s):
        return "was found after the fact, and says how long it took to write"
    return ""


def _out_of_order(line: CheckpointLine, before: dict[str, CheckpointLine]) -> list[str]:
    """Lines that must precede this one but do not, and lines that it must not predate."""
    if line.event in ("submitted", "retired", "pointer_failed"):
        return [
            f"stands after its end ({end})"
            for end in CHECKPOINT_ENDS
            if line.event == "submitted" and end in before
        ]
    found = []
    if "submitted" not in before and line.reason != FOUND:
        found.append("stands before it was submitted")
    if line.event == "received" and (ends := [end for end in CHECKPOINT_ENDS if end in before]):
        found.append(f"stands after its end ({ends[0]})")
    if line.event in ("received", "released", "waited") and line.event in before:
        found.append("stands there twice")
    handed_over = before.get("submitted")
    written = before.get("received", handed_over)
    if (
        handed_over
        and written
        and (
            line.event in ("received", "released", "waited")
            or (line.event == "committed" and line.reason is None)
        )
    ):
        # lines added by later reconciliation may be of another boot
        since = written if line.event == "committed" else handed_over
        if line.at < since.at:
            found.append(
                f"is {since.at - line.at:.3f} s older than the line that must stand before it"
                f" ({since.event})"
            )
        elif (
            line.event == "committed"
            and (took := line.write_s + line.hash_s + line.commit_s)
            > line.at - written.at + _SLACK_S
        ):
            found.append(
                f"took {took:.3f} s to write and commit, {line.at - written.at:.3f} s after it was"
                f" {written.event}"
            )
    return found


def _check_in_flight(
    case: Case, line: CheckpointLine, in_flight: int, early: bool, notes: FindingBuilder
) -> None:
    """No more in flight than there are staging buffers, by the line's own count and by the lines
    before it.

    `early`: recorded when a buffer was granted just before the training thread learned that the
    previous checkpoint in it had ended; that one may still be counted.
    """
    checkpoint = case.run.stored.config.checkpoint
    strategy = strategy_of(case.run.stored.config)
    bound = strategy.in_flight(checkpoint)
    who = f"step {line.global_step} of attempt {line.attempt} was submitted with"
    if in_flight > bound:
        notes.broken(
            f"{who} {plural(in_flight, 'checkpoint')} in flight by the lines before it,"
            f" checkpoint.max_inflight is {bound}"
        )
    if line.inflight > bound + (early and strategy.background):
        notes.broken(
            f"{who} {plural(line.inflight, 'checkpoint')} in flight, checkpoint.max_inflight is"
            f" {bound}"
        )


def _check_count(line: CheckpointLine, committed: list[float], notes: FindingBuilder) -> None:
    """A save counts, beside itself, every earlier one that was committed only later. `committed`:
    when the saves that were handed over before it in this attempt were committed; 0 where no line
    says so, or somebody else had to find out.
    """
    beside = sum(at > line.at for at in committed)
    if 1 <= line.inflight <= beside:
        notes.broken(
            f"step {line.global_step} of attempt {line.attempt} was submitted with"
            f" {plural(line.inflight, 'checkpoint')} in flight, {beside} before it were committed"
            " only later"
        )
