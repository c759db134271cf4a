"""What the judge says of two runs held against each other where one thing is wrong; and the folds
beneath it by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ecrl_cli.errors import RecordError
from ecrl_cli.history.divergence import loss_divergence, state_divergence
from ecrl_cli.history.lineage import Lineage, Segment, lineage, same_sized
from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.history.membership import was_stopped
from ecrl_cli.history.timeline import Timeline, TimelineSlice, replays
from ecrl_cli.records.events import Attempt, CheckpointLine
from ecrl_cli.verify import reference
from ecrl_cli.verify.checkpoints import _lost
from ecrl_cli.verify.disk_state import StoredCheckpoint
from ecrl_cli.verify.reference import FREE, PER_LINE, SAMPLES_FREE, SAMPLES_PER_LINE, check_extent
from ecrl_cli.verify.retention import Folder, step_of
from ecrl_cli.verify.trajectory import _reasons, _why_no_reference, same_trajectory
from ecrl_cli.verify.verdict import (
    INVALID,
    SHOWN,
    UNKNOWN,
    VALID,
    Finding,
    FindingBuilder,
    counted,
    worst,
)
from ecrl_cli.verify.verification_input import Case, saves
from tests.runs.builder import build_blk, build_ref
from tests.runs.changed import Records, attempts, left, logged, rank_line
from tests.runs.sentence import assert_said, told
from tests.runs.spoilt_states import build_states

OTHER = "0" * 64


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunRecords, RunRecords]]:
    """A struck run and its reference, without and with the state of each rank."""
    folder = tmp_path_factory.mktemp("runs")
    plain = load(build_blk(folder)), load(build_ref(folder))
    return {
        "plain": plain,
        "states": (
            load(build_states(folder / "states", "blk")),
            load(build_states(folder / "states", "ref")),
        ),
    }


def other_end(**changes: Any) -> Records:
    return lambda found: left(found, found.final.attempt, final=replace(found.final, **changes))  # type: ignore[union-attr,type-var]


def other_end_of(rank: int, **changes: Any) -> Records:
    def change(found: RunRecords) -> RunRecords:
        assert found.final is not None
        return other_end(
            ranks=tuple(
                replace(state, **changes) if state.rank == rank else state
                for state in found.final.ranks
            )
        )(found)

    return change


def same(found: RunRecords) -> RunRecords:
    return found


def components(number: int, rank: int, step: int, **changes: str) -> Records:
    def change(found: RunRecords) -> RunRecords:
        line = next(
            line for line in found.logs(number).ranks[rank].events if line.global_step == step
        )
        return rank_line(found, number, rank, step, components=(line.components or {}) | changes)

    return change


# By name: which pair, what is changed of the run, what of the reference, what is said, with which
# status.
APART: dict[str, tuple[str, Records, Records, str, str]] = {
    "nothing": (
        "plain",
        same,
        same,
        "equal to ref in every loss of 24 steps and in the final state; 10 replayed lines",
        VALID,
    ),
    "no end of the reference": (
        "plain",
        same,
        lambda found: left(found, 0, final=None),
        "the reference has no final record: it did not come to its end",
        UNKNOWN,
    ),
    "no end of the run": (
        "plain",
        lambda found: left(found, 2, final=None),
        same,
        "this run has no final record: its end state is not known",
        UNKNOWN,
    ),
    **{
        f"an end of other {name}": (
            "plain",
            other_end(**{f"{name}_digest": OTHER}),
            same,
            f"the final {name} differ: apart by step 24 at the latest",
            INVALID,
        )
        for name in ("parameters", "buffers", "optimizer", "rng")
    },
    "another loss at the end": (
        "plain",
        other_end(loss=0.5),
        same,
        "the final loss is 0.5, the reference's",
        INVALID,
    ),
    **{
        f"a rank that ends with other {name}": (
            "states",
            other_end_of(1, **{name: OTHER}),
            same,
            f"the end of rank 1 differs from that of the reference's in {name}",
            INVALID,
        )
        for name in ("parameters", "buffers", "optimizer", "rng", "train")
    },
    "a loss of rank 1": (
        "plain",
        lambda found: rank_line(found, 2, 1, 22, loss=0.5),
        same,
        "the first differing step is step 22 at the latest, component loss (rank 1",
        INVALID,
    ),
    "the first loss": (
        "plain",
        lambda found: rank_line(found, 0, 1, 1, loss=0.5),
        same,
        "the first differing step is step 1, component loss",
        INVALID,
    ),
    **{
        f"another {name} of rank 1": (
            "states",
            components(2, 1, 22, **{name: OTHER}),
            same,
            f"the first differing step is step 22, component state (rank 1: {name})",
            INVALID,
        )
        for name in ("parameters", "buffers", "optimizer", "rng", "train")
    },
    "a learning rate of its own": (
        "states",
        lambda found: rank_line(found, 2, 1, 22, lr=0.5),
        same,
        "the first differing step is step 22, component state (rank 1: learning",
        INVALID,
    ),
    "a line that the run lacks": (
        "plain",
        lambda found: logged(
            found, lambda line: None if (line.global_step, line.rank) == (24, 1) else line, 2
        ),
        same,
        "step 24: this run lacks the losses of ranks [1]",
        UNKNOWN,
    ),
    "a line that the reference lacks": (
        "plain",
        same,
        lambda found: logged(
            found, lambda line: None if (line.global_step, line.rank) == (24, 1) else line
        ),
        "step 24: the reference lacks the losses of ranks [1]",
        UNKNOWN,
    ),
    "a reference without its states": (
        "states",
        same,
        lambda found: logged(found, lambda line: replace(line, components=None, state_digest=None)),
        "the reference was to log digests of its state, and has none",
        UNKNOWN,
    ),
    "another loss done again": (
        "plain",
        lambda found: rank_line(found, 1, 1, 8, loss=0.5),
        same,
        "step 8 rank 1: loss 0.5 in attempt 1",
        INVALID,
    ),
    "another state done again": (
        "states",
        components(1, 1, 8, rng=OTHER),
        same,
        "step 8 rank 1: the state in attempt 1 is not that in attempt 0 (rng)",
        INVALID,
    ),
    "no state done again": (
        "states",
        lambda found: rank_line(found, 1, 1, 8, components=None, state_digest=None),
        same,
        "step 8 rank 1: no digest of the state in attempt 1",
        UNKNOWN,
    ),
}


@pytest.mark.parametrize("name", APART)
def test_where_two_runs_part_is_named(
    pairs: dict[str, tuple[RunRecords, RunRecords]], name: str
) -> None:
    pair, ours, theirs, words, status = APART[name]
    run, ref = pairs[pair]
    finding = same_trajectory(Case(ours(run), theirs(ref)))
    assert finding.status == status and told(finding, words), finding


def test_how_far_two_runs_are_apart_is_measured_step_by_step(
    pairs: dict[str, tuple[RunRecords, RunRecords]],
) -> None:
    """A loss of rank 1 is 0.5 off in steps 22 and 23, the mean of both ranks a half of that."""
    run, ref = pairs["plain"]
    off = logged(
        run,
        lambda line: (
            replace(line, loss=line.loss + 0.5)
            if line.rank == 1 and line.global_step in (22, 23)
            else line
        ),
        2,
    )  # type: ignore[operator]
    finding = same_trajectory(Case(off, ref))
    assert told(
        finding,
        "absolute difference of the mean loss over 24 steps: max 0.25, mean 0.0208, area 0.5",
    ), finding
    assert told(finding, "noise floor: not known, it takes two undisturbed runs beside this one")


def test_two_references_that_disagree_decide_only_against_a_run_that_equals_neither(
    pairs: dict[str, tuple[RunRecords, RunRecords]],
) -> None:
    run, ref = pairs["plain"]
    other = other_end(parameters_digest=OTHER)(ref)
    words = "the references ref and ref disagree: the final parameters differ"
    torn = same_trajectory(Case(run, ref, others=(other,)))
    assert (
        torn.status == UNKNOWN
        and torn.message == f"same-trajectory - {words}"
        and len(torn.evidence) == 2
    )
    neither = same_trajectory(Case(other_end(optimizer_digest=OTHER)(run), ref, others=(other,)))
    assert neither.status == INVALID and neither.evidence[-1] == words
    losses = same_trajectory(Case(run, ref, others=(rank_line(ref, 0, 1, 7, loss=0.5),)))
    assert_said(losses, UNKNOWN, "the references ref and ref disagree: the losses of step 7 differ")
    assert same_trajectory(Case(run, ref, others=(ref,))).status == VALID


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "no undisturbed run to compare with"),
        (("a",), "a shares its reference_id, and none of them is undisturbed"),
        (("a", "b", "c"), "a and 2 more share its reference_id, and none of them is undisturbed"),
    ],
)
def test_why_there_is_no_reference_is_told(names: tuple[str, ...], words: str) -> None:
    assert _why_no_reference(names) == words


# Folds, by hand


def test_segments_of_another_size_part_at_their_first_common_step() -> None:
    def path(*segments: tuple[int, int, int]) -> Lineage:
        return Lineage(
            tuple(
                Segment(n, size, after, until) for n, (size, after, until) in enumerate(segments)
            ),
            (),
        )

    ours = path((2, 0, 6), (1, 6, 12), (2, 12, 24))
    assert same_sized(ours, path((2, 0, 24))) == 6
    assert same_sized(ours, path((2, 0, 6), (1, 6, 24))) == 12
    assert same_sized(ours, path((2, 0, 6))) == 24, "they have no step in common that differs"
    assert same_sized(ours, ours) == 24
    assert [ours.of(step) for step in (0, 6, 7, 24, 25)] == [
        None,
        ours.segments[0],
        ours.segments[1],
        ours.segments[2],
        None,
    ]
    assert [len(s.steps()) for s in ours.segments] == [6, 6, 12] and ours.segments[
        1
    ].steps() == range(7, 13)


@pytest.mark.parametrize(
    ("outcomes", "stopped"),
    [
        (("survived", "stopped"), True),
        (("survived", "survived", "completed"), True),
        (("survived", "died"), False),
        (("stopped", "died"), True),
        (("died", "stopped"), False),
    ],
)
def test_an_attempt_was_stopped_if_those_who_went_on_with_it_were(
    outcomes: tuple[str, ...], stopped: bool
) -> None:
    chain = [
        Attempt(
            n, 2, outcome=outcome, continues=n - 1 if n and outcomes[n - 1] == "survived" else None
        )
        for n, outcome in enumerate(outcomes)
    ]
    assert was_stopped(chain, chain[0]) == was_stopped(chain[::-1], chain[0]) == stopped


def test_replays_are_counted_by_attempt() -> None:
    pieces = [
        TimelineSlice("replay", start, start + 0.5, attempt, 0, step)
        for start, attempt, step in ((0.0, 1, 7), (0.5, 1, 7), (1.0, 1, 8), (5.0, 2, 19))
    ]
    account = Timeline((*pieces, TimelineSlice("compute", 2.0, 3.0, 1, 0, 9)), ((0.0, 6.0),), 0.0)
    assert replays(account) == {1: (2, 1.5), 2: (1, 0.5)}


@pytest.mark.parametrize(("overlap", "seen"), [(0.5e-6, False), (2e-6, True)])
def test_slices_overlap_by_more_than_rounding_and_in_one_session(
    overlap: float, seen: bool
) -> None:
    a, b = TimelineSlice("compute", 0.0, 1.0, 0, 0), TimelineSlice("sync", 1.0 - overlap, 2.0, 0, 0)
    assert bool(Timeline((b, a), ((0.0, 2.0),), 0.0).overlaps()) == seen
    assert not Timeline((a, replace(b, session=1)), ((0.0, 2.0),), 0.0).overlaps()


def test_divergence_of_losses_and_of_tensors() -> None:
    apart = loss_divergence(
        {1: {0: 1.0}, 3: {0: 2.0, 1: 4.0}, 4: {0: 1.0}},
        {1: {0: 1.5}, 3: {0: 2.0, 1: 2.0}, 4: {0: 1.0}},
    )
    assert (apart.steps, apart.maximum, apart.mean, apart.auc, apart.first_differing_step) == (
        3,
        1.0,
        0.5,
        2.0,
        1,
    )
    alone = loss_divergence({1: {0: 1.0}}, {2: {0: 1.0}})
    assert (alone.steps, alone.maximum, alone.mean, alone.auc, alone.first_differing_step) == (
        0,
        0.0,
        0.0,
        0.0,
        None,
    )
    zero, one = {"w": np.zeros(2)}, {"w": np.array([0.0, 2.0])}
    assert (
        state_divergence(one, zero).relative_l2 == float("inf")
        and state_divergence(zero, zero).relative_l2 == 0.0
    )
    reshaped = state_divergence(
        {"w": np.zeros((2, 1)), "x": np.ones(1)}, {"w": np.zeros(2), "x": np.ones(1)}
    )
    assert reshaped.differing == ("w",) and reshaped.l2 == 0.0


def claiming(found: RunRecords, steps: int) -> RunRecords:
    """Both ranks' logs are gone but for the first line of each, which is of step `steps`."""
    config = replace(found.stored.config, target_steps=10**9)
    found = replace(found, stored=replace(found.stored, config=config))
    return logged(
        found, lambda line: replace(line, global_step=steps) if line.global_step == 1 else None
    )


