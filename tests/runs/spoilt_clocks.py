"""Runs whose clocks, seconds and spans were changed, with metrics.json and the phases made to fit:
what else says the same contradicts them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.supervisor_record import read_record, with_phases
from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from tests.runs.builder import BOOT, WALL
from tests.runs.spoil import Edit, append, at_step, edit_json, edit_lines, without

TIME = "time-conserved"
Spoil = Callable[[RunLayout], Any]
Scale = Callable[[float], float]
BEGAN = 1000.0  # where the built runs' monotonic clock stands at their launch
_DATED = ("at", "start", "end", "launched_at", "ended_at", "started_at")


def refold(run: RunLayout) -> None:
    """Make the phases in supervisor.json and metrics.json what the spoilt records fold to."""
    record = read_record(run)
    write_json(run.supervisor, encode(replace(record, attempts=with_phases(run, record))))
    write_json(run.metrics, metrics_document(load(run)))


def folded(spoil: Spoil) -> Spoil:
    """`spoil`, and nothing else left to tell of it but what overlaps."""

    def done(run: RunLayout) -> None:
        spoil(run)
        refold(run)

    return done


def redate(
    run: RunLayout, at: Scale, wall: Scale = lambda time: time, seconds: float = 1.0
) -> None:
    """Pass every reading of the monotonic clock through `at`, of the wall clock through `wall`;
    multiply what took time by `seconds`.
    """

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, float) and name in _DATED:
            # 0: an older record does not say when it was launched
            return at(value) if value else value
        if isinstance(value, float) and name in ("time", "ended_time"):
            return wall(value)
        if isinstance(value, float) and (name == "seconds" or name.endswith("_s")):
            return value * seconds
        if name == "stall_parts" and value:
            return {part: spent * seconds for part, spent in value.items()}
        if isinstance(value, dict):
            return {key: changed(key, item) for key, item in value.items()}
        return [changed("", item) for item in value] if isinstance(value, list) else value

    for path in (
        run.supervisor,
        *sorted(run.fired.glob("*.json")),
        *sorted(run.logs.glob("*/*.json")),
    ):
        edit_json(path, lambda document: changed("", document))
    for path in sorted(run.logs.glob("*/*.jsonl")):
        found = [changed("", json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in found))


def half(reading: float, origin: float = BEGAN) -> float:
    return origin + (reading - origin) / 2


def lines(attempt: int, rank: int, edit: Edit) -> Spoil:
    return lambda run: edit_lines(run.attempt(attempt).rank(rank), edit)


def every_line(edit: Edit) -> Spoil:
    return lambda run: [edit_lines(path, edit) for path in sorted(run.logs.glob("*/rank*.jsonl"))]


def spans(attempt: int, rank: int, edit: Edit) -> Spoil:
    return lambda run: edit_lines(run.attempt(attempt).spans(rank), edit)


def booked(category: str, instead: str, step: int | None = None) -> Edit:
    """Spans of one category under another; of one step, or of all."""
    return lambda span: (
        span | {"category": instead}
        if span["category"] == category and step in (None, span["global_step"])
        else span
    )


def shifted(seconds: float, *names: str) -> Edit:
    return lambda line: line | {name: line[name] + seconds for name in names}


def saved(step: int, event: str, attempt: int = 2, /, **changes: Any) -> Spoil:
    def edit(line: dict[str, Any]) -> dict[str, Any]:
        return line | changes if (line["event"], line["global_step"]) == (event, step) else line

    return lambda run: edit_lines(run.attempt(attempt).checkpoints, edit)


def session(**changes: Any) -> Spoil:
    return lambda run: edit_json(
        run.supervisor, lambda record: record["sessions"][0].update(changes)
    )


def attempt(number: int, **changes: Any) -> Spoil:
    return lambda run: edit_json(
        run.supervisor, lambda record: record["attempts"][number].update(changes)
    )


def final(**changes: Any) -> Spoil:
    return lambda run: edit_json(run.attempt(2).final, lambda document: document | changes)


def order(number: int, **changes: Any) -> Spoil:
    return lambda run: edit_json(run.attempt(number).launch, lambda document: document | changes)


def clock_ends_early(run: RunLayout, at: float) -> None:
    """Two records of the wall and of the monotonic clock are changed alike: the goodput rises."""
    final(at=at, time=at + WALL)(run)


def reversed_lines(run: RunLayout) -> None:
    """The instants of one log in reverse."""
    path = run.attempt(2).rank(1)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    instants = iter(reversed([(line["at"], line["time"]) for line in found]))
    edit_lines(path, lambda line: line | dict(zip(("at", "time"), next(instants), strict=True)))


def hidden_launch(run: RunLayout) -> None:
    """The first attempt begins with its first span: its launch was free."""
    session(started_at=1000.4, time=1000.4 + WALL)(run)
    attempt(0, launched_at=1000.4)(run)


def two_sessions(run: RunLayout, began: float, boot: str = BOOT) -> None:
    """The last attempt was another session's."""
    first = {"started_at": BEGAN, "time": BEGAN + WALL, "boot_id": BOOT, "ended_at": 1003.5}
    second = {"started_at": began, "time": began + WALL, "boot_id": boot, "ended_at": 1005.121}
    edit_json(run.supervisor, lambda record: record | {"sessions": [first, second]})
    attempt(2, session=1)(run)
    order(2, boot_id=boot)(run)


