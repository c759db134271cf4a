"""`corruption`: damages committed checkpoints in every way and records the integrity check's
verdicts. Published table 3 and figure 5, and beyond.
"""

from __future__ import annotations

from ecrl_cli.config.studies import Corruption
from ecrl_cli.studies.corruption import recovery, stock_loaders, structural
from ecrl_cli.studies.corruption.byte_faults import EXHAUSTIVE, RANDOM
from ecrl_cli.studies.corruption.mutants import PLANTED
from ecrl_cli.studies.corruption.published import PUBLISHED_ARM
from ecrl_cli.studies.corruption.tables import TABLES, figures, gates, notes
from ecrl_cli.studies.frame.study import Study

STUDY = Study(
    keys=Corruption,
    description=(
        "Committed checkpoints damaged in every way, and what the integrity check says. Published"
        " Table 3 and Figure 5, and beyond."
    ),
    # the long ones first, so that none leaves a core idle at the end
    arms=(
        PLANTED,
        EXHAUSTIVE,
        PUBLISHED_ARM,
        RANDOM,
        structural.STRUCTURAL,
        recovery.RECOVERY,
        recovery.CLEAN,
        stock_loaders.ANCHORS,
    ),
    tables=TABLES,
    figures=figures,
    gates=(gates,),
    notes=notes,
    skips=lambda context: (
        *(structural.skips(context) if "structural" in context.keys.arms else ()),
        *(recovery.skips() if "clean" in context.keys.arms else ()),
        *(stock_loaders.skips() if "anchors" in context.keys.arms else ()),
    ),
)
