"""The corruption study: its injectors injure as they say, its arms find what an integrity check
lets through, and each of its gates can fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.names import COMMIT, LAYERS, MANIFEST, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.store import integrity
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.config.checkpointers import TORCH_CHECKPOINTING
from ecrl_cli.config.studies import Corruption
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.corruption import (
    byte_faults,
    mutants,
    published,
    recovery,
    stock_loaders,
    structural,
)
from ecrl_cli.studies.corruption.content import image_of, store_in, training_specs
from ecrl_cli.studies.corruption.in_memory import verify_files
from ecrl_cli.studies.corruption.published import seen_by
from ecrl_cli.studies.corruption.study import STUDY
from ecrl_cli.studies.frame.checkpointers import lacking
from ecrl_cli.studies.frame.store_fixture import GUARD, files_under
from ecrl_cli.studies.frame.study import Record, StudyContext, Trial
from tests.studies import concluded, tried
from tests.studies import failing as failed

SMALL = Corruption(trials=1, random=2, seeds=1, clean=4, flips=2)
Planting = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def setting(tmp_path: Path) -> StudyContext:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return StudyContext(StudyConfig(SMALL), scratch)


def records(
    setting: StudyContext, trials: Sequence[Trial], planting: Planting = nullcontext
) -> list[Record]:
    """The trials, run under a planted bug or none."""
    found = tried(STUDY.open(setting), trials, planting)
    assert not list(setting.scratch.iterdir())
    return found


findings = partial(concluded, STUDY, SMALL)


def of_arm(setting: StudyContext, arm: str) -> list[Trial]:
    return [trial for trial in STUDY.open(setting).plan() if trial.facts["arm"] == arm]


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of a committed group checkpoint."""
    with store_in(tmp_path / "run") as store:
        return files_under(
            store.save(image_of(training_specs(8000, 4000, world_size=1), 1, 10), 0).path
        )


def test_arms_that_are_not_asked_for_are_not_planned(setting: StudyContext) -> None:
    plan = STUDY.open(setting).plan()
    assert {trial.facts["arm"] for trial in plan} == {*SMALL.arms, "planted"}
    without = StudyContext(
        StudyConfig(replace(SMALL, arms=("published",), planted=False)), setting.scratch
    )
    assert {trial.facts["arm"] for trial in STUDY.open(without).plan()} == {"published"}


def test_the_default_is_the_published_number_and_at_least_what_is_asked_for(
    setting: StudyContext,
) -> None:
    plan = STUDY.open(StudyContext(StudyConfig(Corruption()), setting.scratch)).plan()
    per_fault = {
        fault: sum(
            trial.facts.get("fault") == fault for trial in plan if trial.facts["arm"] == "published"
        )
        for fault in byte_faults.PUBLISHED_FAULTS
    }
    assert set(per_fault.values()) == {400}
    assert (
        sum(t.facts["stop"] - t.facts["start"] for t in plan if t.facts["arm"] == "exhaustive")
        >= 30_000
    )
    assert sum(t.facts["injections"] for t in plan if t.facts["arm"] == "random") == 8 * 1000
    assert sum(t.facts["verifications"] for t in plan if t.facts["arm"] == "clean") >= 10_000


def test_a_small_study_passes_every_gate_and_its_findings_are_json(setting: StudyContext) -> None:
    arms = ("published", "random", "recovery", "clean")
    found = findings(records(setting, [trial for arm in arms for trial in of_arm(setting, arm)]))
    assert not failed(found), found.gates
    rows = {row["fault"]: row for row in found.tables[0].rows}
    assert (
        rows["zerorange"]["published_k"],
        rows["truncate"]["published_sha"],
        rows["none"]["k"],
    ) == (399, 400, 0)
    assert rows["bitflip"]["sha"] + rows["bitflip"]["load"] >= rows["bitflip"]["k"] == 1
    (figure,) = found.figures
    assert all(
        len(series.y) == len(series.low) == len(series.high) == len(figure.categories)
        for series in figure.series
    )


def test_a_trial_gives_the_same_again(setting: StudyContext) -> None:
    for arm in ("published", "random", "recovery"):
        trial = of_arm(setting, arm)[0]
        assert records(setting, [trial]) == records(setting, [trial])


# --- the injectors


