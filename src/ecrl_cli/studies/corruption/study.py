"""`corruption`: damages committed checkpoints in every way and records the integrity check's verdicts. Published table 3 and figure 5, and beyond."""

from __future__ import annotations

from functools import partial

from ecrl_cli.config.studies import Corruption
from ecrl_cli.studies.corruption import clean, exhaustive, published, random_faults, recovery, stock_loaders, structural
from ecrl_cli.studies.corruption.tables_faults import exhaustive_findings, published_findings, random_findings
from ecrl_cli.studies.corruption.tables_other import anchor_findings, clean_findings, planted_findings, recovery_findings, structural_findings
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Arm, Results, Skip, Study, StudyContext, planted, shows
from ecrl_cli.studies.mutants import repair


def _asked(arm: str, keys: Corruption) -> bool:
    return arm in keys.arms


def _skips(context: StudyContext) -> list[Skip]:
    found = structural.skips(context) if structural.ARM in context.keys.arms else []
    return found + (clean.skips() if clean.ARM in context.keys.arms else [])


def _anchors(results: Results) -> Findings:
    """Stock loaders, and ours beside them."""
    found = results.of(stock_loaders.ARM)
    ours = [record for record in results.of(random_faults.ARM) if record.facts["fault"] == "bitflip"]
    return anchor_findings([*found, *ours]) if found else Findings()


STUDY = Study(
    keys=Corruption,
    description="Committed checkpoints damaged in every way, and what the integrity check says. Published Table 3 and Figure 5, and beyond.",
    arms=(  # the long ones first, so that none leaves a core idle at the end
        Arm(repair.ARM, repair.trials, repair.run, planted),
        *(
            Arm(arm.ARM, arm.trials, arm.run, partial(_asked, arm.ARM))
            for arm in (exhaustive, published, random_faults, structural, recovery, clean, stock_loaders)
        ),
    ),
    findings=(
        shows(published_findings, published.ARM),
        shows(random_findings, random_faults.ARM),
        shows(exhaustive_findings, exhaustive.ARM),
        shows(structural_findings, structural.ARM),
        shows(recovery_findings, recovery.ARM),
        shows(clean_findings, clean.ARM),
        _anchors,
        shows(planted_findings, repair.ARM),
    ),
    notes=lambda results: (
        "SHA-256 finds every change of what it covers by construction: these intervals measure the injector and bytes that nothing covers, not "
        "SHA-256.",
        "A consistent rewrite of part, manifest and commit passes any integrity check without a key; a checkpoint that is gone is missed by the "
        "records outside the folder only, and with those rewritten or gone too, by nobody.",
    ),
    skips=_skips,
)
