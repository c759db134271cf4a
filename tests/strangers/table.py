"""The table of strangers' jobs (jobs.yaml): which job, how it is audited, and the right answer."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

FOLDER = Path(__file__).parent
KINDS = {"healthy": 0, "broken": 1, "undecidable": 3}  # kind of a row: its exit code
# further interpreters, separated by colons: for packages that this one lacks
INTERPRETERS = "ECRL_TEST_PYTHONS"
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
_JOB_KEYS = {"job", "origin", "needs", "command", "rows"}
_ROW_KEYS = {"words", "keys", "kind", "code", "holds", "lacks", "quick", "note"}


@dataclass(frozen=True)
class Row:
    """One audit of one job.

    `command`: its words, with {dir}; the first is python or torchrun. `keys`: of `ecrl audit`;
    none: failures are drawn. `kind`: of KINDS. `holds`: words that the answer must hold, of which
    each tuple needs one; `lacks`: words that it must not hold. `needs`: requirements besides those
    of the project. `origin`: where the behaviour was reported, or which library and version shows
    it. `quick`: part of `make test`.
    """

    job: str
    command: tuple[str, ...]
    keys: tuple[str, ...]
    kind: str
    code: int
    holds: tuple[tuple[str, ...], ...]
    lacks: tuple[str, ...]
    needs: tuple[str, ...]
    origin: str
    quick: bool = False

    @property
    def name(self) -> str:
        """Unique: what tells the rows of a job apart."""
        words = [
            word for word in self.command[1:] if word not in ("--out", "{dir}", "--nproc-per-node")
        ]
        return " ".join([*(word.removesuffix(".py") for word in words), *(self.keys or ("drawn",))])


def read_table(path: Path = FOLDER / "jobs.yaml") -> list[Row]:
    """Every row of the table. ValueError for one that is not well formed, naming job and row."""
    return [
        row for entry in yaml.safe_load(path.read_text(encoding="utf-8")) for row in _rows(entry)
    ]


def _rows(entry: dict[str, Any]) -> list[Row]:
    job = str(entry.get("job"))
    if strange := entry.keys() - _JOB_KEYS:
        raise ValueError(f"{job}: unknown {sorted(strange)}; an entry has {sorted(_JOB_KEYS)}")
    if missing := {"job", "origin", "command", "rows"} - entry.keys():
        raise ValueError(f"{job}: lacks {sorted(missing)}")
    return [_row(entry, dict(row)) for row in entry["rows"]]


def _row(entry: dict[str, Any], row: dict[str, Any]) -> Row:
    if strange := row.keys() - _ROW_KEYS:
        raise ValueError(
            f"{entry['job']}: {row}: unknown {sorted(strange)}; a row has {sorted(_ROW_KEYS)}"
        )
    if row.get("kind") not in KINDS:
        raise ValueError(f"{entry['job']}: {row}: kind must be one of {sorted(KINDS)}")
    return Row(
        job=entry["job"],
        command=(*shlex.split(entry["command"]), *shlex.split(row.get("words", ""))),
        keys=tuple(shlex.split(row.get("keys", ""))),
        kind=row["kind"],
        code=row.get("code", KINDS[row["kind"]]),
        holds=tuple(
            tuple(words) if isinstance(words, list) else (words,) for words in row.get("holds", ())
        ),
        lacks=tuple(row.get("lacks", ())),
        needs=tuple(entry.get("needs", ())),
        origin=entry["origin"],
        quick=row.get("quick", False),
    )


def command_of(row: Row, interpreter: str) -> list[str]:
    """The words after `--`: with `interpreter` for python and torchrun, and the job's path."""
    first, *rest = row.command
    launcher = [interpreter, *(_TORCHRUN if first == "torchrun" else ())]
    return [
        *launcher,
        *(str(FOLDER / "jobs" / word) if word == f"{row.job}.py" else word for word in rest),
    ]


def interpreter_of(row: Row) -> tuple[str, str]:
    """(interpreter, ""), the first one that has what `row` needs, or ("", why there is none)."""
    tried = [sys.executable, *filter(None, os.environ.get(INTERPRETERS, "").split(":"))]
    lacking = ["; ".join(_lacking(interpreter, row.needs)) for interpreter in tried]
    for interpreter, said in zip(tried, lacking, strict=True):
        if not said:
            return interpreter, ""
    return "", f"{lacking[0]}; name an interpreter that has it in {INTERPRETERS}"


def _lacking(interpreter: str, needs: tuple[str, ...]) -> list[str]:
    lacking = []
    for need in map(Requirement, needs):
        version = _version(interpreter, need.name)
        if not version or not need.specifier.contains(version, prereleases=True):
            lacking.append(
                f"needs {need}, "
                + (f"{version} is installed" if version else "which is not installed")
            )
    return lacking


@cache
def _version(interpreter: str, package: str) -> str:
    """Version of `package` there; empty if it is not installed."""
    if interpreter == sys.executable:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return ""
    asked = f"from importlib import metadata; print(metadata.version({package!r}))"
    return subprocess.run(
        [interpreter, "-c", asked], capture_output=True, text=True, check=False
    ).stdout.strip()


def answer(folder: Path) -> dict[str, Any]:
    """audit.json of the audit in `folder`; empty if it was refused before."""
    path = folder / "audit.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return document


def words_of(document: dict[str, Any]) -> str:
    """What the answer tells of what is wrong or open, in lower case: the diagnosis, and the
    findings that are not kept. Those that are kept name the same components, and would hide a
    missing word.
    """
    lines = [document.get("diagnosis", "")]
    for finding in document.get("findings", ()):
        if finding["status"] != "kept":
            lines += [
                f"{finding['promise']} [{finding['arm']}]: {finding['message']}",
                *finding["evidence"],
            ]
    return "\n".join([*lines, *document.get("troubles", ())]).lower()


def wrong_words(row: Row, document: dict[str, Any]) -> list[str]:
    """The words that are missing in the answer, or that it must not have."""
    text = words_of(document)
    missing = [
        f"lacks {' or '.join(words)}"
        for words in row.holds
        if not any(word.lower() in text for word in words)
    ]
    return [*missing, *(f"says {word}" for word in row.lacks if word.lower() in text)]