@pytest.mark.parametrize("name", byte_faults.IN_A_FILE)
def test_a_fault_leaves_the_length_alone_unless_the_length_is_the_fault(name: str) -> None:
    data, rng = random.Random(1).randbytes(20_001), random.Random(name)
    for _ in range(50):
        changed = byte_faults.IN_A_FILE[name](data, rng)
        assert changed != data
        assert (len(changed) > len(data)) - (len(changed) < len(data)) == {
            "truncate": -1,
            "extend": 1,
        }.get(name, 0)


def test_a_bitflip_is_one_bit_and_a_swap_loses_no_byte() -> None:
    data, rng = random.Random(1).randbytes(20_001), random.Random(2)
    flipped = byte_faults.bitflip(data, rng)
    assert sum((a ^ b).bit_count() for a, b in zip(data, flipped, strict=True)) == 1
    assert sorted(byte_faults.swap_blocks(data, rng)) == sorted(data)
    assert byte_faults.zeros_over_zeros(b"ab\0\0\0\0c", rng) == b"ab\0\0\0\0c"


def test_only_the_file_that_is_named_changes_and_it_stays_the_same_file(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    path = tmp_path / "run" / "checkpoints" / "step_00000010"
    inodes = {name: (path / name).stat().st_ino for name in whole}
    name = published.injected(path, "bitflip", random.Random(3))
    assert {other for other, data in files_under(path).items() if data != whole[other]} == {name}
    assert {name: (path / name).stat().st_ino for name in whole} == inodes


def test_every_mutation_of_a_region_is_another_one_and_every_byte_has_its_turn() -> None:
    region = byte_faults.Region("x", bytes(range(50)), (0, 7), 7)
    made = [region.mutated(number)[0] for number in range(len(region))]
    assert len(set(made)) == len(made) == 50 * 2 + 8 and region.data not in made
    assert {
        place for data in made if len(data) == 50 for place in range(50) if data[place] != place
    } == set(range(50))


def test_memory_and_disk_answer_alike(tmp_path: Path, whole: dict[str, bytes]) -> None:
    path, rng = tmp_path / "run" / "checkpoints" / "step_00000010", random.Random(4)
    for _ in range(60):
        damaged, _where = byte_faults.injured(whole, rng.choice(byte_faults.RANDOM_FAULTS), rng)
        for name, data in damaged.items():
            published.overwrite(path / name, data)
        report = verify_checkpoint(path, GUARD)
        verdict = verify_files(
            {f"{path.name}/{name}": data for name, data in damaged.items()}, path.name
        )
        assert (verdict.layer, verdict.reason.split(" at ")[0], verdict.untyped) == (
            report.layer,
            report.reason.split(" at ")[0],
            "",
        )


# --- what each mechanism sees by itself


def test_nobody_sees_anything_in_a_whole_checkpoint(whole: dict[str, bytes]) -> None:
    assert seen_by(whole) == []


@pytest.mark.parametrize(
    ("file", "damage", "expected"),
    [
        (MODEL, lambda data: data[:-1] + bytes([data[-1] ^ 1]), ["digest", "sha"]),
        (MODEL, lambda data: data[:-1], ["load", "sha"]),
        (RNG, lambda data: b"\xff" * 8 + data[8:], ["load", "sha"]),
        (TRAIN, lambda data: data.replace(b'"epoch":0', b'"epoch":1'), ["sha"]),
        (TRAIN, lambda data: data[:-1], ["load", "sha"]),
        (MANIFEST, lambda data: data.replace(b'"seed":1', b'"seed":2'), ["sha"]),
        (COMMIT, lambda data: data.replace(b'"attempt":0', b'"attempt":3'), ["sha"]),
        (COMMIT, lambda data: data[:-1], ["load"]),
    ],
)
def test_each_mechanism_is_asked_by_itself(
    whole: dict[str, bytes], file: str, damage: Callable[[bytes], bytes], expected: list[str]
) -> None:
    changed = damage(whole[file])
    assert changed != whole[file]
    assert seen_by(whole | {file: changed}) == expected


# --- verdicts


@pytest.mark.parametrize("layout", structural.ROWS)
def test_every_row_ends_as_its_table_says(setting: StudyContext, layout: str) -> None:
    found = records(
        setting,
        [trial for trial in of_arm(setting, "structural") if trial.facts["layout"] == layout],
    )
    shown = findings(found)
    assert not failed(shown), [record for record in found if not record.found["as_expected"]]
    assert all((row["k"], row["n"], row["found"]) == (1, 1, None) for row in shown.tables[0].rows)


def test_the_rows_show_every_layer_and_the_accepted(setting: StudyContext) -> None:
    assert {row.layer for rows in structural.ROWS.values() for row in rows} == {"", *LAYERS}


def test_what_the_machine_forbids_is_a_skip_and_no_trial(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structural, "able", lambda setting: frozenset({""}))
    monkeypatch.setattr(recovery, "program", lambda name: "")
    monkeypatch.setattr(
        stock_loaders,
        "lacking",
        lambda name: "not installed" if name == TORCH_CHECKPOINTING.name else "",
    )
    study = STUDY.open(setting)
    assert {trial.facts["loader"] for trial in of_arm(setting, "anchors")} == {
        *stock_loaders.LOADERS
    } - {TORCH_CHECKPOINTING.name}
    absent = ("structural: part a device", f"anchors: {TORCH_CHECKPOINTING.name}")
    assert {skip.arm for skip in study.skips()} == {
        *absent,
        *(f"clean: copies by {name}" for name in recovery.COMMANDS),
    }
    assert not [trial for trial in study.plan() if trial.facts.get("row") == "part a device"]


# --- integrity checks that see nothing and that refuse everything: each gate can fail


def sample(setting: StudyContext) -> list[Trial]:
    """A few trials of each arm that judges the integrity check."""
    rows = ("part of another attempt", "part deleted", "sparse file of the right size")
    kept = [trial for trial in of_arm(setting, "structural") if trial.facts["row"] in rows]
    places = [
        trial
        for trial in of_arm(setting, "exhaustive")
        if trial.key.endswith(("model.safetensors/000000", "latest.json/000000"))
    ]
    short = [replace(trial, facts=trial.facts | {"start": 0, "stop": 20}) for trial in places]
    return [
        *of_arm(setting, "published"),
        *of_arm(setting, "random"),
        *of_arm(setting, "recovery"),
        *of_arm(setting, "clean"),
        *kept,
        *short,
    ]


def test_an_integrity_check_that_reads_no_contents_fails_the_gates(setting: StudyContext) -> None:
    found = findings(records(setting, sample(setting), partial(mutants.planted, "contents")))
    assert failed(found) >= {
        "random: detected",
        "structural: as expected",
        "exhaustive: detected",
        "exhaustive: enough",
    }
    assert not failed(found) & {"clean: no false positive", "random: typed"}


def test_an_integrity_check_that_raises_fails_the_gates(setting: StudyContext) -> None:
    trials = [trial for trial in sample(setting) if trial.facts["arm"] != "recovery"]
    found = failed(
        findings(records(setting, trials, partial(mutants.planted, "errors as refusals")))
    )
    assert found >= {"random: typed", "random: detected", "structural: typed", "published: typed"}


def test_an_integrity_check_that_refuses_everything_fails_the_gates(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise integrity.CheckpointRejected("hash", "is not liked")

    monkeypatch.setattr(integrity, "_check_contents", refuse)
    found = failed(findings(records(setting, sample(setting))))
    assert found >= {
        "published: no false positive",
        "clean: no false positive",
        "exhaustive: no-ops",
        "recovery",
    }


def test_recovery_that_believes_the_newest_name_fails_its_gate(setting: StudyContext) -> None:
    assert failed(
        findings(
            records(
                setting,
                of_arm(setting, "recovery"),
                partial(mutants.planted, "recovery asks the integrity check"),
            )
        )
    ) == {"recovery"}


@pytest.mark.parametrize(
    ("outcomes", "bound"),
    [(["detected"] * 3, True), (["detected", "silent_wrong"], False), ([], False)],
)
def test_a_bound_is_stated_for_none_missed_alone(outcomes: list[str], bound: bool) -> None:
    found = {"changed": True, "layer": "", "mechanisms": []}
    rows = [
        Record(str(n), {"arm": "published", "fault": "bitflip"}, found | {"outcome": each}, 0.0)
        for n, each in enumerate(outcomes)
    ]
    assert any("With none missed" in note for note in findings(rows).notes) == bound


def test_an_exception_over_the_pointer_is_an_outcome(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    (trial,) = [
        trial
        for trial in of_arm(setting, "exhaustive")
        if trial.key == "exhaustive/group/latest.json/000000"
    ]
    monkeypatch.setattr(byte_faults, "newest_valid", broken)
    assert STUDY.open(setting).run(trial)["untyped"] > 0


def test_a_study_without_no_ops_or_without_an_effect_fails_its_gates(setting: StudyContext) -> None:
    found = records(setting, of_arm(setting, "published"))
    faulty = [record for record in found if record.facts["fault"] != published.NOOP]
    assert failed(findings(faulty)) == {"published: no-ops"}
    blunt = [
        replace(record, found=record.found | {"changed": False, "outcome": "new"})
        for record in found
    ]
    assert failed(findings(blunt)) == {"published: detected"}


def no_faults(monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """Only these rows, and one random fault of each kind."""
    every = mutants._rows
    monkeypatch.setattr(
        mutants,
        "_rows",
        lambda setting: [trial for trial in every(setting) if trial.facts["row"] in rows],
    )
    monkeypatch.setattr(mutants, "PER_FAULT", 2)


def test_a_layer_left_out_is_found_or_shown_to_be_backed(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_faults(monkeypatch, "part of another attempt", "tensor digest wrong, made to agree")
    backed, back = "hashes of tensor files", "tensor digests"
    trials = [
        trial
        for trial in of_arm(setting, "planted")
        if trial.facts["mutant"] in (backed, back, f"{backed} + {back}")
    ]
    made = records(setting, trials)
    found = findings(made)
    assert {row["mutant"]: row["answer"] for row in found.tables[0].rows} == {
        backed: "backed",
        back: "found",
        f"{backed} + {back}": "found",
    }
    assert not failed(found)
    alone = [record for record in made if record.facts["mutant"] == backed]
    assert failed(findings(alone)) == {"planted"}  # a back that was never taken away proves nothing


def test_a_mutant_that_the_cases_do_not_reach_fails_the_gate(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_faults(monkeypatch, "part deleted")
    trials = [trial for trial in of_arm(setting, "planted") if trial.facts["mutant"] == "NaN"]
    assert failed(findings(records(setting, trials))) == {"planted"}


def test_the_integrity_check_is_whole_again_after_a_mutant() -> None:
    before = {name: getattr(integrity, name) for name in vars(integrity)}
    for name in mutants.every_name():
        with mutants.planted(name):
            pass
    assert {name: getattr(integrity, name) for name in vars(integrity)} == before


# --- stock loaders


@pytest.mark.parametrize("loader", stock_loaders.LOADERS)
def test_a_stock_loader_answers_every_flip(setting: StudyContext, loader: str) -> None:
    if reason := lacking(stock_loaders.LOADERS[loader]):
        pytest.skip(reason)
    found = records(
        setting, [trial for trial in of_arm(setting, "anchors") if trial.facts["loader"] == loader]
    )
    assert (
        sum(found[0].found[name] for name in ("raised", "silent_wrong", "harmless")) == SMALL.flips
    )
    assert not failed(findings(found))


def test_flips_without_an_effect_fail_the_gate() -> None:
    nothing = {"outcome": "detected", "raised": 0, "silent_wrong": 0, "harmless": 5}
    assert failed(findings([Record("x", {"arm": "anchors", "loader": "x"}, nothing, 0.0)])) == {
        "anchors: effective"
    }


def test_the_optimizer_of_a_clean_checkpoint_may_hold_nan(setting: StudyContext) -> None:
    """The clean arm draws such a state, and the integrity check lets it pass."""
    rng = random.Random(5)
    images = [recovery.varied(rng, 1, step, single=False) for step in range(1, 40)]
    optimizers = [
        bytes(i.memory[p.offset : p.offset + p.nbytes])
        for i in images
        for p in i.parts
        if p.name == OPTIMIZER
    ]
    assert any(value in data for data in optimizers for value in recovery.NOT_FINITE)
    assert {
        spec.dtype for i in images for p in i.parts for spec in (place.spec for place in p.tensors)
    } >= {"torch.bfloat16", "torch.bool"}
