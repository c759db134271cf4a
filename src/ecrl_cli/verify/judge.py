"""Judge one run directory: valid, invalid or unknown, promise by promise."""

from __future__ import annotations

import os
from pathlib import Path

from ecrl_cli.errors import EcrlError, EvidenceMissing, RunDirectoryError
from ecrl_cli.history.extent import check_extent
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.verify.case import Case, same_sizes, undisturbed
from ecrl_cli.verify.checks import run_checks
from ecrl_cli.verify.verdict import Verdict

PREFERRED = ("ref", "clean")  # variants, best reference first


def judge(run_dir: Path, reference: Path | None = None, seal_key: bytes = b"") -> Verdict:
    """The verdict over `run_dir`. The reference is `reference`, else a sibling that must end in the same state, if there is one.
    `seal_key`: the key under which the run must be sealed; empty: the one that its configuration names, if it is at hand.

    RecordError and EvidenceMissing where `run_dir` is no readable run; RunDirectoryError where `reference` is none or cannot be compared.
    """
    run = _bounded(RunLayout(named(run_dir)))
    siblings = _siblings(run)
    chosen = _given(run, reference) if reference else _chosen(run, siblings)
    case = Case(run, chosen, _floor(run, siblings), seal_key)
    name = chosen.layout.root.name if chosen else ""
    return Verdict(run.layout.root.name, run.stored.run_id, name, run_checks(case))


def _bounded(layout: RunLayout) -> RunRecords:
    """The records under `layout`; RecordError where judging them would cost out of all proportion to what they hold."""
    records = load(layout)
    check_extent(records)
    return records


def named(folder: Path) -> Path:
    """`folder` with a name and neighbours, whatever was typed; a link to a run that lies elsewhere keeps those that it has here."""
    return Path(os.path.normpath(folder.absolute()))


def _given(run: RunRecords, reference: Path) -> RunRecords:
    """The run that was named as reference; RunDirectoryError where it is none for `run`."""
    if reference.resolve() == run.layout.root.resolve():
        raise RunDirectoryError(str(reference), "is the run itself", "name another run of the same configuration without failures")
    try:
        records = _bounded(RunLayout(named(reference)))
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


def _floor(run: RunRecords, siblings: list[RunRecords]) -> tuple[RunRecords, RunRecords] | None:
    """Two undisturbed runs with the same number of ranks at every step: those of this run, if there are two, else those of its reference."""
    alike = [sibling for sibling in siblings if same_sizes(run, sibling)]
    others = [sibling for sibling in siblings if not same_sizes(run, sibling)]
    return next(((group[0], group[1]) for group in (alike, others) if len(group) > 1), None)


def _siblings(run: RunRecords) -> list[RunRecords]:
    """Undisturbed runs beside this one that must end in the same state, the best reference first.

    One that changed its world size is none for a run that does not; one that never did is the second best for a run that does.
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
            records = _bounded(layout)
        except (EcrlError, OSError):
            continue  # not this run's evidence: its own verdict will say what is wrong with it
        if not same_sizes(run, records) and records.stored.config.elastic.schedule:
            continue
        if undisturbed(records) and (records.final or records.stored.config.variant.name in PREFERRED):
            found.append(records)
    return sorted(found, key=lambda records: (records.final is None, not same_sizes(run, records), _preference(records)))


def _preference(records: RunRecords) -> tuple[int, str]:
    name = records.stored.config.variant.name
    rank = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
    return rank, records.layout.root.name
