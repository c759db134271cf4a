"""The numbers of the study of crash-consistent checkpointing stand beside ours as printed."""

from __future__ import annotations

import pytest

from ecrl_cli.studies.corruption.published import CONTROL, PUBLISHED_FAULTS
from ecrl_cli.studies.corruption.tables import PUBLISHED
from ecrl_cli.studies.write_latency import _published


def test_each_row_of_the_published_detections_is_one_of_ours() -> None:
    """A row of another name would stand there empty."""
    assert set(PUBLISHED) == {*PUBLISHED_FAULTS, CONTROL}


@pytest.mark.parametrize(
    ("mode", "p50", "p99"),
    [("unsafe", 0.0, 0.0), ("atomic_nodirsync", 0.565, 1.084), ("atomic_dirsync", 0.842, 5.706)],
)
def test_published_overheads_are_as_printed(mode: str, p50: float, p99: float) -> None:
    """They do not follow from the milliseconds as printed: 56.7%, 108.6% and 571.2%."""
    row = _published(mode)
    assert row["published_p50_overhead"] == pytest.approx(p50)
    assert row["published_p99_overhead"] == pytest.approx(p99)


def test_an_arm_that_was_not_published_has_no_published_values() -> None:
    assert _published("unsafe (again)") == {}
