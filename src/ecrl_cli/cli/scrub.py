"""Scrubs folders of checkpoints for `ecrl verify`, and repairs what is damaged into a copy: as
text, as a document, and as an exit code.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import REJECTED_PREFIX
from ecrl_cli.checkpoint.repair.damage import FileDamage
from ecrl_cli.checkpoint.repair.diagnose import line
from ecrl_cli.checkpoint.repair.repair import repair
from ecrl_cli.checkpoint.repair.scrub import Scrub, ScrubConfig, ScrubResult, scrub
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.cli.targets import Checkpoints
from ecrl_cli.errors import EcrlError, StorageError, plural, visible
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config

_OK, _INVALID, _NONE_VALID, _STORAGE = 0, 1, 4, 5
_STATUS = {_OK: "valid", _INVALID: "invalid", _NONE_VALID: "no valid checkpoint"}


@dataclass(frozen=True)
class VerifyOutput:
    """The answer on a run or a folder of checkpoints: text for people, a document for programs, an
    exit code.
    """

    text: str
    document: dict[str, Any]
    exit_code: int


def unreadable(label: str, error: EcrlError) -> VerifyOutput:
    """The answer where nothing could be judged."""
    return VerifyOutput(
        f"ecrl: error: {visible(label)}: {error.line()}",
        {"status": "unknown", "error": error.line()},
        error.exit_code,
    )


def integrity_config(folder: Path, max_bytes: int) -> IntegrityConfig:
    """How to check the checkpoints in `folder`, whoever owns the files. Where `folder` is a run's
    checkpoints/, they must be that run's, within its size limit, and finite where its configuration
    requires that.
    """
    layout, run_id, allowed, finite = (
        RunLayout(folder.parent),
        "",
        IntegrityConfig.max_bytes,
        IntegrityConfig.finite,
    )
    if layout.checkpoints == folder:
        with suppress(EcrlError, OSError):  # without its config.json, of no particular run
            stored = read_run_config(layout)
            run_id, allowed, finite = (
                stored.run_id,
                stored.config.checkpoint.max_bytes,
                stored.config.checkpoint.finite,
            )
    return IntegrityConfig(run_id, max_bytes or allowed, trust_owner=True, finite=finite)


@dataclass
class Repairs:
    """Attempted repairs into `out`, by checkpoint name: the copy's path, or why there is none."""

    out: Path
    copies: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    disk_refused: bool = False


def scrubbed(what: Checkpoints, config: ScrubConfig, out: Path | None) -> VerifyOutput:
    """Scrubs, and repairs into `out` if it is given; for the exit code see `_code`, or that of the
    error where the folder cannot be read.
    """
    try:
        found = scrub(what.folder, what.names, config)
    except StorageError as error:
        return unreadable(what.label, error)
    repairs = _repair_all(found, config.integrity, out) if out is not None else None
    code = _code(found)
    document = _document(found, _STATUS[code], repairs)
    return VerifyOutput(
        _text(what.label, found, repairs),
        document,
        _STORAGE if repairs and repairs.disk_refused else code,
    )


def _code(found: Scrub) -> int:
    """4 if there are checkpoints (or quarantined ones) and none is valid, 1 for any damage, also of
    a pointer, else 0.
    """
    if not found.valid and (
        found.looked or any(name.startswith(REJECTED_PREFIX) for name in found.aside)
    ):
        return _NONE_VALID
    return _INVALID if found.valid < len(found.looked) or found.pointers else _OK


def _repair_all(found: Scrub, limits: IntegrityConfig, out: Path) -> Repairs:
    made = Repairs(out)
    for one in found.looked:
        if one.diagnosis is None:
            continue
        name = one.report.path.name
        try:
            made.copies[name] = str(repair(one.report.path, one.diagnosis, out, limits))
        except StorageError as error:
            made.refusals[name] = error.fact
            made.disk_refused = made.disk_refused or bool(error.errno)
    return made


def _text(label: str, found: Scrub, repairs: Repairs | None) -> str:
    lines = [f"{label}: {_summary(found)}"]
    for one in found.looked:
        lines.append("  " + line(one.report, one.diagnosis))
        name = one.report.path.name
        if repairs and name in repairs.copies:
            lines.append(
                f"    repaired copy, which passes the integrity check: {repairs.copies[name]}"
            )
        elif repairs and name in repairs.refusals:
            lines.append(f"    not repaired: {repairs.refusals[name]}")
    lines += [f"  {complaint}" for complaint in found.pointers]
    lines += [f"  set aside or unfinished, not judged: {name}" for name in found.aside]
    return "\n".join(
        "".join(letter if letter.isprintable() else "?" for letter in text) for text in lines
    )


def _summary(found: Scrub) -> str:
    looked, refused = len(found.looked), len(found.looked) - found.valid
    count = (
        f"{plural(looked, 'checkpoint')}"
        if looked == found.total
        else f"{looked} of {plural(found.total, 'checkpoint')} looked at"
    )
    spread = "; one of the sample is damaged, so all were looked at" if found.spread else ""
    damaged = f", {plural(len(found.pointers), 'pointer')} damaged" if found.pointers else ""
    return f"{count}, {found.valid} valid, {refused} refused{damaged}{spread}"


def _document(found: Scrub, status: str, repairs: Repairs | None) -> dict[str, Any]:
    return {
        "status": status,
        "looked_at": len(found.looked),
        "of": found.total,
        "spread": found.spread,
        "checkpoints": [_checkpoint_document(one, repairs) for one in found.looked],
        "pointers": list(found.pointers),
        "set_aside": list(found.aside),
    }


def _checkpoint_document(one: ScrubResult, repairs: Repairs | None) -> dict[str, Any]:
    report = one.report
    document: dict[str, Any] = {
        "name": report.path.name,
        "status": "ok" if report.ok else "refused",
    }
    if report.ok or one.diagnosis is None:
        return document | {"commit_sha256": report.commit_sha256}
    document |= {
        "layer": report.layer,
        "reason": report.reason,
        "damage": [_damage(finding) for finding in one.diagnosis.findings],
    }
    document["repairable"] = one.diagnosis.repairable
    if repairs:
        document["repaired"] = repairs.copies.get(report.path.name)
    return document


def _damage(finding: FileDamage) -> dict[str, Any]:
    return {
        "file": finding.file,
        "text": finding.text,
        "chunks": list(finding.chunks),
        "bits": [{"byte": flip.offset, "bit": flip.bit} for flip in finding.flips],
        "tensors": list(finding.tensors),
        "repairable": finding.repairable,
    }
