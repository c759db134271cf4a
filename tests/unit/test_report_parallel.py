"""Work that is spread over processes comes back as if it had been done here."""

from __future__ import annotations

import os

import pytest

from ecrl_cli.linux.parallel import FEWEST, parallel_map


def test_results_come_in_order_and_from_other_processes() -> None:
    found = parallel_map(lambda number: (number * number, os.getpid()), range(40), workers=2)
    assert [square for square, _ in found] == [number * number for number in range(40)]
    assert os.getpid() not in {pid for _, pid in found}


def test_a_few_things_and_work_within_work_are_done_here() -> None:
    here = os.getpid()
    assert parallel_map(lambda _: os.getpid(), range(FEWEST - 1), workers=2) == [here] * (
        FEWEST - 1
    )
    within = parallel_map(
        lambda _: (os.getpid(), set(parallel_map(lambda _: os.getpid(), range(10), workers=2))),
        range(10),
        workers=2,
    )
    assert all(inner == {outer} for outer, inner in within)


def test_what_goes_wrong_there_is_raised_here_and_the_next_work_is_done() -> None:
    def fails(number: int) -> int:
        if number == 7:
            raise ValueError("seven")
        return number

    with pytest.raises(ValueError, match="seven"):
        parallel_map(fails, range(20), workers=2)
    assert parallel_map(str, range(8), workers=2) == [str(number) for number in range(8)]


@pytest.mark.parametrize("things", [range(FEWEST - 1), range(40)])
def test_what_is_to_be_done_meanwhile_is_done_here_once_and_behind_the_fork(things: range) -> None:
    seen: list[int] = []
    found = parallel_map(
        lambda _: (os.getpid(), len(seen)),
        things,
        workers=2,
        meanwhile=lambda: seen.append(os.getpid()),
    )
    elsewhere = {count for pid, count in found if pid != os.getpid()}
    assert seen == [os.getpid()] and elsewhere <= {0}
