"""Means over ranks, and slices of time, where a record holds what ECRL itself never writes."""

from __future__ import annotations

import math

import pytest

from ecrl_cli.history.lineage import lineage, mean_losses
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.time_slices import TimelineSlice
from ecrl_cli.history.timeline import Timeline
from tests.runs.builder import build_blk
from tests.runs.changed import rank_line


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    return load(build_blk(tmp_path_factory.mktemp("blk")))


@pytest.mark.parametrize("losses", [(math.inf, -math.inf), (math.inf, 1.0), (math.nan, 1.0)])
def test_a_mean_that_is_no_number_is_none(records: RunRecords, losses: tuple[float, float]) -> None:
    spoilt = records
    for rank, loss in enumerate(losses):
        spoilt = rank_line(spoilt, 0, rank, 3, loss=loss)
    means = mean_losses(spoilt, lineage(spoilt))
    assert means[3] is None and means[2] == mean_losses(records, lineage(records))[2] is not None


def test_slices_of_an_unknown_category_are_told_one_by_one() -> None:
    slices = [TimelineSlice("theirs", 1.0, 2.5, 0, 0), TimelineSlice("compute", 2.5, 3.0, 1, 0)]
    timeline = Timeline(slices, ((1.0, 3.0),), 0.0)
    assert list(timeline.stretches()) == [("theirs", 0, 1.0, 2.5), ("compute", 1, 2.5, 3.0)]
    assert timeline.seconds["theirs"] == 1.5 and timeline.residual_s == 0.0
