"""Every field of every record of a run, changed in several ways, one at a time: what the judge then
says is kept as a book of verdicts.

    python -m tests.runs.every_field            # judge what the book holds again, and write it
    anew: the diff shows what is judged otherwise python -m tests.runs.every_field --all      #
    judge every change of every run (minutes each): HOLE is written before what no one could excuse

The runs are real ones (tests/recorded). A field is known by its file, its kind of line and its
name: `logs/attempt-N/rankN.jsonl loss`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.disk_state import StoredCheckpoint, on_disk
from ecrl_cli.verify.reference import References, bounded
from ecrl_cli.verify.verdict import NOT_CHECKED, VALID, Finding, Verdict
from ecrl_cli.verify.verify_run import verify_run

RECORDED = Path(__file__).parent.parent / "recorded"
BOOK = RECORDED / "verdicts"
RUNS = RECORDED / "v0.2.0.tar.xz"
# changes of a field in the book, of different runs as far as it goes; else 1
EACH = {"logs": 3, "supervisor.json": 4, "checkpoints": 1, "fired": 1}
# the seal would see every change, and that alone
LEFT_OUT = ("seal.json", "verdict.json", ".hydra")
REMOVED = "(removed)"
PATIENCE_S = 60  # a thousand times what a verdict takes

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Change:
    """Of the document in `file`, or of its line `line`, what is at `place` becomes `value`;
    REMOVED: is gone. Without a place it is the whole line or file, with `value` instead: text.
    """

    run: str
    file: str
    line: int | None
    place: Place
    value: Any
    field: str
    before: Any = None  # what was there

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line + 1}"
        return f"{self.run} {where} {'.'.join(map(str, self.place)) or '-'} = {short(self.value)}"


def short(value: Any) -> str:
    text = value if value == REMOVED else json.dumps(value)
    return (
        text
        if len(text) <= 40
        else f"{text[:30]}..({hashlib.sha256(text.encode()).hexdigest()[:6]})"
    )


@contextmanager
def sweep() -> Iterator[Path]:
    """A folder with the recorded runs, without their seals."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(RUNS) as archive:
            archive.extractall(folder, filter="data")
        found = Path(folder) / "sweep"
        for path in [path for name in LEFT_OUT for path in found.glob(f"*/{name}")]:
            path.unlink()
        yield found


