"""`ecrl verify`: judge each run, keep the verdict beside its records, print it, answer with the worst."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.cli.folders import Parser, checked, run_directories
from ecrl_cli.errors import EcrlError, EvidenceMissing, RecordError
from ecrl_cli.history.load import load
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.records.fingerprint import fingerprint
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json
from ecrl_cli.verify.judge import judge
from ecrl_cli.verify.verdict import render

_EXIT = {"valid": 0, "invalid": 1, "unknown": 3}
_WORST_FIRST = (1, 2, 3, 0)


@dataclass(frozen=True)
class Answer:
    """What one run gets: text for people, a document for programs, its exit code."""

    text: str
    document: dict[str, Any]
    exit_code: int


def verify(argv: Sequence[str]) -> int:
    """0 if every run is valid; else the worst: 1 one is invalid, 2 one's records cannot be read, 3 evidence is missing for one."""
    parser = Parser(prog="ecrl verify", add_help=False, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args(list(argv))
    reference = checked(flags.reference) if flags.reference else None
    answers = {str(run): _answer(run, reference) for run in run_directories(flags.folders)}
    if flags.json:
        sys.stdout.write(json.dumps({run: answer.document for run, answer in answers.items()}, indent=2) + "\n")
    for answer in answers.values():
        _say(answer, flags.json)
    return next(code for code in _WORST_FIRST if code in {answer.exit_code for answer in answers.values()})


def _answer(run: Path, reference: Path | None) -> Answer:
    try:
        verdict = judge(run, reference)
    except (EvidenceMissing, RecordError) as error:  # this run cannot be judged; the others can
        return _unreadable(run, error)
    document = verdict.to_json()
    _keep(run, document, _apart(run, reference, document.get("reference", "")))
    return Answer(render(verdict).rstrip(), document, _EXIT[verdict.status])


def _apart(run: Path, reference: Path | None, name: str) -> dict[str, Any] | None:
    """How far the run ended from the reference that it was judged by, which is called `name`."""
    if not name:
        return None
    try:
        return divergence_document(load(RunLayout(run)), load(RunLayout(reference or run.resolve().parent / name)))
    except (EcrlError, OSError) as error:  # the verdict stands without the distances: a damaged file is its finding, not its end
        sys.stderr.write(f"ecrl: {run}: no divergence ({error})\n")
        return None


def _unreadable(run: Path, error: EcrlError) -> Answer:
    return Answer(f"ecrl: error: {run}: {error.line()}", {"status": "unknown", "error": error.line()}, error.exit_code)


def _keep(run: Path, document: dict[str, Any], apart: dict[str, Any] | None) -> None:
    layout = RunLayout(run)
    try:
        write_json(layout.verdict, document | {"records_sha256": fingerprint(layout)})
        if apart is not None:
            write_json(layout.divergence, apart)
    except OSError as error:  # an archived copy may be read-only: the answer counts, not the file
        sys.stderr.write(f"ecrl: {run}: the verdict is not stored ({error.strerror})\n")


def _say(answer: Answer, as_json: bool) -> None:
    if "error" in answer.document:
        sys.stderr.write(answer.text + "\n")
    elif not as_json:
        sys.stdout.write(answer.text + "\n")
