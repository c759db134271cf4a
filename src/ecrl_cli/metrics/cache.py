"""Compares metrics.json, a cache of what is computed from the records, with a fresh computation,
field by field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ecrl_cli.errors import shown
from ecrl_cli.metrics.document import METRICS_VERSION

# Version 1 (without `metrics_version`) added floats with sum(), whose last bits depend on the
# Python version; fsum(), used since, rounds once.
_RELATIVE, _ABSOLUTE_S = 1e-9, 1e-6
_ABSENT = object()


class NewerMetrics(Exception):
    """metrics.json was written by a later version, whose fields may mean something else."""


def differences(recorded: object, document: dict[str, Any]) -> list[str]:
    """The differences of metrics.json (`recorded`) from `document`, the computed metrics, as "FIELD
    is A, the records fold to B"; empty if there are none.

    Every field and its type is compared; unknown and missing fields are differences. A file of an
    earlier version may lack fields, and its floats may differ in their last bits. NewerMetrics for
    a file of a later version.
    """
    if not isinstance(recorded, dict):
        return ["it is no JSON object"]
    version = recorded.get("metrics_version", 1)
    if type(version) is not int or version < 1:
        return [f"metrics_version is {shown(version)}, the records fold to {METRICS_VERSION}"]
    if version > METRICS_VERSION:
        raise NewerMetrics(f"version {version}, this ECRL folds version {METRICS_VERSION}")
    text = json.dumps(document)
    if json.dumps(recorded) == text:  # nearly always; a run of many steps has an entry for each
        return []
    old, folded = version < 2, json.loads(text)
    if version < METRICS_VERSION:
        folded.pop("metrics_version")
        recorded = {name: value for name, value in recorded.items() if name != "metrics_version"}
        _drop_added(recorded, folded)
    return [
        f"{name} is {_shown(a)}, the records fold to {_shown(b)}"
        for name, a, b in _unequal("", recorded, folded, old)
    ]


def _drop_added(recorded: dict[str, Any], folded: dict[str, Any]) -> None:
    """Take out of `folded` what version 3 added and the file lacks, if nothing was measured."""
    seconds = recorded.get("seconds")
    if folded["evaluations"] == [] and "evaluations" not in recorded:
        del folded["evaluations"]
    if (
        folded["seconds"]["evaluate"] == 0
        and isinstance(seconds, dict)
        and "evaluate" not in seconds
    ):
        del folded["seconds"]["evaluate"]


def _unequal(
    name: str, recorded: object, folded: object, old: bool
) -> Iterator[tuple[str, object, object]]:
    """(field, value in the file, computed value) of every leaf that differs."""
    if isinstance(recorded, dict) and isinstance(folded, dict):
        for key in dict.fromkeys([*folded, *recorded]):
            inner = f"{name}.{key}" if name else str(key)
            if not (old and key not in recorded):
                yield from _unequal(
                    inner, recorded.get(key, _ABSENT), folded.get(key, _ABSENT), old
                )
    elif isinstance(recorded, list) and isinstance(folded, list) and len(recorded) == len(folded):
        for place, (a, b) in enumerate(zip(recorded, folded, strict=True)):
            yield from _unequal(f"{name}[{place}]", a, b, old)
    elif not _same(recorded, folded, old):
        yield name, recorded, folded


def _same(recorded: object, folded: object, old: bool) -> bool:
    if old and isinstance(recorded, float | int) and isinstance(folded, float):
        return math.isclose(recorded, folded, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE_S) or (
            recorded != recorded and folded != folded
        )
    return type(recorded) is type(folded) and (
        recorded == folded or (recorded != recorded and folded != folded)
    )


def _shown(value: object) -> str:
    return "missing" if value is _ABSENT else shown(value)