def documents(run: Path) -> Iterator[tuple[str, int | None, Any]]:
    """(file, number of the line, content) of every record."""
    for path in sorted(run.rglob("*.json*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".json":
            yield name, None, json.loads(path.read_bytes())
        else:
            for number, line in enumerate(path.read_text().splitlines()):
                yield name, number, json.loads(line)


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value in a document, those that hold others too, but not the document itself."""
    if place:
        yield place, value
    items: Iterable[tuple[str | int, Any]] = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from leaves(item, (*place, key))


def kind_of(file: str, line: Any) -> str:
    numberless = re.sub(r"\d+", "N", file)
    word = next(
        (
            str(line[key])
            for key in ("event", "category", "kind")
            if isinstance(line, dict) and key in line
        ),
        "",
    )
    return f"{numberless} {word}".strip()


def named(place: Place) -> str:
    """Numbers and names of tensors (`parameters.fc.weight`) are `*`."""
    return ".".join(
        "*" if isinstance(key, int) or key.isdigit() or "." in key else re.sub(r"\d+", "N", key)
        for key in place
    )


def changed_values(value: Any, others: list[Any], draw: random.Random) -> list[Any]:
    """What a value may be changed to, in a random order; `others`: what stands elsewhere in the
    same field.
    """
    found: list[Any] = [REMOVED] if value else []  # what is not there is read as empty, null or 0
    found += [None] if value is not None else [0, "x"]
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int):
        found += [value + 1, value - 1, -value - 2, value * 3 + 7]
    elif isinstance(value, float):
        found += [value + 1e-3, value * 1.5 + 0.25, value - 0.4, -value - 1e-6, 0.0]
    elif isinstance(value, str):
        found += [value[:-1] + ("0" if value[-1:] != "0" else "1"), "", "other"]
    elif isinstance(value, list):
        found += [value[:-1], [*value, *value[-1:]], value[::-1]] if value else [[0]]
    elif isinstance(value, dict):
        found += [{}]
    different = [other for other in others if other != value]
    found += draw.sample(different, min(2, len(different)))
    found = [
        each for number, each in enumerate(found) if each != value and each not in found[:number]
    ]
    draw.shuffle(found)
    return found


def changes(run: Path) -> list[Change]:
    """Of each field of `run` some occurrences, each changed in two ways; lines removed, repeated
    and exchanged; files removed and emptied.
    """
    seen: dict[str, list[tuple[str, int | None, Place, Any]]] = {}
    files: dict[str, int] = {}
    for file, line, content in documents(run):
        files[file] = -1 if line is None else line
        for place, value in leaves(content):
            seen.setdefault(f"{kind_of(file, content)} {named(place)}", []).append(
                (file, line, place, value)
            )
    found = []
    for field, occurrences in sorted(seen.items()):
        draw = random.Random(f"{run.name} {field}")
        chosen = [
            occurrences[0],
            occurrences[-1],
            *draw.sample(occurrences, min(2, len(occurrences))),
        ]
        others = [value for *_, value in occurrences]
        for number in range(len(chosen)):
            file, line, place, value = chosen[number]
            if chosen[number] in chosen[:number]:
                continue
            found += [
                Change(run.name, file, line, place, new, field, value)
                for new in changed_values(value, others, draw)[:2]
            ]
    for file, last in sorted(files.items()):
        draw = random.Random(f"{run.name} {file}")
        kind = re.sub(r"\d+", "N", file)
        found.append(Change(run.name, file, None, (), REMOVED, f"{kind} (file)"))
        for line in sorted({0, last, draw.randint(0, last)}) if last >= 0 else ():
            text = (run / file).read_text().splitlines()
            found.append(Change(run.name, file, line, (), REMOVED, f"{kind} (line)"))
            found.append(
                Change(run.name, file, line, (), f"{text[line]}\n{text[line]}", f"{kind} (line)")
            )
            if line < last:
                found.append(
                    Change(
                        run.name,
                        file,
                        line,
                        (),
                        f"{text[line + 1]}\n{text[line]}",
                        f"{kind} (line)",
                    )
                )
    return found


@contextmanager
def applied(run: Path, change: Change) -> Iterator[None]:
    """`run` with the change; after it, the file is as it was."""
    path = run / change.file
    before, stat = path.read_bytes(), path.stat()
    try:
        if change.line is None:
            if not change.place:
                path.unlink()
            else:
                path.write_text(json.dumps(with_value(json.loads(before), change)))
        else:
            lines = before.decode().splitlines()
            if change.place:
                lines[change.line] = json.dumps(
                    with_value(json.loads(lines[change.line]), change), separators=(",", ":")
                )
            elif change.value == REMOVED:
                del lines[change.line]
            else:
                lines[
                    change.line : change.line
                    + 1
                    + (lines[change.line] not in change.value.splitlines()[0])
                ] = change.value.splitlines()
            path.write_text("".join(line + "\n" for line in lines))
        yield
    finally:
        path.write_bytes(before)
        path.chmod(stat.st_mode)


def with_value(content: Any, change: Change) -> Any:
    *above, last = change.place
    inner = content
    for key in above:
        inner = inner[key]
    if change.value == REMOVED:
        del inner[last]
    else:
        inner[last] = change.value
    return content


class ReadOnce:
    """While it is open, the runs that serve as references are read once, with their checkpoints:
    nobody changes them.
    """

    def __init__(self) -> None:
        self._loaded: dict[Path, RunRecords] = {}
        self._stored: dict[tuple[Path, bool], tuple[StoredCheckpoint, ...]] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        with (
            patch("ecrl_cli.verify.reference.bounded", self._bounded),
            patch("ecrl_cli.verify.trajectory.on_disk", self._on_disk),
        ):
            yield

    def _bounded(self, layout: RunLayout) -> RunRecords:
        if not layout.root.name.endswith("ref"):  # the run that is judged
            return bounded(layout)
        return self._loaded.get(layout.root) or self._loaded.setdefault(
            layout.root, bounded(layout)
        )

    def _on_disk(
        self, records: RunRecords, *, contents: bool = True
    ) -> tuple[StoredCheckpoint, ...]:
        key = records.layout.root, contents
        if self._loaded.get(records.layout.root) is not records:
            return on_disk(records, contents=contents)
        if key not in self._stored:
            self._stored[key] = on_disk(records, contents=contents)
        return self._stored[key]


class Judge:
    """Judges runs of a sweep; the undisturbed ones are read once, but where they are changed
    themselves.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.known, self.once = folder, References(), ReadOnce()
        self.untouched: dict[str, tuple[Finding, ...]] = {}

    def verdict(self, change: Change) -> str:
        """One line: the status; each promise that is not kept with its first reason, how many more
        there are, and a digest of those; which of the others say something else than of the
        untouched run.
        """
        run = self.folder / change.run
        if change.run not in self.untouched:
            self.untouched[change.run] = verify_run(run, known=References()).findings
        with applied(run, change):
            changed_itself = change.run.endswith("ref")
            known = References() if changed_itself else self.known
            signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(PATIENCE_S)
            try:
                with nullcontext() if changed_itself else self.once.opened():
                    return line_of(
                        verify_run(run, known=known), self.untouched[change.run], self.folder
                    )
            except Exception as error:
                return f"{type(error).__name__}: {without_paths(str(error), self.folder)}"
            finally:
                signal.alarm(0)


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"not judged within {PATIENCE_S} s")


def line_of(verdict: Verdict, untouched: tuple[Finding, ...], folder: Path) -> str:
    def digest(lines: Iterable[str]) -> str:
        return hashlib.sha256(without_paths("\n".join(lines), folder).encode()).hexdigest()[:6]

    said = [verdict.status]
    for finding, before in zip(verdict.findings, untouched, strict=True):
        more = f" (+{len(finding.evidence)} {digest(finding.evidence)})" if finding.evidence else ""
        if finding.status not in (VALID, NOT_CHECKED):
            said.append(
                f"{finding.status}"
                f" {without_paths(finding.message, folder).split(': ', 1)[-1]}{more}"
            )
        elif finding.status != before.status:
            said.append(f"{finding.status}: {finding.promise}")
        elif finding != before:
            said.append(f"{finding.promise} says {digest([finding.message, *finding.evidence])}")
    return " | ".join(said)


def is_hole(change: Change, said: str) -> bool:
    """Whether a change is called valid that no row of `free_fields` excuses, or ends in an
    exception, or in a check that failed.

    A config.json that cannot be read, or names what is not installed here, is an error of its own:
    there is nothing to judge then.
    """
    from tests.runs.free_fields import excuse

    raised = re.match(r"[A-Z]\w+: ", said) is not None and not (
        said.startswith(("RecordError", "EvidenceMissing")) and change.file == "config.json"
    )
    return (
        raised or "the check failed" in said or (said.startswith(VALID) and excuse(change) is None)
    )


def without_paths(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "")


def chosen(folder: Path) -> list[Change]:
    """What the book holds: EACH changes of every field, of one run after the other; and one at
    least of what is excused (`free_fields`).
    """
    from tests.runs.free_fields import FREE

    by_field: dict[str, list[list[Change]]] = {}
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        own: dict[str, list[Change]] = {}
        for change in changes(run):
            own.setdefault(change.field, []).append(change)
        for field, found in own.items():
            random.Random(f"{run.name} {field} order").shuffle(found)
            by_field.setdefault(field, []).append(found)
    picked = []
    for field, runs in by_field.items():
        random.Random(field).shuffle(runs)
        ordered = [
            found[turn]
            for turn in range(max(map(len, runs)))
            for found in runs
            if turn < len(found)
        ]
        picked += ordered[: EACH.get(field.split()[0].split("/")[0], 1)]
    everything = [change for runs in by_field.values() for found in runs for change in found]
    for row in FREE:
        if not any(map(row.fits, picked)):
            picked.append(next(filter(row.fits, everything)))
    return sorted(picked, key=lambda change: (change.run, change.field, str(change)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", action="store_true", help="every change of every run, not only those of the book"
    )
    parser.add_argument("--only", nargs="*", help="these runs")
    options = parser.parse_args()
    with sweep() as folder:
        judge = Judge(folder)
        runs = [
            path
            for path in sorted(folder.iterdir())
            if not options.only or path.name in options.only
        ]
        if options.all:
            for run in runs:
                for change in changes(run):
                    said = judge.verdict(change)
                    sys.stdout.write(
                        f"{'HOLE || ' if is_hole(change, said) else ''}{change.field} || {change}"
                        f" || {said}\n"
                    )
                sys.stdout.flush()
            return
        found: dict[str, list[str]] = {}
        for change in chosen(folder):
            found.setdefault(change.run, []).append(f"{change} || {judge.verdict(change)}\n")
        shutil.rmtree(BOOK, ignore_errors=True)
        BOOK.mkdir()
        for name, lines in found.items():
            (BOOK / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
