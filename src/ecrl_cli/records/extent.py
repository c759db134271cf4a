"""How many files a run directory may hold, by its configuration and its plan: more are refused
before anything loops over them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ecrl_cli.config.limits import MOST_ATTEMPTS
from ecrl_cli.errors import EcrlError, RecordError, plural
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.run_config import read_run_config

# so many files beyond what the run leaves may lie in a folder: each of them is named as one that
# does not belong there
SPARE_FILES = 1000
_FILES_PER_RANK, _FILES_PER_ATTEMPT = 8, 16  # an attempt leaves six for each rank and six more


def check_file_counts(layout: RunLayout) -> None:
    """RecordError for a folder with more than SPARE_FILES files beyond what the plan, the attempts
    and the ranks of this run can have left.
    """
    planned, ranks = _planned(layout), _most_ranks(layout)
    _check(layout, layout.fired, planned, f"the plan has {plural(planned, 'failure')}")
    _check(
        layout, layout.logs, MOST_ATTEMPTS, f"a run has at most {plural(MOST_ATTEMPTS, 'attempt')}"
    )
    for number in islice(layout.attempts(), MOST_ATTEMPTS):
        most = _FILES_PER_ATTEMPT + _FILES_PER_RANK * ranks
        _check(
            layout,
            layout.attempt(number).folder,
            most,
            f"an attempt of {plural(ranks, 'rank')} leaves at most {most}",
        )
    _check(layout, layout.checkpoints, SPARE_FILES, "retention keeps fewer")


def _check(layout: RunLayout, folder: Path, most: int, why: str) -> None:
    if not is_folder(folder):
        return
    with os.scandir(folder) as entries:
        count = sum(1 for _ in islice(entries, most + SPARE_FILES + 1))
    if count > most + SPARE_FILES:
        fact = f"holds more than {most + SPARE_FILES} files, {why}"
        raise RecordError(layout.relative(folder), fact, "remove what the run did not write")


def _planned(layout: RunLayout) -> int:
    with suppress(EcrlError, OSError):
        plan = read_json(layout.failures)
        return len(plan) if isinstance(plan, list) else 0
    return 0


def _most_ranks(layout: RunLayout) -> int:
    with suppress(EcrlError, OSError):
        config = read_run_config(layout).config
        return (
            max([config.world_size, *config.elastic.schedule.values()]) + config.supervision.spares
        )
    return 0
