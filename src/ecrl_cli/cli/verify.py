"""`ecrl verify`: judges each run, stores the verdict beside its records, scrubs the named checkpoints, and exits with the worst code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import PAGE, REJECTED_PREFIX
from ecrl_cli.checkpoint.repair.damage import Finding
from ecrl_cli.checkpoint.repair.diagnose import line
from ecrl_cli.checkpoint.repair.repair import check_folder, repair
from ecrl_cli.checkpoint.repair.scrub import Scrub, ScrubConfig, ScrubResult, scrub
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.cli.ci import FAILED, PASSED, SKIPPED, Case, check_report, github, junit
from ecrl_cli.cli.console import Parser, out, say
from ecrl_cli.cli.permissions import restrict
from ecrl_cli.cli.targets import Checkpoints, checked, checkpoints_of, sorted_out
from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.config.machine import check_torch
from ecrl_cli.errors import ConfigError, EcrlError, EvidenceMissing, RunDirectoryError, StorageError, first_line, plural, visible
from ecrl_cli.history.load import load
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.verdict_file import verdict_file
from ecrl_cli.runs.tracking.tracked import tell
from ecrl_cli.storage.files import write_json
from ecrl_cli.verify.reference import References
from ecrl_cli.verify.verdict import render
from ecrl_cli.verify.verify_run import named, verify_run

_EXIT = {"valid": 0, "invalid": 1, "unknown": 3}
_WORST_FIRST = (5, 4, 1, 2, 3, 0)
_OK, _INVALID, _NONE_VALID, _STORAGE = 0, 1, 4, 5
_STATUS = {_OK: "valid", _INVALID: "invalid", _NONE_VALID: "no valid checkpoint"}


@dataclass(frozen=True)
class VerifyOutput:
    """The result of verifying: text for people, a document for programs, an exit code."""

    text: str
    document: dict[str, Any]
    exit_code: int


def verify(argv: Sequence[str]) -> int:
    """0 if everything is valid; else the worst: 4 a folder has checkpoints and none is valid, 1 a run or a checkpoint is invalid, 2 a run's records
    cannot be read, 3 evidence is missing for one; 5 where a folder could not be read or a repaired copy not be written.
    """
    flags = parser().parse_args(list(argv))
    restrict(private=False)
    reference = checked(flags.reference) if flags.reference else None
    key = read_key(str(flags.seal_key), "--seal-key") if flags.seal_key else b""
    runs, folders = sorted_out(flags.folders)
    if flags.scrub:
        folders += [found for run in runs if (found := checkpoints_of(run)) is not None]
    _check_flags(flags, folders)
    check_report(flags.junit)
    known = References(key)
    if flags.with_reference and (stopped := train_references(runs, known)):
        return stopped
    answers = {str(run): judge(run, reference, known) for run in runs}
    for run in runs if flags.track else ():
        with suppress(EcrlError, OSError):  # the verdict says what is wrong with it
            tell(read_run_config(RunLayout(run)).config, RunLayout(named(run)), say)
    for folder in folders:
        config = ScrubConfig(flags.sample, flags.deep, _integrity_config(folder.folder.resolve(), flags.max_bytes))
        try:
            answers[folder.label] = scrubbed(folder, config, flags.repair)
        except StorageError as error:  # this folder cannot be read; the results of the others are still printed
            answers[folder.label] = _unreadable(folder.label, error)
    cases = [case for name, answer in answers.items() for case in _cases(name, answer.document)]
    if flags.junit:
        flags.junit.write_text(junit("ecrl verify", cases), encoding="utf-8")
    for text in github(cases) if flags.github else ():
        sys.stderr.write(text + "\n")
    if flags.json:
        sys.stdout.write(json.dumps({name: answer.document for name, answer in answers.items()}, indent=2) + "\n")
    for answer in answers.values():
        _say(answer, flags.json)
    return next(code for code in _WORST_FIRST if code in {answer.exit_code for answer in answers.values()})


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl verify", add_help=False, allow_abbrev=False)
    made.add_argument("folders", nargs="+", type=Path)
    made.add_argument("--reference", type=Path)
    made.add_argument("--with-reference", action="store_true")
    made.add_argument("--seal-key", type=Path)
    made.add_argument("--json", action="store_true")
    made.add_argument("--junit", type=Path)
    made.add_argument("--github", action="store_true")
    made.add_argument("--track", action="store_true")
    made.add_argument("--scrub", action="store_true")
    made.add_argument("--deep", action="store_true")
    made.add_argument("--sample", type=int, default=0)
    made.add_argument("--max-bytes", type=int, default=0)
    made.add_argument("--repair", type=Path)
    return made


def _integrity_config(folder: Path, max_bytes: int) -> IntegrityConfig:
    """How to check the checkpoints in `folder`, whoever owns the files. Where `folder` is a run's checkpoints/, they must be that run's, within its
    size limit, and finite where its configuration requires that.
    """
    layout, run_id, allowed, finite = RunLayout(folder.parent), "", IntegrityConfig.max_bytes, IntegrityConfig.finite
    if layout.checkpoints == folder:
        with suppress(EcrlError, OSError):  # without its config.json, of no particular run
            stored = read_run_config(layout)
            run_id, allowed, finite = stored.run_id, stored.config.checkpoint.max_bytes, stored.config.checkpoint.finite
    return IntegrityConfig(run_id, max_bytes or allowed, trust_owner=True, finite=finite)


def _cases(name: str, document: dict[str, Any]) -> list[Case]:
    """A case for each promise of a run; one for a folder of checkpoints, or for what could not be read."""
    run = Path(name).name or name
    states = {"valid": PASSED, "invalid": FAILED, "no valid checkpoint": FAILED}
    if "findings" not in document:
        state = states.get(document["status"], SKIPPED)
        return [Case(run, "verify", state, document.get("error", "") or str(document["status"]))]
    found = [(each["promise"], each["status"], each["message"]) for each in document["findings"]]
    return [Case(run, promise, states.get(status, SKIPPED), text if status in states else f"{status}: {text}") for promise, status, text in found]


def _check_flags(flags: argparse.Namespace, folders: list[Checkpoints]) -> None:
    if flags.reference and flags.with_reference:
        raise ConfigError("--with-reference", "a reference is named already", "leave --reference or --with-reference out")
    for name in ("sample", "max_bytes"):
        if getattr(flags, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')}", "must not be negative", "leave it out to look at everything")
    if not folders and (flags.deep or flags.sample or flags.repair or flags.max_bytes):
        fact = "--deep, --sample, --max-bytes and --repair are for checkpoints"
        raise ConfigError("arguments", fact, "name a folder of checkpoints, or add --scrub")
    for each in folders:
        if next(each.folder.glob(f"step_*/{PAGE}"), None):
            fact = "holds steps that another checkpointer wrote: only that can read them"
            raise ConfigError(each.label, fact, "name the run without --scrub: it is judged by what its ranks recorded")
    if flags.repair and len(folders) != 1:
        raise ConfigError("--repair", f"takes the checkpoints of one folder, got {len(folders)}", "name one folder of checkpoints")
    if flags.repair:
        check_folder(flags.repair, folders[0].folder)


def judge(run: Path, reference: Path | None, known: References) -> VerifyOutput:
    """Judges one run and stores verdict.json and divergence.json beside its records; `document` has `error` where the run cannot be judged.
    RunDirectoryError where `reference` cannot be used.
    """
    try:
        verdict = verify_run(run, reference, known)
    except RunDirectoryError:  # the named reference is unusable
        raise
    except EcrlError as error:  # this run cannot be judged; the others can
        return _unreadable(str(run), error)
    except OSError as error:
        return _unreadable(str(run), EvidenceMissing("records", f"cannot be read ({error.strerror})", "restore the run directory"))
    except Exception as error:
        return _unreadable(
            str(run), EvidenceMissing("records", f"cannot be judged ({first_line(error, 200)})", "restore the run directory, or report this")
        )
    document = verdict.to_json()
    name = document.get("reference", "")  # of the run that it was judged against
    against = RunLayout(named(reference) if reference else named(run).parent / name) if name else None
    _keep(run, document, against, _apart(run, against))
    return VerifyOutput(render(verdict).rstrip(), document, _EXIT[verdict.status])


def _apart(run: Path, reference: RunLayout | None) -> dict[str, Any] | None:
    """How far the run's final state is from its reference's."""
    if reference is None:
        return None
    try:
        return divergence_document(load(RunLayout(run)), load(reference))
    except Exception as error:  # the verdict stands without the distances: file damage is reported by the verdict
        say(f"ecrl: {visible(run)}: no divergence ({visible(error)})")
        return None


def _unreadable(label: str, error: EcrlError) -> VerifyOutput:
    return VerifyOutput(f"ecrl: error: {visible(label)}: {error.line()}", {"status": "unknown", "error": error.line()}, error.exit_code)


def _keep(run: Path, document: dict[str, Any], reference: RunLayout | None, apart: dict[str, Any] | None) -> None:
    layout = RunLayout(named(run))
    try:
        write_json(layout.verdict, verdict_file(layout, document, reference, apart))
        if apart is not None:
            write_json(layout.divergence, apart)
    except OSError as error:  # an archived copy may be read-only: the verdict is printed all the same
        say(f"ecrl: {visible(run)}: the verdict is not stored ({error.strerror})")


def _say(answer: VerifyOutput, as_json: bool) -> None:
    if "error" in answer.document:
        say(answer.text)
    elif not as_json:
        out(answer.text)


def train_references(runs: Sequence[Path], known: References) -> int:
    """Trains one reference for all of `runs` that share it, where none exists: returns 0, or the exit code where that was stopped by a signal.

    Errors are printed; the run is then judged as it is.
    """
    # Imported here: the supervising side takes half a second to load, which a verdict from records alone does not need.
    from ecrl_cli.runs.reference_training import announcement, required
    from ecrl_cli.runs.run import RunContext, run
    from ecrl_cli.supervision.launch.launcher import LauncherCache

    launchers, mask = LauncherCache(), restrict(private=any(_private(run) for run in runs))
    try:
        for folder in runs:
            try:
                due = required(folder, known)
                if not isinstance(due, str):
                    check_torch()
            except (EcrlError, OSError) as error:
                say(f"{folder}: no reference is trained ({error.line() if isinstance(error, EcrlError) else error.strerror})")
                continue
            if isinstance(due, str):
                say(f"{folder}: {due}")
                continue
            reference, records = due
            say(announcement(reference.layout.root, records))
            result = run(reference, RunContext(say, launchers))
            if result.stopped:
                say("the same command trains it again")
                return result.exit_code
    finally:
        launchers.close()
        os.umask(mask)
    return 0


def _private(run: Path) -> bool:
    with suppress(EcrlError, OSError):  # `ecrl verify` says what is wrong with the run itself
        return read_run_config(RunLayout(run)).config.private
    return True


@dataclass
class Repairs:
    """Attempted repairs into `out`, by checkpoint name: the copy's path, or why there is none."""

    out: Path
    copies: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    disk_refused: bool = False


