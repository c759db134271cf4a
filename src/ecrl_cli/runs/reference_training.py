"""Finds the runs that lack a reference (an undisturbed run to compare with), and words the
announcement before one is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.config.identity import reference_id
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.errors import EcrlError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.rest_start import (
    rest_starts,
    unclaimed_segments,
    why_no_rest,
)
from ecrl_cli.history.timeline import timeline
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run_plan import RunPlan, plan_reference, plan_rest
from ecrl_cli.verify.disk_state import on_disk
from ecrl_cli.verify.disturbance import disturbance, uninterrupted
from ecrl_cli.verify.reference import References, bounded, find_references, find_rest
from ecrl_cli.verify.verification_input import same_sizes
from ecrl_cli.verify.verify_run import named

OTHER_VERSION = (
    "was recorded by another version, whose runs must not end as this one's do: no reference is"
    " trained"
)


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


def rest_of(records: RunRecords, known: References) -> RunPlan | str:
    """The plan of the undisturbed run from the first checkpoint after the last recovery that claims
    no trajectory; or a text why there is none to train.
    """
    if not unclaimed_segments(records):
        return (
            f"recovery={records.stored.config.recovery.name} claims no trajectory, and no rank"
            " outlived another: no reference is trained"
        )
    if find_rest(records, known)[0] is not None:
        return "an undisturbed run of its rest lies beside it already"
    if records.final is None:
        return "has not reached its target: the same command goes on with it"
    if reference_id(records.stored.config) != records.stored.reference_id:
        return OTHER_VERSION
    whole = {c.report.commit_sha256 for c in on_disk(records) if c.report.ok}
    starts = [start for start in rest_starts(records) if start.line.commit_sha256 in whole]
    if not starts:
        return f"nothing shows that its rest is right: {why_no_rest(records)}"
    return plan_rest(records, starts[0])


def lacking_rests(
    runs: Iterable[RunPlan], known: References, say: Callable[[str], None]
) -> dict[Path, tuple[RunPlan, RunRecords]]:
    """Like `lacking`, for the rest of runs with reference=always whose recovery claims no
    trajectory. `say`: receives a line for a run of which none can be trained.
    """
    missing: dict[Path, tuple[RunPlan, RunRecords]] = {}
    for run in runs:
        if run.config.reference != "always" or recovery_of(run.config).exact:
            continue
        try:
            records = bounded(RunLayout(named(run.layout.root)))
            if not unclaimed_segments(records) or find_rest(records, known)[0] is not None:
                continue
            rest = rest_of(records, known)
        except (EcrlError, OSError):
            continue  # `ecrl verify` on the run itself reports what is wrong with it
        if isinstance(rest, RunPlan):
            missing[rest.layout.root] = (rest, records)
        else:
            say(f"{run.layout.root.name}: {rest}")
    return missing


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
    calm = not disturbance(records) or uninterrupted(records)
    if run.failures or run.config.continued_at or calm:
        return None
    return plan_reference(run.config, run.layout.root)


def required(folder: Path, known: References) -> tuple[RunPlan, RunRecords] | str:
    """The plan of the reference that the run in `folder` lacks, with the run's records; or a text
    why it needs none or can have none.
    """
    records = bounded(RunLayout(named(folder)))
    stored = records.stored
    if not disturbance(records) or uninterrupted(records):
        return "is undisturbed and needs no reference"
    if not recovery_of(stored.config).exact:
        rest = rest_of(records, known)
        return rest if isinstance(rest, str) else (rest, records)
    if serves_as_reference(records, known, whole=True):
        return "an undisturbed run lies beside it already"
    reference = plan_reference(stored.config, folder)
    if reference.reference_id != stored.reference_id:
        return OTHER_VERSION
    return reference, records


def announcement(reference: RunPlan, records: RunRecords) -> str:
    """The line printed before a reference is trained: where it goes and how long it may take,
    estimated by the run's own duration.
    """
    took, name = human_seconds(timeline(records).wall_s), records.layout.root.name
    what = (
        f"an undisturbed run from {reference.initial.stem} of {name}, to compare its rest with"
        if reference.initial
        else f"an undisturbed run to compare {name} with"
    )
    return (
        f"reference: {what}, in {reference.layout.root}; at most about the {took} that the run took"
    )
