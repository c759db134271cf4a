"""What a verdict was spoken over: one hash of all records of a run, so that a later change of them is seen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.reading import MAX_JOURNAL, read_whole


def fingerprint(layout: RunLayout) -> str:
    """SHA-256 over the names and contents of a run's records: documents, plan, claims, logs; not checkpoints, not printed output."""
    total = hashlib.sha256()
    for path in sorted(_records(layout)):
        total.update(f"{layout.relative(path)}\0{hashlib.sha256(read_whole(path, MAX_JOURNAL)).hexdigest()}\n".encode())
    return total.hexdigest()


def _records(layout: RunLayout) -> Iterator[Path]:
    documents = (layout.config, layout.dataset, layout.failures, layout.supervisor, layout.metrics)
    yield from (path for path in documents if path.is_file())
    yield from layout.fired.glob("*.json")
    yield from (path for path in layout.logs.glob("attempt-*/*") if path.suffix in (".json", ".jsonl"))
