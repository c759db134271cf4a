"""Every value in the records of a run as they were loaded, changed one at a time: what is then
computed from them, and what each check says.

    python -m tests.runs.every_value            # compute what the book holds again, and write it
    anew: the diff shows what is said otherwise

every_field changes files: there the line chains, the seal and the reader see each change too. Here
the records alone are changed, so that each check is asked by itself, and a change takes a hundredth
of the time. Values are moved to where a comparison turns: to that of a neighbour, one further, one
less, by the tolerance of two clocks. The runs are real ones, and built ones of every other shape.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EcrlError
from ecrl_cli.history import lineage as walk
from ecrl_cli.history.divergence import loss_divergence
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.membership import (
    continuing_ranks,
    lost_lines,
    membership_history,
    was_stopped,
)
from ecrl_cli.history.timeline import last_evidence, timeline
from ecrl_cli.metrics.checkpoints import save_latency
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.metrics.recoveries import restarts
from ecrl_cli.records.journal import Lines
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.reference import FoundReferences, References, find_references
from ecrl_cli.verify.registry import run_checks
from ecrl_cli.verify.verdict import NOT_CHECKED, VALID, Finding
from ecrl_cli.verify.verification_input import Case
from tests.runs import every_field
from tests.runs.builder import (
    build_blk,
    build_clean,
    build_elastic,
    build_ref,
    build_refused,
    build_replicas,
    build_replicas_ref,
    build_unstruck,
)
from tests.runs.columns import in_columns, in_memory
from tests.runs.continued import (
    build_continued,
    build_evaluated,
    build_evaluated_ref,
    build_first_leg,
)
from tests.runs.every_field import RECORDED, ReadOnce, without_paths
from tests.runs.faulted import build_bereft, build_faulted
from tests.runs.spoilt_states import build_states
from tests.runs.survived import (
    build_lossy,
    build_redistributed,
    build_rollback,
    build_skipped,
    build_spared,
)

BOOK = RECORDED / "values"
# changes of a field in the book: judged by every check; of which the figures are computed
JUDGED, COMPUTED = 1, 3
# of the configuration, what figures are made of
COUNTED = "target_steps|continued_at|global_batch|world_size|elastic|recovery|checkpoint"
FIGURED = rf"\.(attempt_logs|supervisor|fired|dataset|stored\.config\.({COUNTED}))\b.*"
TOLERANCES = (0.05, 1e-6)  # seconds: of two clocks, of rounding
# Ids and folders differ each time; sizes and names are compared with files (every_field); an
# order's entries are those of the plan.
IGNORED = (
    r"\.stored\.\w+_id$|run_dir$"
    r"|\.config\.(scale|model|optimizer|schedule|storage|variant)\b|\.order\.pending\.\*.*\."
)
INSTANT = r"\.(at|start|end|(start|end|launch)ed_at)$"  # on the monotonic clock
LEFT_OUT = {"layout", "raw", "torn", "unread"}

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Change:
    """Of the run's records, what is at `place` becomes `value`; `field`: the place without
    numbers.
    """

    run: str
    place: Place
    value: Any
    field: str

    def __str__(self) -> str:
        return f"{self.run} {'.'.join(map(str, self.place))} = {_short(self.value)}"


Chapter = tuple[list[Change], Callable[[Change], str]]  # the changes, and the line of one


@dataclass
class Judged:
    """A run with what takes long to find out about it: its references and what is on its disk."""

    records: RunRecords
    references: FoundReferences

    @classmethod
    def of(cls, records: RunRecords) -> Judged:
        return cls(in_memory(records), find_references(records, References()))

    @cached_property
    def files(self) -> dict[str, Any]:
        """What a Case reads beside the records."""
        own = Case(self.records)
        return {"disk": own.disk, "spans": own.spans, "quarantined": own.quarantined}

    @property
    def reference(self) -> RunRecords | None:
        return next(iter(self.references.usable), None)

    def case(self, records: RunRecords) -> Case:
        made = Case(
            in_columns(records),
            self.reference,
            others=self.references.usable[1:],
            doubts=self.references.doubts,
        )
        made.__dict__.update(self.files)
        return made

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return run_checks(self.case(self.records))

    @cached_property
    def figures(self) -> dict[str, str]:
        return figures(in_columns(self.records), self.reference)

    def said(self, change: Change) -> str:
        """What each check says otherwise than of the untouched run: its status, its sentence and a
        digest of its evidence.
        """
        words = []
        for finding, before in zip(
            run_checks(self.case(with_value(self.records, change))), self.findings, strict=True
        ):
            if finding != before:
                message = (
                    ""
                    if finding.status in (VALID, NOT_CHECKED)
                    else f" {finding.message.split(': ', 1)[-1]}"
                )
                words.append(
                    f"{finding.promise} {finding.status}{message}"
                    f" ({_digest([finding.message, *finding.evidence])})"
                )
        return without_paths(" | ".join(words) or "the same", self.records.layout.root.parent)

    def computed(self, change: Change) -> str:
        """Which figures are other ones, and a digest of those."""
        before = self.figures
        try:
            now = figures(in_columns(with_value(self.records, change)), self.reference)
        except EcrlError as error:
            return f"{type(error).__name__}: {error.fact.partition(';')[0]}"
        other = {
            name: now.get(name)
            for name in sorted({*now, *before})
            if now.get(name) != before.get(name)
        }
        return (
            f"{', '.join(other)} ({_digest(f'{name} {value}' for name, value in other.items())})"
            if other
            else "the same"
        )


@contextmanager
def runs() -> Iterator[dict[str, Judged]]:
    """By name: the recorded runs, and built ones, each beside its reference."""
    with every_field.sweep() as sweep, tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        groups = {
            "built": (build_ref, build_blk, build_clean, build_refused),
            "struck": (build_ref, build_faulted),
            "bereft": (build_ref, build_bereft),
            "elastic": (build_unstruck, build_elastic),
            "replicas": (build_replicas_ref, build_replicas),
            "states": (lambda at: build_states(at, "ref"), lambda at: build_states(at, "blk")),
            "evaluated": (build_evaluated_ref, build_evaluated),
            "continued": (build_first_leg, build_continued),
            "survived": (
                build_lossy,
                build_rollback,
                build_redistributed,
                build_skipped,
                build_spared,
            ),
        }
        layouts = {path.name: RunLayout(path) for path in sorted(sweep.iterdir()) if path.is_dir()}
        for name, builders in groups.items():
            layouts |= {
                f"{name}/{layout.root.name}": layout
                for layout in (build(root / name) for build in builders)
            }
        with ReadOnce().opened():
            yield {name: Judged.of(load(layout)) for name, layout in layouts.items()}


def figures(records: RunRecords, reference: RunRecords | None) -> dict[str, str]:
    """By name, all that is computed from records alone."""
    path, times = walk.lineage(records), timeline(records)
    found: dict[str, Any] = {
        **metrics_document(records),
        "segments": path,
        "chained": path.chained,
        "pieces": tuple(times.pieces),
        "windows": times.windows,
        "overlaps": times.overlaps(),
        "restarts": restarts(records, times),
        "histories": membership_history(records),
        "lost lines": lost_lines(records, path),
        "stopped": [was_stopped(records.attempts, a) for a in records.attempts],
        "continuing": [continuing_ranks(records, a.attempt) for a in records.attempts],
        "furthest": [walk.furthest(records, a.attempt) for a in records.attempts],
        "last evidence": [last_evidence(logs, records) for logs in records.attempt_logs],
        "latency": save_latency(
            line for a in records.attempt_logs for line in a.checkpoints.events
        ),
    }
    if reference is not None:
        theirs = walk.lineage(reference)
        found["same sized"] = walk.same_sized(path, theirs)
        found["divergence"] = loss_divergence(
            walk.losses(records, path), walk.losses(reference, theirs)
        )
    return {name: repr(_rounded(value)) for name, value in found.items()}


def _rounded(value: Any) -> Any:
    """Numbers to nine digits: the last ones differ between versions of the libraries."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if is_dataclass(value):
        return tuple(_rounded(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def inside(value: Any) -> Iterator[tuple[str | int, Any]]:
    """What a value consists of, by the key under which `_replaced` finds it."""
    if is_dataclass(value):
        yield from (
            (each.name, getattr(value, each.name))
            for each in fields(value)
            if each.name not in LEFT_OUT
        )
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, tuple):
        yield from enumerate(value)


def leaves(value: Any, place: Place = (), field: str = "") -> Iterator[tuple[Place, str, Any, Any]]:
    """(place, field, value, what it is in) of every value in a run's records, those that hold
    others too.
    """
    for key, item in inside(value):
        here = "*" if isinstance(key, int) or isinstance(value, dict) else key
        kind = next(
            (
                f"[{getattr(item, word)}]"
                for word in ("event", "category")
                if isinstance(getattr(item, word, None), str)
            ),
            "",
        )
        name = f"{field}.{here}{kind}"
        if not isinstance(item, Lines):
            yield (*place, key), name, item, value
        yield from leaves(item, (*place, key), name)


def with_value(value: Any, change: Change) -> Any:
    return _replaced(value, change.place, change.value)


def _replaced(value: Any, place: Place, new: Any) -> Any:
    if not place:
        return new
    key, *rest = place
    if is_dataclass(value):
        made = _replaced(getattr(value, str(key)), tuple(rest), new)
        # which lines are gone or new: the raw ones go with them
        if isinstance(value, Lines) and len(made) != len(value.events):
            raw = dict(zip(map(id, value.events), value.raw, strict=True))
            return replace(value, events=made, raw=tuple(raw.get(id(each), b"") for each in made))  # type: ignore[type-var]
        return replace(value, **{str(key): made})  # type: ignore[type-var]
    if isinstance(value, dict):
        return value | {key: _replaced(value[key], tuple(rest), new)}
    return tuple(
        _replaced(item, tuple(rest), new) if number == key else item
        for number, item in enumerate(value)
    )


def other_values(
    value: Any, parent: Any, others: list[Any], instants: list[float], draw: random.Random
) -> list[Any]:
    """What a value is changed to, in a random order; `others`: what stands in the same field
    elsewhere in the run; `instants`: all on its clock.
    """
    kin = [other for other in others if type(other) is type(value) and other != value]
    found: list[Any] = draw.sample(kin, min(2, len(kin)))
    if isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found += [value + 1, value - 1]
    elif isinstance(value, float):
        near = sorted(
            {*(instants or kin)} - {value}, key=lambda other: (abs(other - value), other)
        )[:2]
        beside = [item for _, item in inside(parent) if type(item) is float and item != value]
        moved = [
            value + sign * by * share
            for by in TOLERANCES
            for sign in (1, -1)
            for share in (0.9, 1.1)
        ]
        found = [*near, *beside[:2], *draw.sample(moved, 3), value + 1.0, 0.0]
    elif isinstance(value, str):
        found += [""]
    elif isinstance(value, tuple):
        found = (
            [
                value[:-1],
                value[1:],
                value[::-1],
                (*value, *value[-1:]),
                (*value[:-2], *value[:-3:-1]),
            ]
            if value
            else kin[:2]
        )
    elif isinstance(value, dict):
        keys = list(value)
        found = [
            {key: value[key] for key in keys if key != gone}
            for gone in dict.fromkeys([*keys[:1], *keys[-1:]])
        ]
    elif value is None:
        found = [other for other in others if other is not None][:2]
    if value is not None and None in others:
        found.append(None)
    found = [
        each for number, each in enumerate(found) if each != value and each not in found[:number]
    ]
    draw.shuffle(found)
    return found


def changes(name: str, records: RunRecords) -> dict[str, list[Change]]:
    """By field, some changes of some occurrences of it in a run."""
    seen: dict[str, list[tuple[Place, Any, Any]]] = {}
    for place, field, value, parent in leaves(records):
        if not re.search(IGNORED, field):
            seen.setdefault(field, []).append((place, value, parent))
    instants = [
        value
        for field, occurrences in seen.items()
        if re.search(INSTANT, field)
        for _, value, _ in occurrences
        if value
    ]
    found: dict[str, list[Change]] = {}
    for field, occurrences in sorted(seen.items()):
        draw = random.Random(f"{name} {field}")
        others = [value for _, value, _ in occurrences]
        for place, value, parent in draw.sample(occurrences, min(4, len(occurrences))):
            new = other_values(
                value, parent, others, instants if re.search(INSTANT, field) else [], draw
            )[:3]
            found.setdefault(field, []).extend(Change(name, place, each, field) for each in new)
        draw.shuffle(found.get(field, []))
    return found


def chosen(judged: dict[str, Judged], most: int) -> list[Change]:
    """`most` changes of every field, of an instant twice as many, of one run after the other."""
    by_field: dict[str, list[list[Change]]] = {}
    for name, each in judged.items():
        for field, found in changes(name, each.records).items():
            by_field.setdefault(field, []).append(found)
    picked = []
    for field, found in by_field.items():
        random.Random(field).shuffle(found)
        each = 2 * most if re.search(INSTANT, field) else most
        picked += [
            own[turn] for turn in range(max(map(len, found))) for own in found if turn < len(own)
        ][:each]
    return sorted(picked, key=lambda change: (change.field, str(change)))


def judged(runs: dict[str, Judged]) -> Chapter:
    """Of every field a change, and what the checks say of it."""
    return chosen(runs, JUDGED), lambda change: f"{change} || {runs[change.run].said(change)}"


def computed(runs: dict[str, Judged]) -> Chapter:
    """Of every field of which figures are made some changes, and which figures become other
    ones.
    """
    found = [change for change in chosen(runs, COMPUTED) if re.fullmatch(FIGURED, change.field)]
    return found, lambda change: f"{change} || {runs[change.run].computed(change)}"


CHAPTERS = {"judged": judged, "computed": computed}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:30]}..({_digest([text])})"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:6]


def main() -> None:
    shutil.rmtree(BOOK, ignore_errors=True)
    BOOK.mkdir()
    with runs() as found:
        for name, chapter in CHAPTERS.items():
            picked, said = chapter(found)
            (BOOK / f"{name}.txt").write_text(
                "".join(f"{said(change)}\n" for change in picked), encoding="utf-8"
            )


if __name__ == "__main__":
    main()
