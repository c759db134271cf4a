"""Judge one run directory: valid, invalid or unknown, promise by promise."""

from __future__ import annotations

from pathlib import Path

from ecrl_cli.errors import EcrlError, EvidenceMissing, RunDirectoryError
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.verify.case import Case, undisturbed
from ecrl_cli.verify.checks import run_checks
from ecrl_cli.verify.verdict import Verdict

PREFERRED = ("ref", "clean")  # variants, best reference first


def judge(run_dir: Path, reference: Path | None = None) -> Verdict:
    """The verdict over `run_dir`. The reference is `reference`, else a sibling that must end in the same state, if there is one.

    RecordError and EvidenceMissing where `run_dir` is no readable run; RunDirectoryError where `reference` is none or cannot be compared.
    """
    run = load(RunLayout(run_dir.resolve()))
    siblings = _siblings(run)
    chosen = _given(run, reference) if reference else _chosen(run, siblings)
    floor = (siblings[0], siblings[1]) if len(siblings) > 1 else None
    case = Case(run, chosen, floor)
    name = chosen.layout.root.name if chosen else ""
    return Verdict(run.layout.root.name, run.stored.run_id, name, run_checks(case))


def _given(run: RunRecords, reference: Path) -> RunRecords:
    """The run that was named as reference; RunDirectoryError where it is none for `run`."""
    if reference.resolve() == run.layout.root:
        raise RunDirectoryError(str(reference), "is the run itself", "name another run of the same configuration without failures")
    try:
        records = load(RunLayout(reference.resolve()))
    except EvidenceMissing as error:
        raise RunDirectoryError(str(reference), error.fact, "name the run directory of a run without failures") from error
    if records.stored.reference_id != run.stored.reference_id:
        fact = f"is no reference of {run.layout.root.name}: their reference_id differ"
        raise RunDirectoryError(str(reference), fact, "name a run of the same configuration without failures")
    return records


def _chosen(run: RunRecords, siblings: list[RunRecords]) -> RunRecords | None:
    """The best sibling. One undisturbed run is held against another only where that one came to its end: neither needs the other."""
    fit = [sibling for sibling in siblings if sibling.final] if undisturbed(run) else siblings
    return fit[0] if fit else None


def _siblings(run: RunRecords) -> list[RunRecords]:
    """Undisturbed runs beside this one that must end in the same state, the best reference first.

    One that did not come to its end counts only in the role of a reference: another may still be going on.
    """
    found = []
    for folder in sorted(run.layout.root.parent.iterdir()):
        layout = RunLayout(folder)
        if folder == run.layout.root or not layout.config.exists():
            continue
        try:
            if read_run_config(layout).reference_id != run.stored.reference_id:
                continue
            records = load(layout)
        except (EcrlError, OSError):
            continue  # not this run's evidence: its own verdict will say what is wrong with it
        if undisturbed(records) and (records.final or records.stored.config.variant.name in PREFERRED):
            found.append(records)
    return sorted(found, key=_preference)


def _preference(records: RunRecords) -> tuple[bool, int, str]:
    name = records.stored.config.variant.name
    rank = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
    return records.final is None, rank, records.layout.root.name
