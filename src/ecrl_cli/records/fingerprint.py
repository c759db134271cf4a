"""What a verdict was spoken over: one hash of all records of a run, so that a later change of them is seen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ecrl_cli.errors import EcrlError, RecordError
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.reading import MAX_DOCUMENT, read_whole
from ecrl_cli.records.run_config import journal_bytes, read_run_config


def fingerprint(layout: RunLayout) -> str:
    """SHA-256 over the names and contents of a run's records: documents, plan, claims, logs; not checkpoints, not printed output.

    What is not read as a record (a link, a pipe, a file larger than the run can have written) counts as that.
    """
    total, limit = hashlib.sha256(), _limit(layout)
    for path in sorted(_records(layout)):
        total.update(f"{layout.relative(path)}\0{_digest(path, limit)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _limit(layout: RunLayout) -> int:
    try:
        return max(MAX_DOCUMENT, journal_bytes(read_run_config(layout).config))
    except (EcrlError, OSError):
        return MAX_DOCUMENT


def _digest(path: Path, limit: int) -> str:
    try:
        return hashlib.sha256(read_whole(path, limit)).hexdigest()
    except RecordError as error:
        return f"not read: {error.fact}"
    except OSError as error:
        return f"not read: {error.strerror}"


def _records(layout: RunLayout) -> Iterator[Path]:
    documents = (layout.config, layout.dataset, layout.failures, layout.supervisor, layout.metrics)
    yield from (path for path in documents if path.is_file())
    yield from layout.fired.glob("*.json")
    yield from (path for path in layout.logs.glob("attempt-*/*") if path.suffix in (".json", ".jsonl"))