def to_and_fro(run: RunLayout) -> None:
    """All that was recorded in attempt 1 is dated a day ahead."""
    logs = run.attempt(1)
    for path in (logs.rank(0), logs.rank(1), logs.checkpoints):
        edit_lines(path, shifted(86400.0, "time"))
    for path in (logs.launch, run.fired_entry(1)):
        edit_json(path, lambda document: document | {"time": document["time"] + 86400.0})


def retired_early(run: RunLayout) -> None:
    """A checkpoint that was removed a tenth of a second before it was committed."""
    log = run.attempt(2).checkpoints
    (line,) = (
        line
        for line in map(json.loads, log.read_text().splitlines())
        if (line["event"], line["global_step"]) == ("committed", 24)
    )
    append(log, line | {"event": "retired", "at": line["at"] - 0.1, "time": line["time"] - 0.1})


def no_barrier(span: dict[str, Any]) -> dict[str, Any]:
    """What rank 1 waited for the save of step 12 is booked as something else; its wait in the step
    itself stays.
    """
    waited = (span["category"], span["global_step"]) == ("sync", 12) and span["end"] - span[
        "start"
    ] > 0.02
    return span | {"category": "write_wait"} if waited else span


def stripes(run: RunLayout) -> None:
    """Every third wall time is another one."""
    every_line(lambda line: line | {"time": line["time"] + 0.3 * (line["global_step"] % 3 == 0)})(
        run
    )


def another_time(run: RunLayout) -> None:
    """Rank 1 of the last attempt did all of it a second sooner."""
    lines(2, 1, shifted(-0.5, "at", "time"))(run)
    spans(2, 1, shifted(-0.5, "start", "end"))(run)


def spans_cut(run: RunLayout) -> None:
    spans(2, 1, lambda span: span if span["global_step"] < 22 else None)(run)


def a_hole(span: dict[str, Any]) -> dict[str, Any]:
    return (
        span | {"end": span["end"] - 0.004}
        if span["category"] == "sync" and span["global_step"] == 21
        else span
    )


def slower(run: RunLayout) -> None:
    """A run on a machine with a twentieth of the speed: everything that dates or measures anything
    is scaled alike.
    """
    redate(
        run,
        lambda at: BEGAN + 20 * (at - BEGAN),
        lambda time: BEGAN + WALL + 20 * (time - BEGAN - WALL),
        20.0,
    )


def idle_commit(run: RunLayout) -> None:
    """Rank 0 idles for 0.2 s, and the writer commits in the middle."""
    slower(run)
    at = json.loads(run.attempt(2).final.read_text())["at"] + 0.1
    saved(24, "committed", at=at, time=at + WALL)(run)


