"""What the answer claims, and what it does not: no winner without an interval, above the noise,
with the scale.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.text.claims import claims, noise, sentences, winner
from ecrl_cli.report.text.summary import pooled_over, summarize
from tests.unit.report_runs import (
    SEEDS,
    Plan,
    arms,
    compared,
    edit,
    full_plans,
    full_sweep,
    judged,
    judged_again,
    make_run,
    make_sweep,
    timed,
    write_json,
)


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two suites in which overlapped beats blocking by a quarter, every time; nobody changes it."""
    return full_sweep(tmp_path_factory.mktemp("clear"))


def walls(
    folder: Path,
    overlapped: tuple[float, float, float],
    names: tuple[str, ...] = ("ref", "ref2", "blk", "ovl"),
) -> Comparison:
    """One suite: blocking takes 20 s with each seed, overlapped as given, the references 10 s and
    up to 1% more.
    """
    full_sweep(folder, suites=("one",), names=names)
    for seed, ovl in zip(SEEDS, overlapped, strict=True):
        timed(folder / f"one-blk-s{seed}", 20.0)
        timed(folder / f"one-ovl-s{seed}", ovl)
    return compared(folder)


def whole(shown: Comparison) -> str:
    """Every claim with its statistics."""
    return " ".join(each.whole for each in sentences(shown))


def test_a_clear_winner_is_named_with_its_numbers(clear: Comparison) -> None:
    said = summarize(clear)
    assert (
        said.headline
        == "Overlapped beats blocking: goodput of ovl is +25.0% against blk. Every recovery was"
        " judged valid"
        and said.tone == "good"
    )
    first, *_ = sentences(clear)
    assert first.text == "ovl beats blk: +25.0% goodput, seen in six pairs of two suites together."
    assert first.statistics.startswith(
        "Goodput of ovl against blk: +25.0% (mean of ratios, identical in all pairs, 6 pairs of 2"
        " suites and 3 seeds; ratio of means +25.0%;"
    )
    assert first.statistics.endswith(
        "6 up, 0 down; on the published clock +25.0%), scale smoke; above the noise floor of 1.2%."
    )


def test_a_slower_overlap_loses(tmp_path: Path) -> None:
    shown = walls(tmp_path, (25.0, 25.1, 24.9))
    assert winner(shown).startswith("Blocking beats overlapped: goodput of ovl is -20.0%")
    assert sentences(shown)[0].text == "blk beats ovl: ovl has -20.0% goodput, seen in three pairs."


@pytest.mark.parametrize(
    ("overlapped", "why"),
    [
        ((16.0, 20.5, 24.0), "the interval includes zero"),
        ((19.88, 19.90, 19.89), "the interval reaches into the noise floor of 2.9%"),
    ],
)
def test_no_winner_within_the_noise_or_around_zero(
    tmp_path: Path, overlapped: tuple[float, float, float], why: str
) -> None:
    shown = walls(tmp_path, overlapped)
    assert winner(shown) == "Overlapped and blocking are not statistically distinguishable"
    assert sentences(shown)[
        0
    ].text == "ovl and blk: no difference that three pairs could show." and sentences(shown)[
        0
    ].statistics.endswith(f"{why}.")
    assert (
        "beats" not in " ".join(summarize(shown).sentences)
        and "beats" not in summarize(shown).headline
    )


def test_without_an_a_a_arm_the_answer_says_so(tmp_path: Path) -> None:
    shown = walls(tmp_path, (16.0, 16.1, 16.2), names=("ref", "blk", "ovl"))
    first = sentences(shown)[0]
    assert (
        first.text.startswith("ovl beats blk: ")
        and "no A/A arm: add variant=...,ref2" in first.statistics
    )
    floor = noise(shown)
    assert (
        floor
        and floor.whole
        == "How far equal runs lie apart here was not measured: add variant=...,ref2."
    )


def test_without_clean_the_price_of_checkpoints_is_unknown(
    tmp_path: Path, clear: Comparison
) -> None:
    shown = walls(tmp_path, (16.0, 16.1, 16.2))
    assert any(
        "was not measured: ref saves too, in blocking mode" in each.text
        for each in sentences(shown)
    )
    (priced,) = [each for each in sentences(clear) if each.text.startswith("Checkpoints alone")]
    assert (
        priced.text
        == "Checkpoints alone cost 20.0% of goodput (ref against clean, seen in six pairs of two"
        " suites together)."
    )
    assert priced.statistics.startswith("Goodput of ref against clean: -20.0% (mean of ratios,")


