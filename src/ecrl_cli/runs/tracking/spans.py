"""The tracker `otel`: sessions, attempts, their starting up, and saves as spans of OpenTelemetry.

The SDK's own environment variables say where they go: OTEL_TRACES_EXPORTER (`otlp` by default,
`console`: into `place`/spans.jsonl, `none`), OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and the
rest of https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from ecrl_cli.errors import ConfigError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import PHASES, Timeline, timeline
from ecrl_cli.records.events import Attempt, SupervisorSession
from ecrl_cli.runs.tracking.sinks import Values

EXPORTER = "OTEL_TRACES_EXPORTER"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FILE = "spans.jsonl"
FLUSH_EVERY = 500  # spans: a queue of the SDK holds 2,048 and drops what comes after
ENDS = ("committed", "failed", "lost")  # of a save that was submitted


class OneTrace(RandomIdGenerator):
    """All spans of a run, over all its sessions, are of one trace: its id is the run's."""

    def __init__(self, ident: str) -> None:
        self._trace = int.from_bytes(hashlib.sha256(ident.encode()).digest()[:16], "big") or 1

    def generate_trace_id(self) -> int:
        return self._trace


class OpenTelemetry:
    """Tells the spans of sessions that ended since it was asked last; steps are no spans."""

    def __init__(self, place: str, name: str, ident: str, config: Mapping[str, Any]) -> None:
        self._place = Path(place)
        self._place.mkdir(parents=True, exist_ok=True)
        self._told = self._place / "sessions"
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "ecrl"}
        resource = Resource.create({**named, "ecrl.run": name, "ecrl.run_id": ident})
        self._provider = TracerProvider(resource=resource, id_generator=OneTrace(ident))
        self._file: TextIO | None = None
        exporter = self._exporter(os.environ.get(EXPORTER, "otlp"))
        if exporter is not None:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ecrl")
        self._count = 0

    def _exporter(self, name: str) -> SpanExporter | None:
        if name == "none":
            return None
        if name == "console":
            self._file = (self._place / FILE).open("a", encoding="utf-8")
            return ConsoleSpanExporter(
                out=self._file, formatter=lambda span: span.to_json(None) + "\n"
            )
        if name == "otlp":
            asked = [os.environ[key] for key in PROTOCOLS if os.environ.get(key)]
            name = "otlp_proto_" + (asked or ["http/protobuf"])[0].partition("/")[0]
        for entry in entry_points(group="opentelemetry_traces_exporter", name=name):
            made: SpanExporter = entry.load()()
            return made
        raise ConfigError(
            EXPORTER,
            f"no exporter {name} is installed",
            "pip install 'ecrl[otel]' brings the one for OTLP over HTTP",
        )

    def step(self, step: int, values: Values) -> None: ...

    def summary(self, step: int, values: Values, words: Mapping[str, str]) -> None: ...

    def records(self, records: RunRecords) -> None:
        """The run as it stands when a session of it ends; a session that was told is not told
        again.
        """
        account = timeline(records)
        told = int(self._told.read_text(encoding="utf-8")) if self._told.exists() else 0
        for number, session in enumerate(records.sessions):
            if number >= told:
                self._session(number, session, records, account)
        self._told.write_text(str(len(records.sessions)), encoding="utf-8")

    def close(self) -> None:
        self._provider.shutdown()
        if self._file is not None:
            self._file.close()

    def _session(
        self, number: int, session: SupervisorSession, records: RunRecords, account: Timeline
    ) -> None:
        clock = _WallClock(session)
        span = self._begin("session", clock.at(session.started_at), None, {"session": number})
        for attempt in records.attempts:
            if attempt.session == number:
                self._attempt(attempt, records, account, clock, span)
        ended = account.windows[number][1] if session.ended_at is None else session.ended_at
        self._end(span, clock.at(ended))

    def _attempt(
        self,
        attempt: Attempt,
        records: RunRecords,
        account: Timeline,
        clock: _WallClock,
        parent: Span,
    ) -> None:
        names = ("attempt", "world_size", "outcome", "exit_code", "signal", "resumed_from_step")
        facts = {name: getattr(attempt, name) for name in (*names, "first_step", "last_step")}
        pieces = [piece for piece in account.pieces if piece.attempt == attempt.attempt]
        ended = attempt.ended_at
        if ended is None:
            ended = max((piece.end for piece in pieces), default=attempt.launched_at)
        span = self._begin("attempt", clock.at(attempt.launched_at), parent, facts)
        if attempt.outcome in ("died", "hung"):
            span.set_status(trace.StatusCode.ERROR, attempt.outcome)
        for fault in records.fired:
            if fault.attempt == attempt.attempt:
                told = {"ecrl.rank": fault.rank, "ecrl.step": fault.global_step}
                span.add_event(f"fault {fault.kind}", told, timestamp=clock.at(fault.at))
        for piece in pieces:
            if piece.category in PHASES:
                # idle time counts for the attempt that follows
                around = parent if piece.start < attempt.launched_at else span
                phase = self._begin(piece.category, clock.at(piece.start), around, {})
                self._end(phase, clock.at(piece.end))
        self._saves(attempt, records, clock, span)
        self._end(span, clock.at(ended))

    def _saves(
        self, attempt: Attempt, records: RunRecords, clock: _WallClock, parent: Span
    ) -> None:
        submitted = {}
        for line in records.logs(attempt.attempt).checkpoints.events:
            if line.event == "submitted":
                submitted[line.global_step] = line
            elif line.event in ENDS and line.global_step in submitted:
                begun = submitted.pop(line.global_step)
                facts = {"step": line.global_step, "bytes": begun.bytes, "end": line.event}
                span = self._begin("save", clock.at(begun.at), parent, facts)
                if line.event != "committed":
                    span.set_status(trace.StatusCode.ERROR, line.event)
                self._end(span, clock.at(line.at))

    def _begin(self, name: str, at: int, parent: Span | None, facts: Mapping[str, Any]) -> Span:
        told = {f"ecrl.{key}": value for key, value in facts.items() if value is not None}
        within = None if parent is None else trace.set_span_in_context(parent)
        span = self._tracer.start_span(name, context=within, start_time=at, attributes=told)
        assert isinstance(span, Span)
        return span

    def _end(self, span: Span, at: int) -> None:
        span.end(end_time=at)
        self._count += 1
        if self._count % FLUSH_EVERY == 0:
            self._provider.force_flush()


class _WallClock:
    """Nanoseconds since 1970 of an instant (monotonic seconds) in a session."""

    def __init__(self, session: SupervisorSession) -> None:
        self._offset = session.time - session.started_at

    def at(self, instant: float) -> int:
        return int((instant + self._offset) * 1e9)
