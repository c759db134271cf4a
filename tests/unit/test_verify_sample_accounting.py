"""The record of lost samples: every sample of every mini-batch is applied once to every layer, or
on record, or found.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.records.survivor_records import (
    LOST,
    REPEATED,
    AppliedSamples,
    LostSamples,
    lost,
    repeated,
)
from ecrl_cli.verify.sample_accounting import unaccounted

LAYERS = ("head", "middle", "stem")
WINDOWS = {1: (7, 3, 5, 1), 2: (2, 4, 6, 4)}  # in the second mini-batch sample 4 is due twice
WHOLE = [AppliedSamples(step, samples, LAYERS) for step, samples in WINDOWS.items()]
# Step 2: everybody's on the head, then half of the workers are dead.
FORWARD = [
    WHOLE[0],
    AppliedSamples(2, WINDOWS[2], ("head",)),
    AppliedSamples(2, (2, 4), ("middle", "stem")),
]
FORWARD_RECORD = lost(2, (6, 4), ("middle", "stem"), (1,), "lossy_forward")
# Step 2: the head is updated, then everything once more.
ROLLBACK = [*WHOLE, AppliedSamples(2, WINDOWS[2], ("head",))]
ROLLBACK_RECORD = repeated(2, WINDOWS[2], ("head",), (0, 1), "immediate_rollback")


@pytest.mark.parametrize(
    ("applied", "recorded"), [(WHOLE, []), (FORWARD, FORWARD_RECORD), (ROLLBACK, ROLLBACK_RECORD)]
)
def test_what_was_applied_and_what_the_record_names_add_up(
    applied: list[AppliedSamples], recorded: list[LostSamples]
) -> None:
    assert unaccounted(WINDOWS, LAYERS, applied, recorded) == []


@pytest.mark.parametrize(
    ("applied", "recorded", "said"),
    [
        (
            FORWARD,
            [],
            "step 2: 2 samples, the first 4, count 1 time too seldom on middle and 1 more",
        ),
        (ROLLBACK, [], "step 2: 3 samples, the first 2, count 1 time too often on head"),
        (
            WHOLE,
            FORWARD_RECORD,
            "step 2: 2 samples, the first 4, count 1 time too often on middle and 1 more",
        ),
        (WHOLE, ROLLBACK_RECORD, "too seldom on head"),
        (FORWARD, [replace(FORWARD_RECORD[0], layers=("middle",))], "too seldom on stem"),
        (
            FORWARD,
            [replace(FORWARD_RECORD[0], samples=(4,))],
            "step 2: 1 sample, the first 6, count 1 time too seldom",
        ),
        (
            FORWARD,
            [replace(FORWARD_RECORD[0], samples=(4, 4))],
            "step 2: 2 samples, the first 4, count 1 time too often",
        ),
        (FORWARD, [replace(FORWARD_RECORD[0], effect=REPEATED)], "count 2 times too seldom"),
        (
            WHOLE[:1],
            [],
            "step 2: 3 samples, the first 2, count 1 time too seldom on head and 2 more",
        ),
        ([*WHOLE, WHOLE[0]], [], "step 1: 4 samples, the first 1, count 1 time too often"),
        (
            [WHOLE[0], AppliedSamples(2, (2, 4, 6), LAYERS)],
            [],
            "step 2: 1 sample, the first 4, count 1 time too seldom",
        ),
        ([*WHOLE, AppliedSamples(3, (1,), LAYERS)], [], "step 3 is on record and was never due"),
        ([*WHOLE, AppliedSamples(2, (), ("tail",))], [], "step 2: no layer is called 'tail'"),
        (
            WHOLE,
            [LostSamples(2, "forgotten", (), ("head",), (), "x")],
            "step 2: 'forgotten' is no effect",
        ),
    ],
)
def test_what_does_not_add_up_is_found(
    applied: list[AppliedSamples], recorded: list[LostSamples], said: str
) -> None:
    found = unaccounted(WINDOWS, LAYERS, applied, recorded)
    assert any(said in line for line in found), found


def test_nothing_lost_is_no_line_and_a_line_survives_as_json() -> None:
    assert lost(1, (), LAYERS, (0,), "x") == repeated(1, (3,), (), (0,), "x") == []
    (line,) = FORWARD_RECORD
    assert (line.effect, decode(LostSamples, encode(line))) == (LOST, line)
