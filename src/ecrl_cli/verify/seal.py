"""Promise records-sealed: the records are those that the run ended with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.errors import ConfigError, RecordError, plural, shown
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.seal import Seal, changed_files, read_seal
from ecrl_cli.verify.composed import not_composed
from ecrl_cli.verify.continuation import check_earlier_seals
from ecrl_cli.verify.verdict import NOT_CHECKED, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case

PROMISE = "records-sealed"


def records_sealed(case: Case) -> Finding:
    """Every record file matches its digest in seal.json, none was added, and the seal carries the
    required signature. Also told is that Hydra's composition is not among them.

    Not checked without a seal, unless one is required: the configuration names a key, or one was
    given.
    """
    finding = _sealed(case)
    unbroken = finding.status in (VALID, NOT_CHECKED) and case.ended
    return (
        replace(finding, evidence=(*finding.evidence, *not_composed(case))) if unbroken else finding
    )


def _sealed(case: Case) -> Finding:
    notes = FindingBuilder(PROMISE)
    if case.live:
        return notes.finding("not sealed: the run has not ended", checked=False)
    keyed = bool(case.run.stored.config.seal.key_file)
    try:
        seal = read_seal(case.run.layout)
    except (RecordError, OSError) as error:
        notes.broken(
            "seal.json cannot be read:"
            f" {error.fact if isinstance(error, RecordError) else error.strerror}"
        )
        return notes.finding("")
    earlier = check_earlier_seals(case, notes)
    if seal is None:
        if case.ended and (keyed or case.seal_key):
            why = "seal.key_file is set" if keyed else "a key was given"
            notes.missing(
                f"not sealed, and {why}: the seal was removed, or the run was killed before it was"
                " written"
            )
        return notes.finding(
            "not sealed" if case.ended else "not sealed: the run has not ended", checked=False
        )
    _check_content(case, seal, notes)
    message = _signature(case, seal, keyed, notes)
    behind = ", and those of an earlier end as they were then" if earlier else ""
    sealed = f"{plural(len(seal.files), 'file')} and {plural(len(seal.checkpoints), 'checkpoint')}"
    return notes.finding(f"{message}: {sealed} are as they were when the run ended{behind}")


def _check_content(case: Case, seal: Seal, notes: FindingBuilder) -> None:
    if not seal.whole():
        notes.broken("seal.json does not match its own hash: it was changed after it was written")
    if seal.run_id != case.run.stored.run_id:
        notes.broken(f"seal.json is of run {seal.run_id[:8]}")
    changed, gone = changed_files(case.run.layout, seal)
    for name in changed:
        notes.broken(f"changed since it was sealed: {name}")
    for name in gone:
        notes.missing(f"gone since it was sealed: {name}")
    _check_checkpoints(case, seal, notes)


def _check_checkpoints(case: Case, seal: Seal, notes: FindingBuilder) -> None:
    """Checkpoints may disappear (see `no-acknowledged-loss`), but none may be added or replaced by
    another commit.

    Damage is reported by `no-bad-checkpoint`: here it is enough that checkpoints passing the
    integrity check are the sealed ones.
    """
    if seal.final != (list(seal.checkpoints.values()) or [""])[-1]:
        notes.broken("seal.json names another final checkpoint than its newest")
    for c in case.disk:
        if c.path not in seal.checkpoints:
            notes.broken(f"changed since it was sealed: {c.path} (was not there)")
        elif c.report.ok and c.report.commit_sha256 != seal.checkpoints[c.path]:
            notes.broken(f"changed since it was sealed: {c.path} (another commit)")


def _signature(case: Case, seal: Seal, keyed: bool, notes: FindingBuilder) -> str:
    """A description of how far the signature was checked."""
    if not seal.hmac_sha256:
        if keyed or case.seal_key:
            why = "seal.key_file asks for a signature" if keyed else "a key was given"
            notes.broken(f"seal.json is not signed, and {why}")
        return "sealed"
    if not case.seal_key and in_run(
        case.run.layout, keyed_by := case.run.stored.config.seal.key_file
    ):
        notes.missing(
            f"signed with {shown(keyed_by)}, a key that lies in the run itself: whoever has the run"
            " can sign it anew (--seal-key FILE)"
        )
    key, why = (case.seal_key, "") if case.seal_key else _own_key(case)
    if not key:
        return f"sealed, signature not checked ({why})"
    if not seal.signed_with(key):
        notes.broken("the signature of seal.json is not of this key")
    return (
        "sealed and signed"
        if case.seal_key
        else "sealed and signed with the key that its own configuration names"
    )


def in_run(layout: RunLayout, name: str) -> bool:
    """Whether the file `name` lies in the run directory."""
    return bool(name) and Path(name).expanduser().resolve().is_relative_to(layout.root.resolve())


def _own_key(case: Case) -> tuple[bytes, str]:
    """The key that the configuration names, if available; else why it is not."""
    name = case.run.stored.config.seal.key_file
    if not name:
        return b"", "no key given: --seal-key FILE"
    try:
        return read_key(name, "seal.key_file"), ""
    except ConfigError as error:
        return b"", f"seal.key_file: {error.fact}"
