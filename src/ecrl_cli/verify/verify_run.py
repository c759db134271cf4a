"""Verifies one run directory: valid, invalid or unknown, promise by promise."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ecrl_cli.errors import EvidenceMissing, RunDirectoryError
from ecrl_cli.history.lineage import lineage
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.verify.disturbance import uninterrupted
from ecrl_cli.verify.reference import (
    FoundReferences,
    References,
    find_references,
    find_rest,
    origin,
    reference_ids,
)
from ecrl_cli.verify.verdict import Verdict
from ecrl_cli.verify.verification_input import same_sizes


def verify_run(
    run_dir: Path, reference: Path | None = None, known: References | None = None
) -> Verdict:
    """The verdict on `run_dir`, against `reference`, else against sibling runs that must end in the
    same state, if there are any.

    `known`: cached references for all runs that one command verifies, with the key under which runs
    must be sealed. RecordError and EvidenceMissing if `run_dir` is no readable run;
    RunDirectoryError if `reference` is none or cannot be compared.
    """
    known = known or References()
    with _uncollected():
        return _verified(run_dir, reference, known)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles: records are trees of a million small objects, and looking
    through them again and again is a quarter of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _verified(run_dir: Path, reference: Path | None, known: References) -> Verdict:
    run = known.records(RunLayout(named(run_dir)))
    siblings = find_references(run, known)
    references = _given_reference(run, reference, known) if reference else siblings
    chosen = references.usable[0] if references.usable else None
    rest, rest_doubt = find_rest(run, known)
    findings = known.findings(
        run,
        reference=chosen,
        floor=_noise_floor(run, siblings.usable),
        others=references.usable[1:],
        doubts=references.doubts,
        disturbed_alike=references.disturbed_alike,
        rest=rest,
        rest_doubt=rest_doubt,
    )
    judged_to = lineage(run).last_step if run.cut else None
    return Verdict(
        run.layout.root.name, run.stored.run_id, called(chosen), findings, judged_to, called(rest)
    )


def called(reference: RunRecords | None) -> str:
    """The path of a reference relative to the run's parent folder, or its name if given from
    elsewhere; empty without a reference.
    """
    if reference is None:
        return ""
    root = reference.layout.root
    return f"{REFERENCES}/{root.name}" if root.parent.name == REFERENCES else root.name


def named(folder: Path) -> Path:
    """`folder` as an absolute normalized path; symbolic links are not resolved, so that a linked
    run keeps its name and siblings.
    """
    return Path(os.path.normpath(folder.absolute()))


def _given_reference(run: RunRecords, reference: Path, known: References) -> FoundReferences:
    """The run given as reference; RunDirectoryError if it cannot be one for `run`."""
    if reference.resolve() == run.layout.root.resolve():
        raise RunDirectoryError(
            str(reference),
            "is the run itself",
            "name another run of the same configuration without failures",
        )
    try:
        records = known.records(RunLayout(named(reference)))
    except EvidenceMissing as error:
        raise RunDirectoryError(
            str(reference), error.fact, "name the run directory of a run without failures"
        ) from error
    if records.stored.reference_id not in reference_ids(run):
        fact = f"is no reference of {run.layout.root.name}: their reference_id differ"
        raise RunDirectoryError(
            str(reference), fact, "name a run of the same configuration without failures"
        )
    if origin(records) == origin(run):
        raise RunDirectoryError(
            str(reference),
            "is a copy of the run itself",
            "name another run of the same configuration without failures",
        )
    if not uninterrupted(records):
        return FoundReferences(
            (), (f"the reference {records.layout.root.name} was disturbed itself",)
        )
    doubt = known.doubt(records)
    return FoundReferences((), (doubt,)) if doubt else FoundReferences((records,))


def _noise_floor(
    run: RunRecords, siblings: tuple[RunRecords, ...]
) -> tuple[RunRecords, RunRecords] | None:
    """Two undisturbed runs with the same world size at every step: like this run if there are two,
    else like its reference.
    """
    alike = [sibling for sibling in siblings if same_sizes(run, sibling)]
    others = [sibling for sibling in siblings if not same_sizes(run, sibling)]
    return next(((group[0], group[1]) for group in (alike, others) if len(group) > 1), None)
