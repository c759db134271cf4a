"""verdict.json: a verdict, digests of the records it judged, and a digest of both. A later reader
checks these against the records first.

The file is not signed: anyone who changes a record can verify again, or rewrite file and digest.
`ecrl report --judge` trusts no file.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RecordError
from ecrl_cli.records.digests import changed_checkpoints, checkpoint_states, fingerprint
from ecrl_cli.records.extent import check_file_counts
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout

_OWN = "verdict_sha256"


def verdict_file(
    layout: RunLayout,
    document: dict[str, Any],
    reference: RunLayout | None,
    divergence: dict[str, Any] | None,
) -> dict[str, Any]:
    """The content of verdict.json: `document` (the verdict) with digests of the records it judged.
    RecordError or OSError if those cannot be read.
    """
    over: dict[str, Any] = {
        "records_sha256": fingerprint(layout),
        "checkpoints": checkpoint_states(layout),
        "reference_path": os.path.relpath(reference.root, layout.root) if reference else "",
        "reference_sha256": fingerprint(reference) if reference else "",
        **({"rest_sha256": fingerprint(_rest(layout, document))} if document.get("rest") else {}),
        "divergence_sha256": _digest(divergence) if divergence is not None else "",
    }
    made = {key: item for key, item in document.items() if key != _OWN} | over
    return made | {_OWN: _digest(made)}


def read_verdict(layout: RunLayout) -> tuple[dict[str, Any], str]:
    """verdict.json, and why it does not apply to the current records ("" if it does). RecordError
    or OSError if it cannot be read.
    """
    value = read_json(layout.verdict)
    if not isinstance(value, dict):
        raise RecordError("verdict.json", "is no JSON object", "run ecrl verify again")
    return value, _stale(layout, value)


def divergence_of(layout: RunLayout, verdict: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """divergence.json, if it was written together with `verdict`; and why it is not shown ("" if it
    is, or if the verdict has none).
    """
    due, there = verdict.get("divergence_sha256"), layout.divergence.exists()
    if not due:
        return None, (
            "divergence.json is of another verdict: not shown; run ecrl verify again"
            if there
            else ""
        )
    value = read_json(layout.divergence) if there else None
    if isinstance(value, dict) and _digest(value) == due:
        return value, ""
    return (
        None,
        (
            f"divergence.json {'was changed after it was written' if there else 'is missing'}: not"
            " shown; run ecrl verify again"
        ),
    )


def _stale(layout: RunLayout, value: dict[str, Any]) -> str:
    if _OWN not in value:
        return "the verdict on file is of an earlier version"
    if value[_OWN] != _digest({key: item for key, item in value.items() if key != _OWN}):
        return "verdict.json was changed after it was written"
    try:
        check_file_counts(layout)
        if value["records_sha256"] != fingerprint(layout):
            return "records changed since"
        if changed := changed_checkpoints(layout, value["checkpoints"]):
            return f"{changed[0]} changed since"
        reference = RunLayout(Path(os.path.normpath(layout.root / value["reference_path"])))
        if (
            value["reference_path"]
            and reference.config.exists()
            and value["reference_sha256"] != fingerprint(reference)
        ):
            return f"records of the reference {reference.root.name} changed since"
        rest = _rest(layout, value) if value.get("rest") else None
        if rest and rest.config.exists() and value["rest_sha256"] != fingerprint(rest):
            return f"records of the reference {value['rest']} changed since"
    except (RecordError, OSError, KeyError, TypeError, AttributeError) as error:
        return (
            "what it was spoken over cannot be read"
            f" ({error.fact if isinstance(error, RecordError) else error})"
        )
    return ""


def _rest(layout: RunLayout, verdict: dict[str, Any]) -> RunLayout:
    """The run that the rest of the run was compared with."""
    return RunLayout(layout.root.parent / verdict["rest"])


def _digest(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
