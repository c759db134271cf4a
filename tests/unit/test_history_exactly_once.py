"""The meaning of "exactly once" that both judges share: order, and how often each sample came."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ecrl_cli.history.exactly_once import SampleCounts, counted, discrepancies, in_order


@pytest.mark.parametrize(
    ("consumed", "due", "kept"),
    [
        ((1, 2, 3), (1, 2, 3), True),
        ((1, 3, 2), (1, 2, 3), False),
        ((1, 2), (1, 2, 3), False),
        (None, (1, 2, 3), True),
        ((1, 2, 3), None, True),
    ],
)
def test_samples_are_in_order_where_both_records_tell_the_same_or_one_tells_nothing(
    consumed: tuple[int, ...] | None, due: tuple[int, ...] | None, kept: bool
) -> None:
    assert in_order(consumed, due) is kept


def test_a_discrepancy_says_which_sample_came_how_much_too_often_or_too_seldom() -> None:
    assert discrepancies(Counter("aabd"), Counter("abbc")) == {"a": 1, "b": -1, "c": -1, "d": 1}
    assert discrepancies(Counter("aab"), Counter("aba")) == {}


@pytest.mark.parametrize(
    ("consumed", "due", "counts"),
    [
        ("abc", "abc", SampleCounts(3)),
        ("aaabc", "abc", SampleCounts(5, duplicates=2)),
        ("ab", "abcc", SampleCounts(2, missing=2)),
        ("abcx", "abc", SampleCounts(4, extra=1)),
        ("abcxx", "abc", SampleCounts(5, duplicates=1, extra=1)),
        ("aab", "aab", SampleCounts(3)),  # due twice
        ("", "", SampleCounts(0)),
    ],
)
def test_counts_tell_duplicates_from_missing_samples_and_from_strange_ones(
    consumed: str, due: str, counts: SampleCounts
) -> None:
    assert counted(Counter(consumed), Counter(due)) == counts
    assert counts.too_often == counts.duplicates + counts.extra


def test_a_share_counts_as_many_samples_as_it_stands_for() -> None:
    size = {"a": 5, "b": 7, "x": 11}.__getitem__
    assert counted(Counter("aax"), Counter("ab"), size) == SampleCounts(21, 5, 7, 11)


def test_what_was_consumed_and_what_is_missing_is_what_was_due_and_what_came_too_often() -> None:
    draw = Random(7)
    for _ in range(200):
        consumed, due = (Counter(draw.choices("abcdef", k=draw.randrange(9))) for _ in range(2))
        counts = counted(consumed, due)
        assert counts.consumed + counts.missing == due.total() + counts.too_often