def test_failures_have_a_price_and_the_noise_a_size(clear: Comparison) -> None:
    text = whole(clear)
    assert "Failures alone cost 50.0% of goodput (blk against ref, seen in six pairs" in text
    assert "Failures and overlapping together cost 37.5% of goodput (ovl against ref" in text
    assert re.search(
        r"A restart takes [0-9.]+ s on average\. Mean over 24 restarts, 95% .* to .*, scale"
        r" smoke\.",
        text,
    )
    assert re.search(
        r"Of [0-9.]+ m?s of stall that ovl saves against blk in a run, [0-9.]+ s come back as wall"
        r" time\.",
        text,
    )
    assert re.search(
        r"Stall saved [0-9.]+ m?s \(all identical\), wall time saved [0-9.]+ s \(95% .* to .*\)"
        r" \([0-9.]+%, BCa .*\), scale smoke\.",
        text,
    )
    floor = noise(clear)
    assert (
        floor
        and floor.text
        == "Equal runs lie up to 1.0% apart here: one pair means nothing below that, a mean over 6"
        " pairs means nothing below 1.2%."
    )
    assert floor.statistics.startswith(
        "The noise floor: ref2 and ref differ by up to 1.0% in goodput (6 pairs, 6 of 6 ended bit"
        " for bit alike) and equal runs"
    )


def test_one_repetition_is_one_observation_of_the_noise(tmp_path: Path) -> None:
    for variant, wall in (("ref", 10.0), ("ref2", 10.1)):
        timed(make_run(tmp_path / variant, Plan(variant, kills=())), wall)
    floor = noise(compared(tmp_path))
    assert (
        floor
        and floor.text
        == "The one pair of equal runs lies 1.0% apart: one observation of the noise."
    )


def test_wall_time_that_may_be_none_is_not_called_saved(tmp_path: Path) -> None:
    text = whole(walls(tmp_path, (16.0, 20.5, 24.0)))
    assert (
        "nothing comes back as wall time that three pairs could show." in text
        and "come back as wall time" not in text
    )


def crossed(folder: Path) -> Comparison:
    """Two suites: overlapping is a fifth faster in the first, a quarter slower in the second."""
    full_sweep(folder)
    for suite, wall in (("one", 16.0), ("two", 25.0)):
        for number, seed in enumerate(SEEDS):
            timed(folder / f"{suite}-blk-s{seed}", 20.0 + number)
            timed(folder / f"{suite}-ovl-s{seed}", wall * (1 + number / 20))
    for suite in ("one", "two"):
        for variant in ("ref", "ref2"):
            for seed in SEEDS:
                timed(folder / f"{suite}-{variant}-s{seed}", 10.0)
    return compared(folder)


def test_no_pooled_winner_hides_that_the_suites_disagree(tmp_path: Path) -> None:
    shown = crossed(tmp_path)
    assert (
        winner(shown) == "Of 2 suites overlapped wins in 1, blocking in 1; 0 are not statistically"
        " distinguishable"
    )
    text = whole(shown)
    assert (
        "ovl beats blk in one: +25.0% goodput, seen in three pairs." in text
        and "Goodput of ovl against blk in one: +25.0%" in text
    )
    assert "blk beats ovl in two: ovl has -20.0% goodput" in text


def test_suites_of_two_machines_have_an_answer_each(tmp_path: Path) -> None:
    full_sweep(tmp_path)
    for run in tmp_path.glob("two-*"):
        edit(RunLayout(run).environment, cpu={"model": "another", "logical": 2})
    shown = compared(tmp_path)
    assert (
        winner(shown) == "Of 2 suites overlapped wins in 2, blocking in 0; 0 are not statistically"
        " distinguishable"
    )
    text = " ".join(summarize(shown).sentences)
    assert (
        "The suites are not pooled: two has another cpu than one." in text
        and "A restart in two takes " in text
    )
    assert "6 pairs" not in whole(shown)


