"""The rest of a run that claims no trajectory: why no undisturbed run can begin from one of its
checkpoints, and which of those beside it counts.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.history.load import load
from ecrl_cli.history.rest_start import rest_reference_id, rest_starts, why_no_rest
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.verify.reference import References, find_rest
from tests.runs.changed import configured
from tests.runs.survived import build_lossy


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """Of four ranks two outlive the others in step 9 and go on."""
    return build_lossy(tmp_path_factory.mktemp("lossy"))


def test_why_no_run_can_begin_from_a_checkpoint_of_the_rest(lossy: RunLayout) -> None:
    records = load(lossy)
    other = replace(records.stored.config.checkpoint, strategy="torch_save")
    assert [
        why_no_rest(configured(records, continued_at=(12,))),
        why_no_rest(configured(records, checkpoint=other)),
        why_no_rest(records),
    ] == [
        "the run was continued after step 12, to a higher target",
        "its checkpoints are torch.save's, and only ECRL's own can begin another run",
        "none of the checkpoints committed between the death at step 9 and the last step is still"
        " there and whole (checkpoint.keep=3)",
    ]


@pytest.mark.parametrize(("readable", "doubt"), [(False, "beside cannot be read"), (True, "")])
def test_a_rest_that_cannot_be_read_or_was_struck_is_none(
    lossy: RunLayout, tmp_path: Path, readable: bool, doubt: str
) -> None:
    run = RunLayout(Path(shutil.copytree(lossy.root, tmp_path / "run", symlinks=True)))
    beside = RunLayout(
        Path(shutil.copytree(lossy.root, tmp_path / REFERENCES / "beside", symlinks=True))
    )
    records = load(run)
    wanted = rest_reference_id(
        records.stored.config, records.stored.run_id, rest_starts(records)[0]
    )
    if not readable:
        beside.config.write_text("{")
    known = References(_stored={beside.root: replace(records.stored, reference_id=wanted)})
    assert find_rest(records, known) == (None, doubt)