def scrubbed(what: Checkpoints, config: ScrubConfig, out: Path | None) -> VerifyOutput:
    """Scrubs, and repairs into `out` if it is given; for the exit code see `_scrub_code`."""
    found = scrub(what.folder, what.names, config)
    repairs = _repair_all(found, config.integrity, out) if out is not None else None
    code = _scrub_code(found)
    document = _scrub_document(found, _STATUS[code], repairs)
    return VerifyOutput(_scrub_text(what.label, found, repairs), document, _STORAGE if repairs and repairs.disk_refused else code)


def _scrub_code(found: Scrub) -> int:
    """4 if there are checkpoints (or quarantined ones) and none is valid, 1 for any damage, also of a pointer, else 0."""
    if not found.valid and (found.looked or any(name.startswith(REJECTED_PREFIX) for name in found.aside)):
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


def _scrub_text(label: str, found: Scrub, repairs: Repairs | None) -> str:
    lines = [f"{label}: {_scrub_summary(found)}"]
    for one in found.looked:
        lines.append("  " + line(one.report, one.diagnosis))
        name = one.report.path.name
        if repairs and name in repairs.copies:
            lines.append(f"    repaired copy, which passes the integrity check: {repairs.copies[name]}")
        elif repairs and name in repairs.refusals:
            lines.append(f"    not repaired: {repairs.refusals[name]}")
    lines += [f"  {complaint}" for complaint in found.pointers]
    lines += [f"  set aside or unfinished, not judged: {name}" for name in found.aside]
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in text) for text in lines)


