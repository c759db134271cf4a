"""Finds the runs that lack a reference (an undisturbed run to compare with), and words the
announcement before one is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.errors import EcrlError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import timeline
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run_plan import RunPlan, plan_reference
from ecrl_cli.verify.disturbance import disturbance
from ecrl_cli.verify.reference import References, bounded, find_references
from ecrl_cli.verify.verification_input import same_sizes
from ecrl_cli.verify.verify_run import named


def serves_as_reference(records: RunRecords, known: References, *, whole: bool) -> bool:
    """Whether a valid undisturbed run to compare with exists beside the run. `whole`: it must have
    the same world size at every step.
    """
    return any(
        same_sizes(records, reference) or not whole
        for reference in find_references(records, known).usable
    )


def lacking(runs: Iterable[RunPlan], known: References) -> dict[Path, tuple[RunPlan, RunRecords]]:
    """References that finished runs lack: by the reference's folder, its plan and the records of
    one run that needs it.
    """
    found: dict[Path, tuple[RunPlan, RunRecords]] = {}
    for run in runs:
        if not may_need_one(run) or (run.reference and run.reference.layout.root in found):
            continue
        try:
            records = bounded(RunLayout(named(run.layout.root)))
            reference = run.reference or _after_all(run, records)
        except (EcrlError, OSError):
            continue  # `ecrl verify` on the run itself reports what is wrong with it
        if reference is None or reference.layout.root in found:
            continue
        if records.final is not None and not serves_as_reference(records, known, whole=False):
            found[reference.layout.root] = (reference, records)
    return found


def may_need_one(run: RunPlan) -> bool:
    """Whether a reference is planned for `run`, or becomes due once it was interrupted
    (reference=auto).
    """
    return run.reference is not None or (
        run.config.reference == "auto" and recovery_of(run.config).exact
    )


def _after_all(run: RunPlan, records: RunRecords) -> RunPlan | None:
    """The reference of a run that was to be undisturbed and was not: stopped and taken up again, or
    struck by what nobody planned.
    """
    if run.failures or run.config.continued_at or not disturbance(records):
        return None
    return plan_reference(run.config, run.layout.root)


def required(folder: Path, known: References) -> tuple[RunPlan, RunRecords] | str:
    """The plan of the reference that the run in `folder` lacks, with the run's records; or a text
    why it needs none or can have none.
    """
    records = bounded(RunLayout(named(folder)))
    stored = records.stored
    if not disturbance(records):
        return "is undisturbed and needs no reference"
    if not recovery_of(stored.config).exact:
        return (
            f"recovery={stored.config.recovery.name} claims no trajectory: no reference is trained"
        )
    if serves_as_reference(records, known, whole=True):
        return "an undisturbed run lies beside it already"
    reference = plan_reference(stored.config, folder)
    if reference.reference_id != stored.reference_id:
        return (
            "was recorded by another version, whose runs must not end as this one's do: no"
            " reference is trained"
        )
    return reference, records


def announcement(where: Path, records: RunRecords) -> str:
    """The line printed before a reference is trained: where it goes and how long it may take,
    estimated by the run's own duration.
    """
    took = human_seconds(timeline(records).wall_s)
    return (
        f"reference: an undisturbed run to compare {records.layout.root.name} with, in {where}; at"
        f" most about the {took} that the run took"
    )
