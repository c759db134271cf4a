"""A digest of ECRL's own Python files, to identify the code that ran."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_sha256() -> str:
    """SHA-256 over names and contents: revisions that differ only in documents give the same digest, dirty trees that differ in code do not."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
