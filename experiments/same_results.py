"""Changes of code that are declared to alter no kept result, each with its reason, in docs/results/same_results.yaml: `stamp` counts such a file as
it was before. A message to the user mended would otherwise make results of days stale, or be left as it is for their sake.

Of a file the list names pairs of digests (`stamp.of_file`) before and after: more than one pair only where the file has code for GPUs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from experiments.registry import RESULTS, ROOT, ExperimentError

DECLARED = RESULTS / "same_results.yaml"
_HEAD = """\
# Changes of code that are declared to alter no kept result: read by a person, held by no test. Each line of "digests" is a file's before and after.
# Add one, before it is committed: python -m experiments --same-results "why" FILE...
"""


def declared() -> list[dict[str, Any]]:
    return yaml.safe_load(DECLARED.read_text(encoding="utf-8")) or [] if DECLARED.is_file() else []


@cache
def _first() -> dict[str, str]:
    """By digest of a changed file, the one that it had before the first of its declared changes."""
    first: dict[str, str] = {}
    for change in declared():
        for before, after in change["digests"]:
            if after != (earliest := first.get(before, before)):
                first[after] = earliest
    return first


def as_before(digest: str) -> str:
    """`digest` of a file, or that of the same file before changes that alter no result."""
    return _first().get(digest, digest)


def declare(files: Iterable[Path], why: str, digests: Callable[[Path, bytes], list[str]]) -> None:
    """Adds the changes that `files` have since the last commit. `digests`: of a file with that content."""
    added = []
    for path in files:
        name = path.resolve().relative_to(ROOT).as_posix()
        before = subprocess.run(["git", "-C", str(ROOT), "show", f"HEAD:{name}"], capture_output=True, check=False)
        if before.returncode or not path.is_file():
            raise ExperimentError(f"{name}: a file that comes or goes counts as a change: declare only changed ones")
        pairs = sorted(set(zip(digests(path, before.stdout), digests(path, path.read_bytes()), strict=True)))
        if all(old == new for old, new in pairs):
            raise ExperimentError(f"{name}: nothing that counts has changed since the last commit")
        added.append({"file": name, "why": why, "digests": [[old, new] for old, new in pairs if old != new]})
    text = _HEAD + yaml.safe_dump(declared() + added, sort_keys=False, width=1000, allow_unicode=True)
    DECLARED.write_text(text, encoding="utf-8")
    _first.cache_clear()