# Name: what is done, the promise, the status of the finding, and what it says among others.
CLOCKS: dict[str, tuple[Spoil, str, str, str]] = {
    "instants negated": (
        lines(2, 1, lambda line: line | {"at": -line["at"]}),
        TIME,
        INVALID,
        "before the attempt was launched",
    ),
    "instants in reverse": (reversed_lines, TIME, INVALID, "before what came before it was over"),
    "wall times in 1970": (
        every_line(shifted(-WALL, "time")),
        TIME,
        INVALID,
        "s early, which no clock showed",
    ),
    "all wall times in 1970": (
        lambda run: redate(run, lambda at: at, lambda time: time - WALL),
        TIME,
        UNKNOWN,
        "s after 1970 by the wall clock, which had not been set",
    ),
    "the monotonic clock at half speed": (
        lambda run: redate(run, half, seconds=0.5),
        TIME,
        INVALID,
        "the wall clock and the monotonic one part",
    ),
    "the monotonic clock at double speed": (
        lambda run: redate(run, lambda at: BEGAN + 2 * (at - BEGAN), seconds=2.0),
        TIME,
        INVALID,
        "the wall clock and the monotonic one part",
    ),
    "the wall clock at half speed": (
        lambda run: redate(run, lambda at: at, lambda time: half(time, BEGAN + WALL)),
        TIME,
        INVALID,
        "the wall clock and the monotonic one part",
    ),
    "both clocks at half speed, but not the seconds": (
        lambda run: redate(run, half, lambda time: half(time, BEGAN + WALL)),
        TIME,
        INVALID,
        "before what came before it was over",
    ),
    "wall times of one rank an hour ahead": (
        lines(1, 1, shifted(3600.0, "time")),
        TIME,
        INVALID,
        "has a wall time 3600.000 s late",
    ),
    "a wall clock set to and fro": (
        to_and_fro,
        TIME,
        INVALID,
        "the wall clock and the monotonic one part 2 times",
    ),
    "wall times that differ in stripes": (
        stripes,
        TIME,
        INVALID,
        "the wall clock and the monotonic one part",
    ),
    "seconds a thousand times smaller": (
        every_line(lambda line: line | {"seconds": line["seconds"] / 1000}),
        TIME,
        INVALID,
        "0.000020 s by its line, 0.020000 s by its spans",
    ),
    "seconds ten times larger": (
        lines(2, 0, lambda line: line | {"seconds": 10 * line["seconds"]}),
        TIME,
        INVALID,
        "was over, by its own 0.2",
    ),
    "a step that took no time": (
        lines(2, 0, at_step(24, seconds=0.0)),
        TIME,
        INVALID,
        "step 24 of attempt 2 rank 0 took 0 s",
    ),
    "the end of the clock two seconds earlier": (
        lambda run: clock_ends_early(run, 1002.861),
        TIME,
        INVALID,
        "final.json ends the clock -2.0",
    ),
    "the end of the clock after attempt 0": (
        lambda run: clock_ends_early(run, 1001.66),
        TIME,
        INVALID,
        "final.json of attempt 2 is dated",
    ),
    "the end of the clock ahead of the last step": (
        lambda run: clock_ends_early(run, 1004.8),
        TIME,
        INVALID,
        "after the end of final.json",
    ),
    "a session without a length": (
        session(ended_at=BEGAN),
        TIME,
        INVALID,
        "session 0 began at 1000.000 s and ended at 1000.000 s",
    ),
    "a session of less than nothing": (
        session(ended_at=BEGAN - 3),
        TIME,
        INVALID,
        "session 0 began at 1000.000 s and ended at 997.000 s",
    ),
    "a session that ends before its attempt": (
        session(ended_at=1005.0),
        TIME,
        INVALID,
        "s after its session",
    ),
    "a session that ends later": (
        session(ended_at=1030.0),
        TIME,
        UNKNOWN,
        "by the monotonic clock, 0.260 s by the wall clock",
    ),
    "a last wall time that nobody lived to read": (
        lambda run: edit_json(
            run.attempt(2).final, lambda document: document | {"time": document["time"] + 300}
        ),
        TIME,
        INVALID,
        "final.json of attempt 2 has a wall time 300.000 s late",
    ),
    "a wall time after the death that it is of": (
        lambda run: edit_json(
            run.fired_entry(0), lambda fired: fired | {"time": fired["time"] + 300}
        ),
        TIME,
        INVALID,
        "entry 0, fired, has a wall time 300.000 s late",
    ),
    "an attempt ahead of its session": (
        attempt(0, launched_at=999.0),
        TIME,
        INVALID,
        "attempt 0 was launched 1.000 s before its session began",
    ),
    "two sessions that overlap": (
        lambda run: two_sessions(run, 1003.0),
        TIME,
        INVALID,
        "session 1 began 0.500 s before session 0 was over",
    ),
    "two boots of one instant": (
        lambda run: two_sessions(run, 1003.55, "other"),
        TIME,
        INVALID,
        "and their clocks began at the same instant",
    ),
    "a session of another boot": (
        session(boot_id="other"),
        TIME,
        INVALID,
        "attempt 0 was ordered in boot boot, its session is of boot other",
    ),
    "attempts that overlap": (
        attempt(1, ended_at=1003.6),
        TIME,
        INVALID,
        "s before attempt 1 ended",
    ),
    "an attempt that ends before it begins": (
        attempt(1, ended_at=1001.7),
        TIME,
        INVALID,
        "s before it was launched",
    ),
    "a launch hidden": (
        hidden_launch,
        TIME,
        INVALID,
        "launch.json of attempt 0 was written before its session began",
    ),
    "an order after the launch": (order(1, at=1001.8), TIME, INVALID, "s after the launch"),
    "an order ahead of the death": (order(1, at=1001.5), TIME, INVALID, "s before attempt 0 ended"),
    "a failure an hour before the run": (
        lambda run: edit_json(
            run.fired_entry(0),
            lambda fired: fired | {"at": fired["at"] - 3600, "time": fired["time"] - 3600},
        ),
        TIME,
        INVALID,
        "s, when no supervisor was there",
    ),
    "a log after the end of its attempt": (
        lines(0, 1, shifted(1.0, "at", "time")),
        TIME,
        INVALID,
        "after the attempt was over",
    ),
    "another rank's time": (
        another_time,
        TIME,
        INVALID,
        "after rank 1 had ended it: they exchange gradients in between",
    ),
    "committed before it was submitted": (
        saved(24, "received", at=1004.87, time=1004.87 + WALL),
        TIME,
        INVALID,
        "before it was received",
    ),
    "retired before it was committed": (
        retired_early,
        TIME,
        INVALID,
        "step 24 of attempt 2 was retired 0.100000 s before it was committed",
    ),
    "a rank that did not wait for a save": (
        spans(1, 1, no_barrier),
        TIME,
        INVALID,
        "rank 1 waited for the save of step 12 in attempt 1",
    ),
    "more writing than time": (
        saved(24, "committed", write_s=0.2),
        TIME,
        INVALID,
        "s of writing between two instants",
    ),
    "no stall": (
        saved(24, "released", stall_s=0.0),
        TIME,
        INVALID,
        "stalled for 0.000000 s by its line, for 0.034000 s at least by the spans",
    ),
    "a stall divided by ten": (
        saved(24, "released", stall_s=0.0034),
        TIME,
        INVALID,
        "stalled for 0.003400 s by its line",
    ),
    "a stall over the step": (
        saved(24, "released", stall_s=0.05),
        TIME,
        INVALID,
        "and part of that is booked as compute",
    ),
    "a snapshot divided by ten": (
        saved(24, "submitted", snapshot_s=0.0004),
        TIME,
        INVALID,
        "0.000400 s of snapshot by its line, 0.004000 s by",
    ),
    "backpressure that never was": (
        saved(24, "submitted", backpressure_s=0.1),
        TIME,
        INVALID,
        "0.100000 s of backpressure by its line, 0.000000 s",
    ),
    "an enqueue that never was": (
        saved(24, "released", enqueue_s=0.1),
        TIME,
        INVALID,
        "0.100000 s of enqueue by its line, 0.000000 s by",
    ),
    "serializing that never was": (
        saved(24, "submitted", serialize_s=0.1),
        TIME,
        INVALID,
        "0.100000 s of serialize by its line, 0.000000 s",
    ),
    "a wait for a write booked as compute": (
        spans(2, 0, booked("write_wait", "compute")),
        TIME,
        INVALID,
        "at an instant that is booked as compute",
    ),
    "a snapshot booked as compute": (
        spans(2, 0, booked("snapshot", "compute")),
        TIME,
        INVALID,
        "of snapshot by its line, 0.000000 s by the spans",
    ),
    "a wait for rank 0 booked as compute": (
        spans(2, 1, booked("sync", "compute", 24)),
        TIME,
        INVALID,
        "and its spans do not have it",
    ),
    "a wait for rank 0 in the middle booked as compute": (
        spans(1, 1, booked("sync", "compute", 12)),
        TIME,
        INVALID,
        "and its spans do not have it",
    ),
    "computing booked as idle": (
        spans(1, 0, booked("compute", "idle")),
        TIME,
        INVALID,
        "step 7 of attempt 1 rank 0 was logged at an instant",
    ),
    "computing of rank 1 booked as idle": (
        spans(2, 1, booked("compute", "idle", 22)),
        TIME,
        INVALID,
        "step 22 of attempt 2 rank 1 was logged",
    ),
    "computing booked as another step's": (
        spans(2, 0, lambda span: span | {"global_step": max(19, span["global_step"] - 1)}),
        TIME,
        INVALID,
        "step 19 of attempt 2 rank 0 took 0.020000 s by its line, 0.820000 s by its spans",
    ),
    "a rank that books the supervisor's time": (
        spans(2, 1, booked("import", "launch")),
        TIME,
        INVALID,
        "has a span that cannot be: launch",
    ),
    "the spans of rank 1 removed": (
        lambda run: run.attempt(2).spans(1).unlink(),
        TIME,
        UNKNOWN,
        "attempt 2 left no spans of rank 1",
    ),
    "the spans of rank 1 damaged": (
        lambda run: run.attempt(2).spans(1).write_text("no json\n"),
        TIME,
        UNKNOWN,
        "logs/attempt-02/spans_rank1.jsonl cannot be read",
    ),
    "the spans of rank 1 cut": (
        spans_cut,
        TIME,
        INVALID,
        "the spans of attempt 2 rank 1 end before step 22 of attempt 2 rank 1 does",
    ),
    "the spans of rank 1 with a hole": (
        spans(2, 1, a_hole),
        TIME,
        INVALID,
        "leaves 0.004000 s open between sync and compute (step 22)",
    ),
    "the spans of rank 1 a second sooner": (
        spans(2, 1, shifted(-0.5, "start", "end")),
        TIME,
        INVALID,
        "rank 1 begin before the launch",
    ),
    "the spans of a third rank": (
        lambda run: shutil.copy(run.attempt(2).spans(1), run.attempt(2).spans(2)),
        TIME,
        INVALID,
        "rank 2 left spans, the",
    ),
    "a span backwards in steps": (
        spans(2, 1, at_step(23, global_step=20)),
        TIME,
        INVALID,
        "books step 20 after step 22",
    ),
    "steps done while loading": (
        spans(2, 1, without(category="compute")),
        TIME,
        INVALID,
        "leaves 0.020000 s open between load and sync",
    ),
    "a commit while idling": (
        idle_commit,
        TIME,
        INVALID,
        "step 24 was committed while rank 0 waited for it, which is booked as idle",
    ),
    "a span twice": (
        lambda run: append(
            run.attempt(2).spans(1),
            json.loads(run.attempt(2).spans(1).read_text().splitlines()[-1]),
        ),
        TIME,
        INVALID,
        "counted twice between idle and idle",
    ),
}
SPOILT_CLOCKS = {
    name: (folded(spoil), promise, status) for name, (spoil, promise, status, _) in CLOCKS.items()
}
