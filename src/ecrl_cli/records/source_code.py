"""Which code runs: a digest of ECRL's own Python files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_sha256() -> str:
    """Of names and contents: two revisions that differ in documents alone run the same code, two dirty ones may not."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
