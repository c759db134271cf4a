"""Power loss in the model: which states it allows, that it sees what is planted, and that its gates
can fail.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.store.catalog import ResumeChoice
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.config.studies import POWER_LOSS_WORKLOADS, PowerLoss
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import CREATE, Fs
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.storage.writing import WriteMode, replace_small, write_new
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS, StoreMutant
from ecrl_cli.studies.power_loss import model_findings, model_invariants
from ecrl_cli.studies.power_loss.model_arm import ModelArm, hunt
from ecrl_cli.studies.power_loss.model_disk import MODELS, Forest, ModelDisk
from ecrl_cli.studies.power_loss.model_invariants import RecoveredState, RecoveryOracle, outcome
from ecrl_cli.studies.power_loss.model_trial import Limits, ModelTrial
from ecrl_cli.studies.power_loss.study import STUDY
from ecrl_cli.studies.power_loss.workloads import ROOT, RUN, WORKLOADS, WorkloadRun, played
from tests import studies
from tests.studies import concluded

NAMES_ONLY = WriteMode(sync_files=False)


def after(fs: ModelFs, start: dict[int, Any], model: str, limit: int = 10_000) -> list[Any]:
    """Every tree that may be left after all that `fs` was told."""
    forest = Forest()
    disk = ModelDisk(forest, start, model, limit, random.Random(0))
    for op in fs.log:
        disk.take(op)
    return [forest.tree(number) for number in disk.states().numbers]


def on(tree: dict[str, Any]) -> tuple[ModelFs, dict[int, Any]]:
    return ModelFs(RUN, tree), ModelFs(RUN, tree).nodes


def test_an_fsynced_file_keeps_its_bytes_and_may_lose_its_name() -> None:
    fs, start = on({})
    write_new(fs, RUN / "part", b"x" * 5000, WriteMode())
    assert after(fs, start, "X") == [{"part": b"x" * 5000}, {}]
    assert after(fs, start, "O") == after(fs, start, "P") == [{"part": b"x" * 5000}]


def test_a_synced_folder_keeps_the_name_of_a_file_whose_bytes_may_be_torn_anywhere() -> None:
    fs, start = on({})
    data = bytes(range(1, 251)) * 20
    write_new(fs, RUN / "part", data, NAMES_ONLY)
    fs.fsyncdir(RUN)
    hole = bytes(4096)
    left = [
        data,
        b"",
        data[:4096],
        data[:4608],
        bytes(5000),
        hole + data[4096:],
        data[:4096] + bytes(904),
    ]
    for model in "OX":
        assert sorted(tree["part"] for tree in after(fs, start, model)) == sorted(left)


def test_close_syncs_nothing() -> None:
    fs, start = on({})
    fs.close(fs.open(RUN / "part", CREATE))
    assert {} in after(fs, start, "X")


def test_under_x_any_subset_of_names_survives_and_under_o_a_prefix() -> None:
    fs, start = on({})
    for name in "abc":
        fs.mkdir(RUN / name)
    assert len(after(fs, start, "X")) == 8
    assert after(fs, start, "O") == [{"a": {}, "b": {}, "c": {}}, {"a": {}, "b": {}}, {"a": {}}, {}]
    fs.mkdir(RUN / "a" / "below")
    fs.fsyncdir(RUN / "a")
    assert {"b": {}} in after(fs, start, "X") and {"a": {"below": {}}} in after(fs, start, "X")
    assert after(fs, start, "O") == [{"a": {"below": {}}, "b": {}, "c": {}}], (
        "a sync of anything forces the names before it"
    )


def test_a_rename_has_its_whole_effect_or_none() -> None:
    fs, start = on({"pointer": b"old"})
    replace_small(fs, RUN / "pointer", b"new", WriteMode())
    trees = [
        tuple(sorted((name[:5], data) for name, data in tree.items()))
        for tree in after(fs, start, "X")
    ]
    old, new, temporary = ("point", b"old"), ("point", b"new"), (".tmp_", b"new")
    assert sorted(trees) == sorted([(new,), (old,), (temporary, old)])


def test_each_fault_model_allows_what_the_milder_one_does() -> None:
    for mode in ("unsafe", "atomic_nodirsync", "atomic_dirsync"):
        workload_run, forest = played("one", WorkloadRun(mode, False, 1)), Forest()
        disks = [
            ModelDisk(forest, workload_run.start, model, 100_000, random.Random(0))
            for model in MODELS
        ]
        for op in workload_run.fs.log[: 14 if mode == "unsafe" else None]:
            for disk in disks:
                disk.take(op)
            process, ordered, minimal = (set(disk.states().numbers) for disk in disks)
            assert process <= ordered <= minimal


def test_a_sample_says_that_it_is_one_and_holds_the_extremes() -> None:
    fs, start = on({})
    for name in "abcdefghijklmn":
        write_new(fs, RUN / name, name.encode(), NAMES_ONLY)
    disk = ModelDisk(Forest(), start, "X", 200, random.Random(0))
    for op in fs.log:
        disk.take(op)
    states = disk.states()
    assert not states.whole and states.total > 10**8
    trees = after(fs, start, "X", 200)
    assert (
        len(trees) <= 200
        and {} in trees
        and {name: name.encode() for name in "abcdefghijklmn"} in trees
    )


@pytest.mark.parametrize(
    ("found", "acked", "begun", "expected"),
    [
        (RecoveredState(2), 1, 2, "new"),
        (RecoveredState(1), 1, 2, "previous"),
        (RecoveredState(1), 2, 2, "lost_ack"),
        (RecoveredState(None), 1, 1, "lost_all"),
        (RecoveredState(None), 0, 1, "empty_ok"),
        (RecoveredState(None, rejected=(("step_00000001", "hash"),)), 0, 1, "detected"),
        (RecoveredState(2, right=False), 1, 2, "silent_wrong"),
        (RecoveredState(trouble="untyped"), 0, 0, "untyped"),
        (RecoveredState(trouble="detected"), 0, 1, "detected"),
        (RecoveredState(trouble="detected"), 1, 2, "lost_all"),
    ],
)
def test_a_state_is_of_one_class(
    found: RecoveredState, acked: int, begun: int, expected: str
) -> None:
    assert outcome(found, acked, begun) == expected


def cell(
    workload: str, mode: str, model: str, judge: RecoveryOracle | None = None, states: int = 300
) -> ModelTrial:
    made = ModelTrial(
        played(workload, WorkloadRun(mode, False, 1)),
        model,
        judge or RecoveryOracle(Forest(), 1, False),
        Limits(states, 10),
        random.Random(1),
    )
    for _ in made.judged():
        pass
    return made


def test_an_integrity_check_that_raises_or_never_ends_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_invariants, "_CALLS", 300)

    def raises(path: Path, config: object = None, fs: object = None) -> IntegrityReport:
        raise ZeroDivisionError

    def reads_on(path: Path, config: object = None, fs: Fs | None = None) -> IntegrityReport:
        assert fs is not None
        while fs.listdir(ROOT):
            pass
        raise AssertionError

    def refuses(fs: Fs) -> ResumeChoice:
        raise StorageError("list", "no")

    assert (
        cell("one", "unsafe", "P", RecoveryOracle(Forest(), 1, False, raises)).counts.outcomes[
            "untyped"
        ]
        > 0
    )
    assert (
        cell("one", "unsafe", "P", RecoveryOracle(Forest(), 1, False, reads_on)).counts.outcomes[
            "hung"
        ]
        > 0
    )
    refused = cell(
        "one", "atomic_dirsync", "P", RecoveryOracle(Forest(), 1, False, recover=refuses)
    ).counts
    assert set(refused.outcomes) == {"detected", "lost_all"} and refused.examples, (
        "what was acknowledged does not come back"
    )


def test_the_store_with_all_its_syncs_loses_nothing_in_any_state() -> None:
    for workload in ("first", "retention"):
        found = cell(workload, "atomic_dirsync", "X", states=100_000)
        assert found.counts.exhausted == found.counts.moments and not found.counts.examples
        assert set(found.counts.outcomes) <= {"new", "previous", "empty_ok"}


def test_the_store_without_them_loses_and_is_never_wrong() -> None:
    for mode in ("unsafe", "atomic_nodirsync"):
        lost = cell("two", mode, "X", states=64).counts.outcomes
        assert lost["lost_ack"] and lost["lost_all"] and not lost["silent_wrong"]
        kept = cell("two", mode, "P").counts.outcomes
        assert not kept["lost_ack"] and not kept["lost_all"]


def test_recovery_that_is_cut_off_too_makes_nothing_worse() -> None:
    found = cell("recovery", "atomic_dirsync", "P").second()
    assert found["run"] == 10 and sum(found["outcomes"].values()) > 10 and not found["examples"]


def test_recovery_that_sweeps_away_what_it_should_return_to_is_seen_to_make_it_worse() -> None:
    sweeping = next(planted for planted in STORE_MUTANTS if planted.name == "janitor_sweeps_old")
    workload_run = played(
        "two", WorkloadRun("unsafe", False, 1, lambda fs, config: sweeping.store(ROOT, config, fs))
    )
    swept = ModelTrial(
        workload_run, "P", RecoveryOracle(Forest(), 1, False), Limits(64, 50), random.Random(1)
    )
    assert {found for _, found in swept.judged()} <= {"new", "previous", "empty_ok", "detected"}
    found = swept.second()
    assert found["outcomes"]["worse"] > 0 and "recovery from" in found["examples"][0]


def test_a_recovery_that_loses_is_seen_also_where_the_mode_may_lose() -> None:
    """Under X `unsafe` may lose by the first loss of power; what that has left on the disk,
    recovery may not.
    """
    sweeping = next(planted for planted in STORE_MUTANTS if planted.name == "janitor_sweeps_old")
    workload_run = played(
        "two", WorkloadRun("unsafe", False, 1, lambda fs, config: sweeping.store(ROOT, config, fs))
    )
    swept = ModelTrial(
        workload_run, "X", RecoveryOracle(Forest(), 1, False), Limits(64, 50), random.Random(1)
    )
    for _ in swept.judged():
        pass
    assert swept.second()["outcomes"].get("worse", 0) > 0


def test_a_sample_does_not_hang_on_the_random_marks_in_names() -> None:
    first, again = (cell("pointer", "atomic_nodirsync", "X", states=64) for _ in range(2))
    assert first.counts == again.counts
    assert [first.forest.tree(state) for state, _, _ in first.seen] == [
        again.forest.tree(state) for state, _, _ in again.seen
    ]


def test_a_sample_is_recovered_from_in_real_folders(tmp_path: Path) -> None:
    found = cell("one", "unsafe", "X", states=64)
    assert found.in_folders(20, tmp_path) == {"rebuilt": 20, "different": [], "differing": 0}
    assert not list(tmp_path.iterdir())
    lying = RecoveryOracle(found.forest, 1, False, recover=lambda fs: ResumeChoice(None, ()))
    found.judge = lying
    assert found.in_folders(20, tmp_path)["differing"] > 0


@pytest.mark.parametrize("planted", STORE_MUTANTS, ids=lambda planted: planted.name)
def test_every_planted_bug_is_found(planted: StoreMutant) -> None:
    found = hunt(planted, 1, random.Random(1), 128)
    assert found["found"] and found["state"]


def test_a_bug_that_is_none_is_not_found() -> None:
    sound = replace(STORE_MUTANTS[0], make_fs=None)
    assert not hunt(sound, 1, random.Random(1), 128)["found"]


def test_workloads_in_the_configuration_are_the_ones_there_are() -> None:
    assert tuple(WORKLOADS) == POWER_LOSS_WORKLOADS


CONFIG = PowerLoss(
    arms=("model",), model_workloads=("one",), model_states=64, model_second=4, model_folders=6
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """A small study; of the planted bugs two."""
    arm = ModelArm(StudyContext(StudyConfig(CONFIG, seed=1), tmp_path_factory.mktemp("scratch")))
    plan = [
        trial
        for trial in arm.plan()
        if "planted" not in trial.key
        or trial.facts["name"] in ("no_stage_sync", "guard_skips_commit")
    ]
    return [Record(trial.key, trial.facts, arm.run(trial), 0.0) for trial in plan]


findings = partial(concluded, STUDY, CONFIG)


def gates(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    monkeypatch.setattr(model_findings, "DIRSYNC_STATES", 100)
    monkeypatch.setattr(model_findings, "ALL_STATES", 1000)
    return {gate.name: gate.passed for gate in findings(records).gates}


def test_a_trial_is_the_same_when_it_is_run_again(records: list[Record], tmp_path: Path) -> None:
    arm = ModelArm(StudyContext(StudyConfig(CONFIG, seed=1), tmp_path))
    for trial in arm.plan():
        if trial.key.endswith("single/one/X"):
            assert arm.run(trial) == next(
                record.found for record in records if record.key == trial.key
            )


def test_all_gates_pass_on_the_store_as_it_is(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(gates(records, monkeypatch).values())
    found = findings(records)
    claims = {note.partition(":")[0]: note for note in found.notes}
    assert all("exhaustively for" in claims[mode] for mode in CONFIG.modes)
    assert (
        "not a probability" in claims["atomic_dirsync"]
        and "not a probability" not in claims["unsafe"]
    ), "unsafe was sampled here"
    assert [table.name for table in found.tables] == ["model", "model_workloads", "model_planted"]


def test_more_than_the_unsynced_tail_is_too_much_to_lose(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = [
        (
            replace(r, found=r.found | {"deepest": 2})
            if r.key.endswith("/O") and "nodirsync" in r.key
            else r
        )
        for r in records
    ]
    assert [name for name, passed in gates(deep, monkeypatch).items() if not passed] == [
        "model tail"
    ]


def test_too_few_states_prove_nothing(records: list[Record]) -> None:
    failed = list(studies.failed(findings(records)))
    assert failed == ["model never wrong", "model atomic_dirsync"]


SPOILED = {
    "model never wrong": (
        "unsafe/group/one/X",
        {"outcomes": {"silent_wrong": 1}, "examples": ["silent_wrong"]},
    ),
    "model commits": ("unsafe/group/one/P", {"outcomes": {"half": 1}, "examples": ["half"]}),
    "model process crash": (
        "unsafe/group/one/P",
        {"outcomes": {"lost_ack": 1}, "examples": ["lost_ack"]},
    ),
    "model atomic_dirsync": (
        "ours/atomic_dirsync/group/one/X",
        {"outcomes": {"lost_all": 1}, "examples": ["lost_all"]},
    ),
    "model recovery": (
        "unsafe/group/one/P",
        {
            "second": {
                "starts": 1,
                "run": 1,
                "outcomes": {"worse": 1, "lost_all": 1},
                "examples": ["lost_all"],
            }
        },
    ),
    "model folders": (
        "unsafe/group/one/X",
        {"folders": {"rebuilt": 1, "different": ["other"], "differing": 1}},
    ),
    "model planted": ("planted/no_stage_sync", {"found": False}),
}


@pytest.mark.parametrize("gate", SPOILED)
def test_a_spoiled_record_fails_its_gate(
    gate: str, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, spoiled = SPOILED[gate]
    changed = [
        replace(record, found=record.found | spoiled) if record.key.endswith(key) else record
        for record in records
    ]
    failed = {name for name, passed in gates(changed, monkeypatch).items() if not passed}
    assert gate in failed and failed <= {gate, "model atomic_dirsync", "model sees unsafe"}


@pytest.mark.parametrize("blind", ["unsafe", "atomic_nodirsync", "published atomic_dirsync"])
def test_a_model_that_sees_nothing_fails(
    blind: str, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, mode = ("published", blind.split()[1]) if " " in blind else ("ours", blind)
    changed = [
        (
            replace(record, found=record.found | {"outcomes": {"new": 1}})
            if f"{arm}/{mode}/" in record.key
            else record
        )
        for record in records
    ]
    failed = [name for name, passed in gates(changed, monkeypatch).items() if not passed]
    assert failed == [f"model sees {blind}"]
