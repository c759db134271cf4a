"""A bug in the recovery of one lone run: refuted by what was saved, and once more by its reference;
only the trajectory needs that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.records.layout import REFERENCES
from ecrl_cli.studies.mutants.recovery import BUGS
from tests.conftest import Ecrl
from tests.e2e.planting import plant, suite_of
from tests.e2e.runs import tiny
from tests.in_process import ecrl_in_process

BUG = "momentum, or exp_avg_sq, dropped"
pytestmark = pytest.mark.timeout(300)


def test_momentum_dropped_on_restore_is_invalid_alone_and_with_a_reference(
    ecrl: Ecrl, tmp_path: Path
) -> None:
    """Struck exactly on a checkpoint: nothing is replayed, so that nothing in the run itself
    contradicts it.
    """
    lone = tiny(
        "failure=exit", "failure.steps=[12]", "failure.rank=", "target_steps=18", "reference=none"
    )
    environment = plant(tmp_path / "plant", {BUG: BUGS[BUG]})
    ecrl("train", *lone, f"suite_name={suite_of(BUG)}", "run_dir=run", environment=environment)
    said = ecrl_in_process(tmp_path, "verify", "run", check=1).stdout
    assert "Broke promise: state-restored - " in said and "optimizer" in said, said
    assert (
        "not proven: no undisturbed run to compare with; `ecrl verify --with-reference run`"
        " runs one" in said
    )
    said = ecrl_in_process(tmp_path, "verify", "run", "--with-reference", check=1).stdout
    assert (
        "run: invalid (" in said
        and "Broke promise: same-trajectory - the first differing step is step 1" in said
    ), said
    (reference,) = (tmp_path / REFERENCES).iterdir()
    assert (
        f"{reference.name}: valid (" in ecrl_in_process(tmp_path, "verify", str(reference)).stdout
    )
