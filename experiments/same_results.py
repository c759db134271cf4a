"""Changes of code that are declared to alter no kept result, each with its reason, in
docs/results/same_results.yaml: `stamp` counts such a file as it was before. A message to the user
mended would otherwise make results of days stale, or be left as it is for their sake.

A declared change of which modules a file imports makes studies stale all the same: they count the
files that they reach.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import yaml
from experiments.registry import RESULTS, ROOT, ExperimentError

DECLARED = RESULTS / "same_results.yaml"
COUNTED = ("src/ecrl_cli/", "conf/")
# of results: code for GPUs does not count for the first
KINDS = {False: "without a GPU", True: "with a GPU"}
FEWEST_WORDS = 4
_HEAD = """\
# Changes of code that are declared to alter no kept result: read by a person, held by no test. Of each file the digests of what counts of it
# (experiments/stamp.py), before and after. Add one before it is committed: python -m experiments --same-results "why" FILE...
"""


def declared() -> list[dict[str, Any]]:
    return yaml.safe_load(DECLARED.read_text(encoding="utf-8")) or [] if DECLARED.is_file() else []


@cache
def _first() -> dict[tuple[str, bool, str], str]:
    """By file, kind of result and digest after a declared change, the digest before the first of
    them.
    """
    first: dict[tuple[str, bool, str], str] = {}
    for change in declared():
        for gpu, kind in KINDS.items():
            before, after = change[kind]
            if after != (earliest := first.get((change["file"], gpu, before), before)):
                first[change["file"], gpu, after] = earliest
    return first


def as_before(name: str, digest: str, *, gpu: bool) -> str:
    """`digest` of the file `name` below the root, or that of the same file before changes that
    alter no result.
    """
    return _first().get((name, gpu, digest), digest)


class Digest(Protocol):
    """Of what counts of a file with that content, for a result made with a GPU or without."""

    def __call__(self, path: Path, content: bytes, *, gpu: bool) -> str: ...


def declare(files: Iterable[Path], why: str, digest: Digest) -> None:
    """Adds the changes that `files` have since the last commit. ExperimentError where one of them
    cannot be declared; then none is.
    """
    if len(why.split()) < FEWEST_WORDS:
        raise ExperimentError(
            f"--same-results: {why!r} is no reason; say in a few words why no result is another one"
        )
    changes = {_before(change): change for change in declared()}
    for given in files:
        path = given.resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(given)
        if not name.startswith(COUNTED):
            raise ExperimentError(
                f"{name}: no result depends on it; only files in {' and '.join(COUNTED)} count"
            )
        committed = subprocess.run(
            ["git", "-C", str(ROOT), "show", f"HEAD:{name}"], capture_output=True, check=False
        )
        if committed.returncode or not path.is_file():
            raise ExperimentError(
                f"{name}: a file that comes or goes counts as a change: declare only changed ones"
            )
        digests = {
            KINDS[gpu]: [
                digest(path, content, gpu=gpu) for content in (committed.stdout, path.read_bytes())
            ]
            for gpu in KINDS
        }
        if all(before == after for before, after in digests.values()):
            raise ExperimentError(f"{name}: nothing that counts has changed since the last commit")
        change = {"file": name, "why": why, **digests}
        # in the place of one that was declared before it was changed again
        changes[_before(change)] = change
    DECLARED.write_text(
        _HEAD
        + yaml.safe_dump([*changes.values()], sort_keys=False, width=1000, allow_unicode=True),
        encoding="utf-8",
    )
    _first.cache_clear()


def _before(change: dict[str, Any]) -> tuple[str, ...]:
    """The file and what it was before the change."""
    return (change["file"], *(change[kind][0] for kind in KINDS.values()))
