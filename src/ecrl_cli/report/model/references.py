"""The undisturbed runs in references/, which serve as `ref` where a suite has no run of that
variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.parallel import parallel_map
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.report.model.inputs import RunInput
from ecrl_cli.report.model.run_record import Run, read_run
from ecrl_cli.report.model.suite_gates import environment_changes

REFERENCE = "ref"  # the variant that they stand for


def read_references(runs: Sequence[Run]) -> list[Run]:
    """The references of the counted `runs`, once per suite that they serve. Those that did not
    finish, or ran on another machine or other versions, are left out.
    """
    # by sweep and reference id: a run of each suite
    served: dict[tuple[Path, str], dict[str, Run]] = {}
    for run in _without_own(runs):
        if run.counted:
            served.setdefault((run.sweep, run.counted.reference_id), {}).setdefault(run.suite, run)
    places = [
        place
        for sweep in dict.fromkeys(sweep for sweep, _ in served)
        for place in _in(sweep, served)
    ]
    found = []
    for reference in parallel_map(read_run, places):
        m = reference.counted
        for suite, run in (
            served.get((reference.sweep, m.reference_id), {}).items()
            if m and not m.restarts
            else ()
        ):
            found += (
                [] if environment_changes(run, reference) else [replace(reference, suite=suite)]
            )
    return found


def _without_own(runs: Sequence[Run]) -> Iterable[Run]:
    """The runs of sweeps and suites that have no `ref` of their own."""
    own = {(run.sweep, run.suite) for run in runs if run.variant == REFERENCE}
    return (run for run in runs if (run.sweep, run.suite) not in own)


def _in(sweep: Path, served: Iterable[tuple[Path, str]]) -> list[RunInput]:
    """The references of `sweep` whose id is among those `served`."""
    wanted = {reference_id for folder, reference_id in served if folder == sweep}
    folders = sorted((sweep / REFERENCES).iterdir()) if (sweep / REFERENCES).is_dir() else []
    return [
        RunInput(RunLayout(folder), f"{REFERENCES}/{folder.name}", {})
        for folder in folders
        if _reference_id(folder) in wanted
    ]


def _reference_id(folder: Path) -> str:
    try:
        return str(read_json(RunLayout(folder).config).get("reference_id", ""))
    except (EcrlError, OSError, AttributeError):
        return ""