def test_so_many_steps_may_be_claimed_for_each_line(
    pairs: dict[str, tuple[RunRecords, RunRecords]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines of two ranks: each step up to the last counts for both."""
    ref = attempts(pairs["plain"][1], 0, last_step=1)
    most = (FREE + PER_LINE * 2) // 2
    ref = left(ref, 0, final=None)
    monkeypatch.setattr(reference, "SAMPLES_FREE", 2**40)
    check_extent(claiming(ref, most))
    with pytest.raises(
        RecordError,
        match=f"claims {2 * most + 2} steps of ranks up to step {most + 1}, its logs hold 2 lines",
    ):
        check_extent(claiming(ref, most + 1))


def test_so_many_samples_may_be_claimed_for_each_line(
    pairs: dict[str, tuple[RunRecords, RunRecords]],
) -> None:
    """48 lines, 24 steps of 8 samples: one epoch of a large data set."""
    ref = pairs["plain"][1]
    assert ref.dataset is not None
    most = SAMPLES_FREE + SAMPLES_PER_LINE * 48
    check_extent(replace(ref, dataset=replace(ref.dataset, size=most)))
    with pytest.raises(
        RecordError, match=f"claims 1 epochs of {most + 1} samples, the logs hold 48 lines"
    ):
        check_extent(replace(ref, dataset=replace(ref.dataset, size=most + 1)))


# Small parts


def test_the_worst_note_opens_and_the_rest_is_counted() -> None:
    notes, more = FindingBuilder("it"), FindingBuilder("it")
    notes.missing("m")
    for n in range(SHOWN + 2):
        more.broken(f"b{n}")
    notes.add_all(more)
    finding = notes.finding("kept", ["after"])
    assert finding == Finding(
        "it",
        INVALID,
        "Broke promise: it - b0",
        (*(f"b{n}" for n in range(1, SHOWN)), "and 3 more", "after"),
    )
    few = FindingBuilder("it")
    for n in range(SHOWN):
        few.missing(f"m{n}")
    assert few.finding("").evidence == tuple(f"m{n}" for n in range(1, SHOWN)) and not few.clean
    assert FindingBuilder("it").finding("kept", ["after"]) == Finding(
        "it", VALID, "kept", ("after",)
    )
    assert (
        worst(["valid", "unknown", "not checked"]) == "unknown"
        and worst(["not checked", "valid"]) == "valid"
    )
    assert counted([]) == "no promise checked"


def line(event: str, step: int, attempt: int = 0, **changes: Any) -> CheckpointLine:
    return CheckpointLine(event, step, attempt, 0.0, 0.0, **changes)


def test_saves_are_by_step_and_keep_the_first_line_of_an_event() -> None:
    first, again = line("committed", 12, bytes=1), line("committed", 12, bytes=2)
    found = saves([line("submitted", 18), first, again])
    assert list(found) == [12, 18] and found[12] == {"committed": first}


def test_retention_spares_one_checkpoint_until_the_next_death() -> None:
    folder = Folder(keep=2, held_from=7, holds=True)
    for step in (6, 12, 18, 24, 30):
        folder.apply(line("committed", step, 1))
    assert folder.superfluous == {6: 1, 18: 1}
    folder.apply(line("retired", 6, 1))
    folder.apply(line("retired", 12, 1))
    assert [(o.line.global_step, o.newer, o.held) for o in folder.overreached] == [(12, 3, True)]
    folder.apply(line("committed", 12, 1))
    folder.held_from = 25
    folder.apply(line("committed", 36, 2))
    assert folder.superfluous == {6: 1, 12: 2, 18: 1, 24: 2}


def test_retention_keeps_the_newest_and_counts_what_is_newer() -> None:
    folder = Folder(keep=2)
    for step in (6, 12, 18, 24):
        folder.apply(line("committed", step, attempt=step // 12))
    assert folder.superfluous == {6: 1, 12: 2} and sorted(folder.live) == [6, 12, 18, 24]
    folder.apply(line("retired", 6, 2))
    folder.apply(line("retired", 18, 2))
    assert (
        sorted(folder.live) == [12, 18, 24]
        and sorted(folder.retired) == [6]
        and folder.gone == {6, 18}
    )
    assert [(each.line.global_step, each.newer) for each in folder.overreached] == [(18, 1)]
    folder.apply(line("committed", 6, 3))
    assert 6 in folder.live and not folder.retired and folder.gone == {18}


@pytest.mark.parametrize(
    ("path", "step"),
    [("checkpoints/step_00000018", 18), (".rejected_step_00000006.ab.pt", 6), ("latest_ok", -1)],
)
def test_the_step_in_the_name_of_a_checkpoint(path: str, step: int) -> None:
    assert step_of(path) == step


def test_why_a_committed_checkpoint_is_lost(
    pairs: dict[str, tuple[RunRecords, RunRecords]],
) -> None:
    there = next(c for c in Case(pairs["plain"][0]).disk if c.step == 18)
    own = line("committed", 18, 1, bytes=7, commit_sha256=there.report.commit_sha256)
    foreign: StoredCheckpoint = replace(there, bytes=7)
    assert _lost(own, there) == _lost(own, foreign) == _lost(replace(own, bytes=0), foreign) == ""
    assert _lost(own, None) == "step 18 was committed (attempt 1) and is gone"
    assert _lost(own, replace(there, bytes=8)) == "step 18 was committed with 7 bytes, there are 8"
    assert (
        _lost(replace(own, commit_sha256="a" * 64), there)
        == "step 18 was committed as aaaaaaaa and another checkpoint lies there"
    )
    refused = replace(
        there, report=replace(there.report, ok=False, layer="hash", reason="it is another")
    )
    assert (
        _lost(own, refused)
        == "step 18 was committed and the integrity check refuses it: hash: it is another"
    )


def test_what_is_read_to_be_judged_is_held_to_that(
    pairs: dict[str, tuple[RunRecords, RunRecords]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = left(attempts(pairs["plain"][1], 0, last_step=1), 0, final=None)
    monkeypatch.setattr(reference, "load", lambda layout, cut=None: claiming(ref, 10**6))
    with pytest.raises(RecordError, match=r"claims 2,?000,?000 steps of ranks"):
        reference.bounded(ref.layout)


def test_ends_are_compared_only_where_both_runs_come_to_the_same_step(
    pairs: dict[str, tuple[RunRecords, RunRecords]],
) -> None:
    run, reference = pairs["plain"]
    for ours, theirs in (
        (left(run, 2, final=None), reference),
        (run, left(reference, 0, final=None)),
        (run, other_end(global_step=23)(reference)),
    ):
        assert _reasons(Case(ours), theirs, lineage(theirs)) == []
    same_end = _reasons(Case(run), reference, lineage(reference))
    assert same_end == ["of the final state differ: nothing"]
