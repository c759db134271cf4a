"""What the records of all arms show: the published table beside ours, then what the published study did not try."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ecrl_cli.studies.corruption import clean, exhaustive, published, random_faults, recovery, stock_loaders, structural
from ecrl_cli.studies.corruption.tables_faults import exhaustive_findings, published_findings, random_findings
from ecrl_cli.studies.corruption.tables_other import anchor_findings, clean_findings, planted_findings, recovery_findings, structural_findings
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.mutants import repair

_NOTES = (
    "SHA-256 finds every change of what it covers by construction: these intervals measure the injector and bytes that nothing covers, not SHA-256.",
    "A consistent rewrite of part, manifest and commit passes any guard without a key; a checkpoint that is gone is missed by the records outside "
    "the folder only, and with those rewritten or gone too, by nobody.",
)

_ARMS: dict[str, Callable[[Sequence[Record]], Findings]] = {
    published.ARM: published_findings,
    random_faults.ARM: random_findings,
    exhaustive.ARM: exhaustive_findings,
    structural.ARM: structural_findings,
    recovery.ARM: recovery_findings,
    clean.ARM: clean_findings,
    stock_loaders.ARM: anchor_findings,
    repair.ARM: planted_findings,
}


def findings(records: Sequence[Record]) -> Findings:
    """Each arm's, of the arms that ran."""
    by_arm = {arm: [record for record in records if record.facts["arm"] == arm] for arm in _ARMS}
    if by_arm[stock_loaders.ARM]:  # ours stands beside theirs
        by_arm[stock_loaders.ARM] += [record for record in by_arm[random_faults.ARM] if record.facts["fault"] == "bitflip"]
    each = [_ARMS[arm](found) for arm, found in by_arm.items() if found]
    return Findings(
        tables=tuple(table for found in each for table in found.tables),
        figures=tuple(figure for found in each for figure in found.figures),
        gates=tuple(gate for found in each for gate in found.gates),
        notes=(*(note for found in each for note in found.notes), *_NOTES),
    )
