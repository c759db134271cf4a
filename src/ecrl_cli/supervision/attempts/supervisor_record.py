"""Keeps supervisor.json up to date: every change replaces the whole file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError, RecordError
from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import phases, timeline
from ecrl_cli.linux.clock import boot_id, both_clocks, monotonic, wall
from ecrl_cli.records.digests import composed_sha256, source_sha256
from ecrl_cli.records.events import (
    SCHEMA_VERSION,
    Attempt,
    FinalState,
    RankLine,
    SupervisorRecord,
    SupervisorSession,
)
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config, write_run_config
from ecrl_cli.records.safe_read import MAX_JOURNAL, parsed, read_whole
from ecrl_cli.records.seal import reopen
from ecrl_cli.records.survivor_records import SURVIVED
from ecrl_cli.storage.files import write_json, write_whole
from ecrl_cli.supervision.attempts.restart_policy import restarts


def refresh_run_config(config: RunConfig, layout: RunLayout) -> None:
    """Reopen a run that is resumed: drop its seal and update config.json with settings that may
    change without making it another run (such as data paths). Where a finished run goes on to a
    higher target, the seal of its end is kept under that step.

    Only while holding the run's lock.
    """
    before = read_run_config(layout).config
    if config.continued_at and config.continued_at != before.continued_at and layout.seal.exists():
        write_whole(layout.earlier_seal(before.target_steps), layout.seal.read_bytes())
    reopen(layout)
    _take_composition(layout)
    if read_run_config(layout).config != replace(config, run_dir=""):
        write_run_config(layout, config)


def _take_composition(layout: RunLayout) -> None:
    """Put what Hydra composed for this command in the place of what the run went by before."""
    for path in sorted(layout.composed_next.glob("*.yaml")):
        write_whole(layout.hydra / path.name, path.read_bytes(), durable=False)
        path.unlink()


class SupervisorRecordWriter:
    """Writes the record of one run. Call `begin` first: it appends a session and ends attempts that
    a killed supervisor left as running.
    """

    def __init__(self, layout: RunLayout, run_id: str, target_steps: int) -> None:
        self._layout = layout
        empty = SupervisorRecord(SCHEMA_VERSION, run_id, target_steps, "running", 0, (), ())
        self.record = (
            replace(read_record(layout), target_steps=target_steps)
            if layout.supervisor.exists()
            else empty
        )

    @property
    def session(self) -> int:
        """The index of this supervisor session, as in `Attempt.session`."""
        return len(self.record.sessions) - 1

    def at_target(self, config: RunConfig) -> bool:
        """Whether the last attempt completed at the target of `config`: a finished run may have
        been given a higher one.
        """
        last = self.record.attempts[-1:]
        if not last or last[0].outcome != "completed":
            return False
        final = self._layout.attempt(last[0].attempt).final
        return (
            not config.continued_at
            or decode(FinalState, read_json(final)).global_step == config.target_steps
        )

    def begin(self) -> None:
        attempts = tuple(
            self._abandoned(a) if a.outcome == "running" else a for a in self.record.attempts
        )
        session = SupervisorSession(
            monotonic(),
            wall(),
            boot_id(),
            code=source_sha256(),
            composed=composed_sha256(self._layout),
        )
        self._write(
            attempts=with_survived_as_died(attempts),
            sessions=(*self.record.sessions, session),
            terminal_status="running",
            reason="",
        )

    def open(self, attempt: Attempt) -> None:
        self._write(attempts=(*self.record.attempts, replace(attempt, session=self.session)))

    def update(self, **changes: Any) -> Attempt:
        """Change fields of the last attempt and return it."""
        last = replace(self.record.attempts[-1], **changes)
        self._write(attempts=(*self.record.attempts[:-1], last))
        return last

    def end(
        self,
        status: str,
        reason: str,
        signals: tuple[int, ...] | None = None,
        writer_deaths: int | None = None,
    ) -> SupervisorRecord:
        """Write the terminal status, the end of the session with its signals and writer deaths, and
        the phases of every attempt, all at once: a supervisor killed meanwhile leaves a session
        without an end, and none whose phases are missing. Returns the record.
        """
        at, time = both_clocks()
        ended = replace(
            self.record.sessions[-1],
            ended_at=at,
            ended_time=time,
            signals=signals,
            writer_deaths=writer_deaths,
        )
        changes: dict[str, Any] = {
            "terminal_status": status,
            "reason": self._layout.relative_text(reason),
            "sessions": (*self.record.sessions[:-1], ended),
            "attempts": with_survived_as_died(self.record.attempts),
        }
        changes["attempts"] = with_phases(self._layout, replace(self.record, **changes))
        self._write(**changes)
        return self.record

    def _abandoned(self, attempt: Attempt) -> Attempt:
        first, last = step_range(self._layout, attempt.attempt)
        outcome = "completed" if self._layout.attempt(attempt.attempt).final.exists() else "died"
        return replace(attempt, outcome=outcome, first_step=first, last_step=last)

    def _write(self, **changes: Any) -> None:
        record = replace(self.record, **changes)
        self.record = replace(record, restarts=restarts(record.attempts))
        write_json(self._layout.supervisor, encode(self.record))


def read_record(layout: RunLayout) -> SupervisorRecord:
    """supervisor.json. RecordError if it is damaged or has another schema version."""
    value = read_json(layout.supervisor)
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(
            "supervisor.json",
            f"schema version {version}, this ECRL reads {SCHEMA_VERSION}",
            "use the version that wrote the run",
        )
    try:
        return decode(SupervisorRecord, value)
    except (KeyError, TypeError) as error:
        raise RecordError(
            "supervisor.json", f"not a supervisor's record ({error})", "restore the file"
        ) from error


def with_survived_as_died(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """`attempts`, the last as `died` if it ended as `survived`: no attempt took over its survivors'
    state, so the next one starts from a checkpoint.
    """
    last = attempts[-1:]
    return (
        (*attempts[:-1], replace(last[0], outcome="died"))
        if last and last[0].outcome == SURVIVED
        else attempts
    )


def step_range(layout: RunLayout, attempt: int) -> tuple[int | None, int | None]:
    """The first and last step that rank 0 logged in `attempt`, ignoring an incomplete last line;
    (None, None) if it logged none.
    """
    path = layout.attempt(attempt).rank(0)
    lines = read_whole(path, MAX_JOURNAL).split(b"\n")[:-1] if path.exists() else []
    return (_step(lines[0]), _step(lines[-1])) if lines else (None, None)


def with_phases(layout: RunLayout, record: SupervisorRecord) -> tuple[Attempt, ...]:
    """The attempts of `record` with the seconds of each phase of their start; unchanged if the logs
    cannot be read.
    """
    try:
        records = replace(load(layout), supervisor=record)
        measured = phases(records, timeline(records))
    except EcrlError:
        return record.attempts
    return tuple(replace(a, phases=measured.get(a.attempt, {})) for a in record.attempts)


def _step(line: bytes) -> int:
    try:
        return decode(RankLine, parsed(line)).global_step
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            "rank0.jsonl", f"not a rank line ({error})", "restore the file"
        ) from error