def test_many_settings_of_one_seed_are_one_sentence_with_the_lowest_and_the_highest(
    tmp_path: Path,
) -> None:
    """As `+matrix=sensitivity` has them; four settings of each variant."""
    for every, ratio in ((5, 1.25), (6, 1.1), (10, 0.9), (12, 0.8)):
        for variant, strategy, wall in (
            ("ref", "blocking", 8.0),
            ("blk", "blocking", 10.0),
            ("ovl", "overlapped", 10.0 / ratio),
        ):
            kills = () if variant == "ref" else (24, 45)
            timed(
                make_run(
                    tmp_path / f"{variant}-{every}",
                    Plan(variant, "one", every=every, kills=kills, strategy=strategy),
                ),
                wall,
            )
    said = summarize(compared(tmp_path))
    assert said.sentences[0].startswith(
        "12 runs of one: ref in 4 settings, blk in 4 settings and ovl in 4 settings; "
    )
    ends = "-20.0% (every 12) to +25.0% (every 5)"
    assert (
        f"Goodput of ovl against blk in 4 settings: {ends}, above it in 2; one pair each, scale"
        " smoke." in said.sentences
    )
    assert sum(sentence.startswith("Goodput of ovl") for sentence in said.sentences) == 2
    assert sum(" ms in " in sentence or " s in ref" in sentence for sentence in said.sentences) == 1


def test_one_seed_has_no_winner(tmp_path: Path) -> None:
    make_sweep(tmp_path, arms())
    shown = compared(tmp_path)
    said = summarize(shown)
    assert winner(shown) == "" and said.headline == "Every recovery was judged valid"
    assert any(
        sentence.startswith("Goodput of ovl is ") and sentence.endswith("above blk, scale smoke.")
        for sentence in said.sentences
    )
    assert not any("beats" in sentence for sentence in said.sentences)


def test_what_failed_a_gate_has_no_winner(tmp_path: Path) -> None:
    made = [
        Plan(**{**vars(plan), "verdict": "invalid" if plan.variant == "ovl" else "valid"})
        for plan in full_plans("one")
    ]
    make_sweep(tmp_path, made)
    said = summarize(compared(tmp_path))
    assert said.tone == "bad" and "broke a promise" in said.headline
    assert not any("beats" in sentence or "could show" in sentence for sentence in said.sentences)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("loss 1.8480000197887421 instead of 1.7", "loss 1.848 instead of 1.7"),
        (
            "loss 2.1234567890123 instead of 2.1234567890124",
            "loss 2.1234567890123 instead of 2.1234567890124",
        ),
    ],
    ids=["long", "apart at the end alone"],
)
def test_what_broke_is_told_with_as_many_digits_as_tell_it_apart(
    found: str, told: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "blk", Plan(verdict="invalid"))
    document = json.loads(RunLayout(run).verdict.read_text())
    for finding in document["findings"]:
        if finding["promise"] == "same-trajectory":
            finding |= {"status": "invalid", "message": f"Broke promise: same-trajectory - {found}"}
        else:
            finding["status"] = "valid"
    judged(RunLayout(run), document)
    assert (
        summarize(compared(tmp_path)).sentences[0].startswith(f"blk broke same-trajectory: {told}.")
    )


def test_many_settings_are_counted(tmp_path: Path) -> None:
    for every in (5, 6, 10, 12):
        for seed in SEEDS:
            for variant, strategy, wall in (
                ("blk", "blocking", 20.0),
                ("ovl", "overlapped", 16.0 if every < 12 else 24.0),
            ):
                name = tmp_path / f"{variant}-{every}-{seed}"
                make_run(name, Plan(variant, seed=seed, every=every, strategy=strategy))
                timed(name, wall)
    shown = compared(tmp_path)
    assert len(claims(shown, "ovl", "blk")) == 4
    assert (
        winner(shown)
        == "Of 4 settings overlapped wins in 3, blocking in 1; 0 are not statistically"
        " distinguishable"
    )
    assert "from -16.7% (ovl · every 12) to +25.0% (ovl · every " in sentences(shown)[0].statistics