def _scrub_summary(found: Scrub) -> str:
    looked, refused = len(found.looked), len(found.looked) - found.valid
    count = f"{plural(looked, 'checkpoint')}" if looked == found.total else f"{looked} of {plural(found.total, 'checkpoint')} looked at"
    spread = "; one of the sample is damaged, so all were looked at" if found.spread else ""
    damaged = f", {plural(len(found.pointers), 'pointer')} damaged" if found.pointers else ""
    return f"{count}, {found.valid} valid, {refused} refused{damaged}{spread}"


def _scrub_document(found: Scrub, status: str, repairs: Repairs | None) -> dict[str, Any]:
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
    document: dict[str, Any] = {"name": report.path.name, "status": "ok" if report.ok else "refused"}
    if report.ok or one.diagnosis is None:
        return document | {"commit_sha256": report.commit_sha256}
    document |= {"layer": report.layer, "reason": report.reason, "damage": [_damage(finding) for finding in one.diagnosis.findings]}
    document["repairable"] = one.diagnosis.repairable
    if repairs:
        document["repaired"] = repairs.copies.get(report.path.name)
    return document


def _damage(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "text": finding.text,
        "chunks": list(finding.chunks),
        "bits": [{"byte": flip.offset, "bit": flip.bit} for flip in finding.flips],
        "tensors": list(finding.tensors),
        "repairable": finding.repairable,
    }
