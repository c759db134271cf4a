"""`store-soak`: what the reference allows, that a disagreement is found and shrunk, and that each
gate can fail.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.studies import StoreSoak
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS
from ecrl_cli.studies.store_soak.model import Model
from ecrl_cli.studies.store_soak.model_run import SoakSetup, play, shortest
from ecrl_cli.studies.store_soak.operations import Op, decoded, encoded, program, unrivalled
from ecrl_cli.studies.store_soak.study import STUDY
from tests import studies
from tests.studies import concluded, tried

STRICT = SoakSetup("atomic_dirsync", "group")


def model(durable: bool = True) -> Model:
    """Steps 1 to 3 are acknowledged by attempt 0, which began from nothing; step 4 has begun."""
    made = Model(durable, atomic=True)
    assert made.recover(None, set(), 0) == ""
    for step in (1, 2, 3):
        made.begin((step, 2), 0)
        assert made.acknowledge((step, 2), 0) == ""
    made.begin((4, 2), 0)
    return made


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ((3, 2), ""),
        ((4, 2), ""),
        ((2, 2), "lost_ack"),
        (None, "lost_all"),
        ((5, 2), "silent_wrong"),
    ],
)
def test_a_recovery_gives_what_was_acknowledged_last_or_what_had_begun_since(
    found: tuple[int, int] | None, wrong: str
) -> None:
    assert model().recover(found, set(), 1).partition(":")[0] == wrong


def test_another_number_of_ranks_is_another_content() -> None:
    assert model().recover((3, 4), set(), 1).startswith("silent_wrong")


def test_damage_excuses_the_damaged_one_and_no_other() -> None:
    made = model()
    made.damage(3)
    assert made.recover(None, set(), 1).startswith("lost_all")
    assert made.recover((2, 2), set(), 1) == ""


@pytest.mark.parametrize("power", ["O", "X"])
def test_a_loss_of_power_takes_only_what_is_not_promised(power: str) -> None:
    strict, weak = model(), model(durable=False)
    strict.lose_power(power)
    weak.lose_power(power)
    assert strict.recover((2, 2), set(), 1).startswith("lost_ack")
    assert weak.recover((2, 2), set(), 1) == "" and weak.recover((5, 2), set(), 2).startswith(
        "silent_wrong"
    )


def test_an_older_attempt_may_not_commit_behind_the_back_of_a_newer_one() -> None:
    made = model()
    assert made.recover((3, 2), set(), 1) == ""
    assert made.acknowledge((4, 2), 0).startswith("fence")
    assert made.acknowledge((3, 2), 0) == "", "the newer one knows of it"


def test_what_retention_leaves_is_there() -> None:
    made, whole = model(), {step: (step, 2) for step in (2, 3)}
    assert made.violation(whole, whole) == "", "step 1 may go"
    assert made.violation({3: (3, 2)}, {3}).startswith("gone: step 2")
    assert model().violation({**whole, 9: (9, 2)}, (2, 3, 9)).startswith("silent_wrong")


def test_half_a_checkpoint_is_excused_by_damage_and_by_a_loss_of_power_alone() -> None:
    made = model()
    assert not made.may_be_half(3, committed=False, grouped=True)
    made.lose_power("O")
    assert made.may_be_half(3, committed=False, grouped=True) and not made.may_be_half(
        3, committed=True, grouped=True
    )
    made.lose_power("X")
    assert made.may_be_half(3, committed=True, grouped=True)


def test_a_sound_store_agrees_and_everything_befalls_it() -> None:
    met: dict[str, int] = {}
    for number, cell in enumerate(
        (STRICT, SoakSetup("unsafe", "single"), SoakSetup("atomic_nodirsync", "group"))
    ):
        played = play(program(random.Random(number), 60), cell)
        assert (played.at, played.wrong) == (-1, "")
        met = {what: met.get(what, 0) + played.met[what] for what in {*met, *played.met}}
    assert (
        min(
            met[what]
            for what in (
                "met kill",
                "met X",
                "met a fault",
                "acknowledged",
                "recovered: the last acknowledged",
            )
        )
        > 0
    )


def test_a_program_plays_the_same_way_again_also_when_it_has_been_on_record() -> None:
    ops = program(random.Random(5), 40)
    assert decoded(encoded(ops)) == ops
    assert play(ops, STRICT) == play(decoded(encoded(ops)), STRICT)
    with pytest.raises(TypeError, match="no foo"):
        decoded([{"do": "save", "foo": 1}])


def broken(name: str) -> SoakSetup:
    bug = next(planted for planted in STORE_MUTANTS if planted.name == name)
    return SoakSetup(bug.mode, bug.layout, name)


def test_what_was_taken_away_does_not_come_back_with_a_loss_of_power() -> None:
    """As a loss of power would bring a file back whose removal nobody has synced: damage at rest is
    not the store's doing.
    """
    damaged = [
        Op("hand over"),
        Op("save"),
        Op("damage", detail="remove", number=559501),
        Op("save"),
        Op("damage", detail="empty", number=290931),
    ]
    for at in range(12):
        assert (
            play(
                [*damaged, Op("restart", "X", at, detail="all", number=4)],
                SoakSetup("atomic_dirsync", "group"),
            ).wrong
            == ""
        )


def test_a_disagreement_is_found_and_shrunk_to_its_core() -> None:
    cell = broken("ack_before_root_sync")
    for number in range(20):
        ops = unrivalled(program(random.Random(number), 40))
        if (played := play(ops, cell)).wrong.startswith("gone"):
            break
    few = shortest(
        ops[: played.at + 1], lambda candidate: play(candidate, cell).wrong.startswith("gone")
    )
    assert len(few) <= 3 and play(few, cell).at == len(few) - 1, few
    assert play(few, STRICT).wrong == "", "the sound store agrees with the very same program"


def test_the_shortest_program_lacks_nothing_and_holds_nothing_idle() -> None:
    def fails(ops: Sequence[Op]) -> bool:
        return [op.number for op in ops if op.number in (3, 11)] == [3, 11]

    ops = [Op("save", "EIO", 2, "write", sticky=True, number=number) for number in range(20)]
    assert shortest(ops, fails) == (Op("save", number=3), Op("save", number=11))
    assert fails(shortest(ops, fails, tries=4)), "also where it had to stop early"


QUICK = (
    "no_fsync_commit",
    "no_stage_sync",
    "stage_reused",
    "overwrite_in_place",
    "guard_skips_hash",
    "retire_before_rename",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(tmp_path: Path, name: str) -> None:
    study = STUDY.open(StudyContext(StudyConfig(StoreSoak()), tmp_path))
    (trial,) = [trial for trial in study.plan() if trial.key == f"planted/{name}"]
    assert study.run(trial)["found"]


@pytest.mark.slow
def test_all_planted_bugs_are_found(tmp_path: Path) -> None:
    study = STUDY.open(StudyContext(StudyConfig(StoreSoak()), tmp_path))
    found = {
        trial.facts["bug"]: study.run(trial)["found"]
        for trial in study.plan()
        if trial.facts["arm"] == "planted"
    }
    assert [name for name, shown in found.items() if not shown] == [] and len(found) == len(
        STORE_MUTANTS
    )


def records(tmp_path: Path) -> list[Record]:
    study = STUDY.open(StudyContext(StudyConfig(StoreSoak(ops=50, length=20)), tmp_path))
    plan = [
        trial
        for trial in study.plan()
        if trial.facts["arm"] == "programs" or trial.key == "planted/overwrite_in_place"
    ]
    assert [trial.facts["ops"] for trial in plan[:-1]] == [
        20,
        20,
        10,
    ], "all operations that were asked for"
    return tried(study, plan)


def failed(kept: Sequence[Record]) -> dict[str, str]:
    return studies.failed(concluded(STUDY, StoreSoak(), kept))


def test_every_gate_can_fail_and_a_disagreement_is_shown_with_the_command_that_plays_it_again(
    tmp_path: Path,
) -> None:
    *programs, planted = records(tmp_path)
    assert failed([*programs, planted]) == {}
    wrong: dict[str, Any] = {
        "wrong": "lost_ack: x",
        "shortest": ["save", "verify"],
        "replay": "ecrl study study=store-soak seed=1337 'trial=k'",
    }
    spoilt = [replace(programs[0], found=programs[0].found | wrong), *programs[1:]]
    assert (
        "save | verify: ecrl study study=store-soak seed=1337 'trial=k'" in failed(spoilt)["agreed"]
    )
    assert failed([*programs, replace(planted, found=planted.found | {"found": False})])[
        "planted"
    ].endswith("not overwrite_in_place")
    few = [replace(programs[0], found=programs[0].found | {"ops": 1000})]
    assert "not save" in failed(few)["met"], "a thousand operations, and next to none of each"
    assert failed([planted])["agreed"], "nothing tried is no pass"