def test_a_recovery_that_was_held_against_nothing_is_not_called_valid(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    full_sweep(folder, suites=("one",))
    for run in folder.glob("one-blk-*"):
        document = json.loads(RunLayout(run).verdict.read_text())
        for finding in document["findings"]:
            finding["status"] = (
                "not checked" if finding["promise"] == "same-trajectory" else finding["status"]
            )
        judged(RunLayout(run), document)
    said = summarize(compared(folder))
    assert (
        "Every run was judged valid, the trajectory of 3 of 6 recovered runs was not checked"
        in said.headline
    )
    told = [
        sentence
        for sentence in said.sentences
        if "not checked, because nothing could be held against" in sentence
    ]
    assert told and " 3 promises not checked" in told[0], said.sentences


def test_start_up_is_named_where_it_is_most_of_the_time(tmp_path: Path) -> None:
    make_sweep(tmp_path / "short", arms(steps=12))
    make_sweep(tmp_path / "long", arms(steps=200))
    said = [
        sentence
        for sentence in summarize(compared(tmp_path / "short")).sentences
        if sentence.startswith("Most of the time is start-up: ")
    ]
    assert len(said) == 1 and re.search(r"\d\d\.\d% of clean", said[0])
    assert not any(
        "start-up" in sentence for sentence in summarize(compared(tmp_path / "long")).sentences
    )


def test_what_pools_different_models_says_so(tmp_path: Path, clear: Comparison) -> None:
    assert pooled_over(clear) == ""
    make_sweep(
        tmp_path, [*full_plans("one"), *(replace(plan, model="vit") for plan in full_plans("two"))]
    )
    assert pooled_over(compared(tmp_path)).startswith(
        "Numbers over all suites pool different models (small_cnn, vit); each suite"
    )


SAME = (
    "Whether the gain of ovl over blk changes with the size of the checkpoint: no change that 9"
    " pairs at 3 sizes could show."
)
SIZES = {"one": 1_000_000, "two": 4_000_000, "three": 64_000_000}
GROWS = (
    "The gain of ovl over blk grows with the checkpoint: by 5 percentage points for each doubling"
    " of its size, seen in 9 pairs at 3 sizes"
)


def grown(
    folder: Path,
    gains: tuple[float, float, float],
    apart: float = 0.0,
    sizes: dict[str, int] = SIZES,
) -> str:
    """What is said of suites whose checkpoints are of SIZES, where overlapping gains `gains`, and
    from seed to seed `apart` less or more.
    """
    full_sweep(folder, suites=tuple(sizes), names=("ref", "blk", "ovl"))
    for (suite, size), gain in zip(sizes.items(), gains, strict=True):
        for number, seed in enumerate(SEEDS):
            timed(folder / f"{suite}-blk-s{seed}", 20.0)
            timed(folder / f"{suite}-ovl-s{seed}", 20.0 / (1 + gain + apart * (number - 1)))
            for arm in ("blk", "ovl"):
                layout = RunLayout(folder / f"{suite}-{arm}-s{seed}")
                said = read_json(layout.metrics)
                saved = said["checkpoints"]
                write_json(
                    layout.metrics,
                    said | {"checkpoints": saved | {"bytes": saved["committed"] * size + number}},
                )
                judged_again(layout)
    found = [
        each.whole
        for each in sentences(compared(folder))
        if "with the" in each.text and "checkpoint" in each.text
    ]
    return found[0] if found else ""


@pytest.mark.parametrize(
    ("gains", "apart", "said"),
    [
        ((0.0, 0.1, 0.3), 0.01, f"{GROWS}. Slope +5 points per doubling"),
        ((-0.2, -0.1, 0.1), 0.01, f"{GROWS}; it crosses zero at about 16 MB. Slope"),
        ((0.0, 0.3, 0.32), 0.01, SAME),
        ((0.4, 0.3, 0.1), 0.01, GROWS.replace("grows", "falls") + ". Slope -5"),
        ((0.1, 0.1, 0.1), 0.01, SAME),
        ((0.0, 0.1, 0.3), 0.5, SAME),
    ],
)
def test_whether_the_gain_grows_with_the_state_is_judged_by_the_slopes_interval(
    gains: tuple[float, float, float], apart: float, said: str, tmp_path: Path
) -> None:
    assert grown(tmp_path, gains, apart).startswith(said)


def test_two_sizes_show_no_trend_nor_do_sizes_that_are_nearly_one(
    clear: Comparison, tmp_path: Path
) -> None:
    assert "doubling" not in whole(clear)
    assert (
        grown(tmp_path, (0.0, 0.1, 0.3), 0.01, {"one": 230_000, "two": 260_000, "three": 300_000})
        == ""
    )
