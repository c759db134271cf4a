"""How the checkpoints' journals, their folder, what recovery chose and when failures struck are
falsified, each with the promise that it breaks.

Of `blk`: attempt 0 commits step 6 and is killed after 9, attempt 1 commits 12 and 18 and is killed
after 20, attempt 2 commits 24 and retires 6.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import INVALID
from tests.runs.spoil import append, edit_json, edit_lines, line_at

Spoil = Callable[[RunLayout], Any]
NO_BAD, NO_LOSS, ACCOUNT, FAILURES = (
    "no-bad-checkpoint",
    "no-acknowledged-loss",
    "checkpoints-accounted",
    "failures-once",
)


def attempts(layout: RunLayout, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    def apply(document: dict[str, Any]) -> None:
        edit(document["attempts"])

    edit_json(layout.supervisor, apply)


def event(layout: RunLayout, attempt: int, word: str, step: int) -> dict[str, Any]:
    lines = map(json.loads, layout.attempt(attempt).checkpoints.read_text().splitlines())
    return next(line for line in lines if (line["event"], line["global_step"]) == (word, step))


def line_of(number: int, word: str, step: int, /, **changes: Any) -> Spoil:
    """Change one line of a checkpoint journal."""

    def edit(line: dict[str, Any]) -> dict[str, Any]:
        return line | changes if (line["event"], line["global_step"]) == (word, step) else line

    return lambda layout: edit_lines(layout.attempt(number).checkpoints, edit)


def retire(layout: RunLayout, *steps: int, attempt: int = 2) -> None:
    """Remove checkpoints and say that retention did."""
    for step in steps:
        shutil.rmtree(layout.checkpoints / f"step_{step:08d}", ignore_errors=True)
        append(
            layout.attempt(attempt).checkpoints,
            event(layout, 2, "retired", 6)
            | {
                "global_step": step,
                "attempt": attempt,
                "path": None,
            },
        )


def retired_too_soon(layout: RunLayout) -> None:
    """Step 6 after the commit of step 12, instead of after that of step 24."""
    line = event(layout, 2, "retired", 6)
    edit_lines(
        layout.attempt(2).checkpoints, lambda found: None if found["event"] == "retired" else found
    )
    log = layout.attempt(1).checkpoints
    lines = log.read_text().splitlines()
    where = next(number for number, text in enumerate(lines) if '"committed"' in text) + 1
    log.write_text(
        "\n".join([*lines[:where], json.dumps(line | {"attempt": 1}), *lines[where:], ""])
    )


def resumed_stale(layout: RunLayout, rejected: list[dict[str, Any]]) -> None:
    """Attempt 2 resumes from step 12."""
    where = {
        "path": "checkpoints/step_00000012",
        "commit_sha256": event(layout, 1, "committed", 12)["commit_sha256"],
    }
    attempts(
        layout,
        lambda found: found[2].update(resumed_from=where, resumed_from_step=12, rejected=rejected),
    )
    edit_json(
        layout.attempt(2).launch, lambda order: order | {"resume_from": where, "resume_step": 12}
    )


def resumed_under_another_name(layout: RunLayout) -> None:
    """Attempt 2 names the commit of step 18, and the path of step 12."""
    where = {
        "path": "checkpoints/step_00000012",
        "commit_sha256": event(layout, 1, "committed", 18)["commit_sha256"],
    }
    attempts(layout, lambda found: found[2].update(resumed_from=where))
    edit_json(layout.attempt(2).launch, lambda order: order | {"resume_from": where})


def stale_behind_a_retirement(layout: RunLayout) -> None:
    line = event(layout, 1, "committed", 18)
    append(layout.attempt(1).checkpoints, line | {"event": "retired"})
    resumed_stale(layout, [])


def refused(
    step: int, layer: str = "hash", reason: str = "model.safetensors does not match its BLAKE3"
) -> dict[str, Any]:
    return {"path": f"checkpoints/step_{step:08d}", "layer": layer, "reason": reason}


def refuses(attempt: int, *rejected: dict[str, Any]) -> Spoil:
    return lambda layout: attempts(
        layout, lambda found: found[attempt].update(rejected=list(rejected))
    )


def anew_and_refused(layout: RunLayout) -> None:
    attempts(
        layout,
        lambda found: found[1].update(
            resumed_from=None, resumed_from_step=0, rejected=[refused(6)]
        ),
    )
    edit_json(
        layout.attempt(1).launch, lambda order: order | {"resume_from": None, "resume_step": 0}
    )


def replaced(layout: RunLayout) -> None:
    """Step 18 was committed once more before attempt 2, which resumed from the first of the two."""
    log = layout.attempt(1).checkpoints
    for word in ("submitted", "received", "committed"):
        append(
            log,
            event(layout, 1, word, 18)
            | ({"commit_sha256": "5" * 64} if word == "committed" else {}),
        )


def exchange_instants(layout: RunLayout) -> None:
    first, second = (json.loads(layout.fired_entry(index).read_text()) for index in (0, 1))
    for index, other in ((0, second), (1, first)):
        edit_json(
            layout.fired_entry(index),
            lambda fired, other=other: fired | {"at": other["at"], "time": other["time"]},
        )


def fired(index: int, instant: Callable[[RunLayout], float]) -> Spoil:
    def apply(layout: RunLayout) -> None:
        at = instant(layout)
        edit_json(layout.fired_entry(index), lambda found: found | {"at": at, "time": at})

    return apply


def ended(layout: RunLayout, attempt: int) -> float:
    return float(json.loads(layout.supervisor.read_text())["attempts"][attempt]["ended_at"])


def pending(attempt: int, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Spoil:
    return lambda layout: edit_json(
        layout.attempt(attempt).launch, lambda order: order | {"pending": edit(order["pending"])}
    )


def moved_to_front(layout: RunLayout) -> None:
    """The acknowledgement of step 12 before everything else."""
    log = layout.attempt(1).checkpoints
    lines = log.read_text().splitlines()
    first = next(text for text in lines if '"committed"' in text)
    log.write_text("\n".join([first, *(text for text in lines if text != first), ""]))


def pointer(**changes: Any) -> Spoil:
    return lambda layout: edit_json(
        layout.checkpoints / "latest.json", lambda found: found | changes
    )


def link(name: str) -> Spoil:
    def apply(layout: RunLayout) -> None:
        (layout.checkpoints / "latest_ok").unlink()
        (layout.checkpoints / "latest_ok").symlink_to(name)

    return apply


def restored(layout: RunLayout) -> None:
    shutil.copytree(layout.checkpoints / "step_00000012", layout.checkpoints / "step_00000006")


def again(word: str, step: int, /, **changes: Any) -> Spoil:
    return lambda layout: append(
        layout.attempt(1).checkpoints, event(layout, 1, word, step) | changes
    )


SPOILT_STORE: dict[str, tuple[Spoil, str, str]] = {
    "the newest checkpoint retired": (lambda run: retire(run, 24), NO_LOSS, INVALID),
    "all checkpoints retired": (lambda run: retire(run, 12, 18, 24), NO_LOSS, INVALID),
    "all checkpoints but one retired": (lambda run: retire(run, 12, 18), NO_LOSS, INVALID),
    "one checkpoint too few kept": (lambda run: retire(run, 12), NO_LOSS, INVALID),
    "a checkpoint retired too soon": (retired_too_soon, NO_LOSS, INVALID),
    "a retired checkpoint on no record": (
        lambda run: edit_lines(
            run.attempt(2).checkpoints, lambda line: None if line["event"] == "retired" else line
        ),
        NO_LOSS,
        INVALID,
    ),
    "resumed from a stale one behind a false retirement": (
        stale_behind_a_retirement,
        NO_BAD,
        INVALID,
    ),
    "resumed from a stale one behind a false refusal": (
        lambda run: resumed_stale(run, [refused(18)]),
        NO_BAD,
        INVALID,
    ),
    "resumed from a stale one behind a false loss": (
        lambda run: resumed_stale(run, [refused(18, "file", "is gone")]),
        NO_BAD,
        INVALID,
    ),
    "resumed from the path of another step": (resumed_under_another_name, NO_BAD, INVALID),
    "a refusal of what nobody saved": (refuses(2, refused(99)), NO_BAD, INVALID),
    "a refusal of what is older": (refuses(2, refused(12)), NO_BAD, INVALID),
    "a refusal of what it resumed from": (refuses(2, refused(18)), NO_BAD, INVALID),
    "a loss of what was not there": (refuses(1, refused(12, "file", "is gone")), NO_BAD, INVALID),
    "began anew and refused all": (anew_and_refused, NO_BAD, INVALID),
    "resumed from a replaced commit of the same step": (replaced, NO_BAD, INVALID),
    "fired an hour before the run": (fired(0, lambda run: -2600.0), FAILURES, INVALID),
    "instants of two failures exchanged": (exchange_instants, FAILURES, INVALID),
    "fired after the death that it caused": (
        fired(0, lambda run: ended(run, 0) + 0.05),
        FAILURES,
        INVALID,
    ),
    "fired after its attempt was over": (
        fired(1, lambda run: ended(run, 1) + 5.0),
        FAILURES,
        INVALID,
    ),
    "fired before its step was done": (
        fired(0, lambda run: line_at(run.attempt(0).rank(1), 8)["at"]),
        FAILURES,
        INVALID,
    ),
    "fired at another step": (
        lambda run: edit_json(run.fired_entry(0), lambda found: found | {"at_step": 12}),
        FAILURES,
        INVALID,
    ),
    "armed with nothing": (pending(0, lambda entries: []), FAILURES, INVALID),
    "armed with one entry less": (pending(1, lambda entries: []), FAILURES, INVALID),
    "armed with a foreign entry": (
        pending(0, lambda entries: [entries[0] | {"global_step": 10}, entries[1]]),
        FAILURES,
        INVALID,
    ),
    "armed with an entry too many": (
        pending(2, lambda entries: [{"index": 7, "kind": "kill", "rank": 0, "global_step": 23}]),
        FAILURES,
        INVALID,
    ),
    "a claim under another entry's name": (
        lambda run: run.fired_entry(1).rename(run.fired_entry(7)),
        FAILURES,
        INVALID,
    ),
    "killed and told as stopped": (
        lambda run: attempts(
            run, lambda found: found[0].update(outcome="stopped", rank=0, exit_code=0, signal=None)
        ),
        FAILURES,
        INVALID,
    ),
    "killed and told as stopped at the end": (
        lambda run: attempts(
            run,
            lambda found: found[0].update(
                outcome="stopped", rank=None, exit_code=None, signal=None
            ),
        ),
        FAILURES,
        INVALID,
    ),
    "an event that no checkpoint has": (
        line_of(1, "released", 12, event="relaxed"),
        ACCOUNT,
        INVALID,
    ),
    "committed above the line that submits it": (moved_to_front, ACCOUNT, INVALID),
    "more in flight than there are slots": (
        line_of(1, "submitted", 12, inflight=99),
        ACCOUNT,
        INVALID,
    ),
    "committed with one byte": (line_of(2, "committed", 24, bytes=1), ACCOUNT, INVALID),
    "committed with no bytes": (line_of(2, "committed", 24, bytes=0), ACCOUNT, INVALID),
    "submitted with other bytes": (line_of(2, "submitted", 24, bytes=5), ACCOUNT, INVALID),
    "committed under the path of another": (
        line_of(1, "committed", 18, path="checkpoints/step_00000012"),
        ACCOUNT,
        INVALID,
    ),
    "committed under no path": (line_of(1, "committed", 18, path=None), ACCOUNT, INVALID),
    "a stall of less than nothing": (line_of(1, "released", 12, stall_s=-1.0), ACCOUNT, INVALID),
    "longer to write than there was time": (
        line_of(1, "committed", 12, write_s=5.0),
        ACCOUNT,
        INVALID,
    ),
    "committed before it was received": (line_of(1, "committed", 12, at=1000.0), ACCOUNT, INVALID),
    "received twice": (again("received", 12), ACCOUNT, INVALID),
    "a line of another attempt": (line_of(1, "received", 12, attempt=0), ACCOUNT, INVALID),
    "retired what nobody saved": (lambda run: retire(run, 3), ACCOUNT, INVALID),
    "retired and still there": (restored, ACCOUNT, INVALID),
    "an empty checkpoint folder": (
        lambda run: (run.checkpoints / "step_00000030").mkdir(),
        ACCOUNT,
        INVALID,
    ),
    "latest.json names what is not there": (
        pointer(path="step_00000030", global_step=30),
        ACCOUNT,
        INVALID,
    ),
    "latest.json names another step than its path": (pointer(global_step=18), ACCOUNT, INVALID),
    "latest.json names an older one": (
        pointer(path="step_00000018", global_step=18),
        ACCOUNT,
        INVALID,
    ),
    "latest_ok names what is not there": (link("step_00000030"), ACCOUNT, INVALID),
    "latest_ok names an older one": (link("step_00000018"), ACCOUNT, INVALID),
    "the store of an attempt that never was": (
        lambda run: (run.checkpoints / ".attempt").write_text('{"attempt":9}'),
        ACCOUNT,
        INVALID,
    ),
    "the store of an attempt that was over": (
        lambda run: (run.checkpoints / ".attempt").write_text('{"attempt":1}'),
        ACCOUNT,
        INVALID,
    ),
}
