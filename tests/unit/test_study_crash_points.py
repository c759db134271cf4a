"""The study of killed writers: what it plans, what it notices, and that each of its gates can
fail.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.names import COMMIT, CRASH_POINTS, MANIFEST, MODEL, OPTIMIZER
from ecrl_cli.config.studies import WRITING, CrashPoints
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.crash_points.crash_server import memory_there
from ecrl_cli.studies.crash_points.crash_targets import AFTER_MODEL, NONE, PUBLISHED, Save, survivor
from ecrl_cli.studies.crash_points.store_fixture import (
    CommittedRun,
    expected_of,
    leak_check,
    recover,
)
from ecrl_cli.studies.crash_points.study import STUDY
from ecrl_cli.studies.crash_points.trial import UNSEEN, CrashRig, search
from ecrl_cli.studies.frame.store_fixture import Payload, store_config
from ecrl_cli.studies.frame.study import Record, Trial
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS
from ecrl_cli.studies.mutants.store import MutantStore, blind_at
from tests.studies import concluded, failed, opened, rows_of, tried

SMALL = CrashPoints(
    modes=("unsafe", "atomic_dirsync"),
    layouts=("group",),
    strategies=("blocking",),
    trials=2,
    fewer=1,
    kills=2,
    planted=False,
)
PAYLOAD = Payload(1, 16_384, 8_192)


findings = partial(concluded, STUDY, SMALL)
study_of = partial(opened, STUDY, seed=7)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashRig]:
    where = "memory" if memory_there() else str(tmp_path_factory.mktemp("bench"))
    with closing(CrashRig(where, PAYLOAD)) as made:
        yield made


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    with closing(study_of(SMALL, tmp_path_factory.mktemp("scratch"))) as study:
        # one call of each mode is enough here
        plan = [trial for trial in study.plan() if trial.facts.get("call", 0) == 0]
        return tried(study, plan)


def test_a_sound_store_passes_every_gate_and_gives_the_published_table(
    records: list[Record],
) -> None:
    found = findings(records)
    assert failed(found) == {}
    published = {row["condition"]: row for row in rows_of(found, "published")}
    assert set(published) == {
        f"{mode}@{name}" for mode in SMALL.modes for name in (NONE, *PUBLISHED, "after_root_sync")
    }
    reference, after_model = published["atomic_dirsync@none"], published["unsafe@after_model"]
    assert (
        reference["k"],
        reference["n"],
        reference["published_ok"],
        reference["published_n"],
    ) == (2, 2, 400, 400)
    assert (after_model["k"], after_model["n"], after_model["previous"], after_model["whole"]) == (
        0,
        2,
        2,
        1.0,
    )
    assert (
        published["unsafe@after_root_sync"]["k"] == published["unsafe@after_root_sync"]["n"] == 1
    ), "it counts already"
    assert published["atomic_dirsync@after_model"]["published_ok"] is None, (
        "the published study killed no atomic writer"
    )


def test_the_reasons_say_what_is_wrong_with_the_files(records: list[Record]) -> None:
    reasons = {
        (row["mode"], row["point"]): (row["remains"], row["layer"])
        for row in rows_of(findings(records), "reasons")
    }
    assert {mode for mode, _ in reasons} == {"unsafe"}
    assert reasons["unsafe", f"half_part:{MODEL}"] == ("size mismatch", "commit")
    assert reasons["unsafe", AFTER_MODEL] == ("missing parts", "commit")
    assert reasons["unsafe", "half_manifest"] == ("manifest cut off", "commit")
    assert reasons["unsafe", "before_commit"] == ("missing commit", "commit")
    assert reasons["unsafe", "half_commit"] == ("commit cut off", "commit")


SPOILT = {
    "silent_wrong": {"outcome": "silent_wrong"},
    "lost_ack": {"outcome": "lost_ack"},
    "lost_ack ": {"outcome": "lost_all"},
    "recovered": {"outcome": "untyped"},
    "recovered ": {"outcome": "hung"},
    "survivor": {"outcome": "previous"},
    "half": {"half": ["step_00000030"]},
    "again": {"again": "not saved"},
    "again ": {"left": [".stage_00000030.1.aa"]},
    "hit": {"hit": False},
}


@pytest.mark.parametrize("gate", SPOILT)
def test_every_gate_fails_when_one_trial_goes_wrong(records: list[Record], gate: str) -> None:
    victim = next(
        record
        for record in records
        if record.key.startswith("atomic_dirsync/group/blocking/after_root_sync/")
    )
    spoilt = [
        replace(record, found=record.found | SPOILT[gate]) if record is victim else record
        for record in records
    ]
    assert victim.key in failed(findings(spoilt))[gate.strip()]


def test_a_planted_bug_that_is_not_found_fails_its_gate(records: list[Record]) -> None:
    facts = {"kind": "planted", "bug": "b", "step": "s", "unseen": ""}
    blind = Record(
        "planted/b", facts, {"seen": True, "found": False, "crashes": 9, "at": "", "wrong": ""}, 0.0
    )
    by_design = Record("planted/c", facts | {"unseen": "why"}, {"seen": False}, 0.0)
    gates = {gate.name: gate for gate in findings([*records, blind, by_design]).gates}
    assert (
        not gates["planted"].passed and gates["planted"].message == "planted 0/1 found: planted/b"
    )
    assert {row["answer"] for row in rows_of(findings([*records, by_design]), "planted")} == {
        "not visible to a kill by design"
    }


def test_nothing_tried_is_no_pass() -> None:
    assert set(failed(findings([]))) >= {"silent_wrong", "lost_ack", "survivor", "again", "hit"}


def test_a_gate_counts_only_what_was_tried_for_it(records: list[Record]) -> None:
    """No save follows a random kill, and only atomic groups are looked at for halves."""
    said = {gate.name: gate.message for gate in findings(records).gates}
    crashes = [record for record in records if record.facts["kind"] != "kill"]
    atomic = [record for record in records if record.facts["mode"] == "atomic_dirsync"]
    assert said["again"].startswith(f"0 of {len(crashes)} trials") and said["half"].startswith(
        f"0 of {len(atomic)} trials"
    )
    assert "planted" not in said, "none was planted"
    assert "half" not in {
        gate.name for gate in findings([r for r in records if r not in atomic]).gates
    }


def test_a_study_that_is_stopped_among_its_first_kills_can_be_concluded(
    records: list[Record],
) -> None:
    """With kills in one mode only, nothing is said of the others."""
    first = next(record for record in records if record.facts["kind"] == "kill")
    stopped = [record for record in records if record.facts["kind"] != "kill" or record is first]
    assert len(findings(stopped).notes) == 1


@pytest.mark.parametrize("layout", ["group", "single"])
def test_an_integrity_check_that_lets_a_changed_byte_pass_is_not_believed(
    tmp_path: Path, layout: str
) -> None:
    history, run = CommittedRun(tmp_path / "history", PAYLOAD, layout), RunLayout(tmp_path / "run")
    history.lay(run.root)
    name = "step_00000020" + (".safetensors" if layout == "single" else f"/{MODEL}")
    data = (run.checkpoints / name).read_bytes()
    (run.checkpoints / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with closing(MutantStore(run.checkpoints, store_config("atomic_dirsync"))) as store:
        assert (
            recover(run, store, lambda step: expected_of(PAYLOAD, layout, step)).outcome
            == "lost_ack"
        ), "the sound integrity check passes over it"
        store.verifier = blind_at("hash")
        assert (
            recover(run, store, lambda step: expected_of(PAYLOAD, layout, step)).outcome
            == "silent_wrong"
        )


def test_a_kill_that_comes_when_all_is_saved_hits_nothing(
    rig: CrashRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecrl_cli.studies.crash_points.trial.BACK_TO_BACK", 1)
    assert not rig.kill(Save("unsafe", "group"), 0.001)["hit"]


def test_a_killer_that_was_late_itself_tries_again(
    rig: CrashRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, waited = rig._killer.kill, [0.5, 0.001]

    def late(do: str, run: RunLayout, save: Save, **values: float) -> dict[str, Any]:
        return kill(do, run, save, after_s=waited.pop(0))

    monkeypatch.setattr(rig._killer, "kill", late)
    assert rig.kill(Save("unsafe", "group"), 0.001)["hit"] and not waited


@pytest.mark.parametrize(
    "bug",
    [
        "ack_before_rename",
        "janitor_sweeps_old",
        "overwrite_in_place",
        "stage_reused",
        "guard_skips_commit",
    ],
)
def test_a_bug_that_a_kill_can_show_is_found(rig: CrashRig, bug: str) -> None:
    assert search(rig, bug)["found"]


def test_what_a_kill_cannot_show_is_named_and_exists() -> None:
    assert set(UNSEEN) <= {planted.name for planted in STORE_MUTANTS} | {
        planted.kind for planted in STORE_MUTANTS
    }


def test_the_plan_has_the_published_counts_and_every_point_of_every_arm(tmp_path: Path) -> None:
    with closing(study_of(CrashPoints(trials=5, fewer=2, kills=3), tmp_path)) as study:
        plan = list(study.plan())
        assert [trial.key for trial in plan] == [trial.key for trial in study.plan()]
    assert len({trial.key for trial in plan}) == len(plan)
    counts: dict[tuple[str, ...], int] = {}
    for trial in plan:
        if trial.facts["kind"] == "point":
            arm = tuple(trial.facts[key] for key in ("mode", "layout", "strategy", "point"))
            counts[arm] = counts.get(arm, 0) + 1
    for mode in CrashPoints().modes:
        assert all(counts[mode, "group", strategy, AFTER_MODEL] == 5 for strategy in WRITING)
        assert counts[mode, "group", "blocking", NONE] == 5
    assert {count for arm, count in counts.items() if arm[3] not in (AFTER_MODEL, NONE)} == {2}
    kinds = {point.partition(":")[0] for _, _, _, point in counts}
    assert kinds == {name.partition(":")[0] for name in CRASH_POINTS} | {NONE}
    assert sum(trial.facts["kind"] == "kill" for trial in plan) == 3 * 3


def test_survivors_are_the_new_one_from_the_moment_on_which_it_counts(rig: CrashRig) -> None:
    for mode, counts in (
        ("unsafe", "after_commit"),
        ("atomic_nodirsync", "after_rename"),
        ("atomic_dirsync", "after_rename"),
    ):
        points, _ = rig.visited(Save(mode, "group"))
        due = [survivor(mode, point, points) for point in points]
        assert due == ["previous"] * points.index(counts) + ["new"] * (
            len(points) - points.index(counts)
        )


def test_a_point_that_is_never_reached_is_not_counted_as_hit(rig: CrashRig) -> None:
    found = rig.crash(Save("unsafe", "group", point="before_rename"), "blocking")
    assert not found["hit"] and found["outcome"] == "new"


def test_a_writer_that_hangs_is_on_record_as_such(
    rig: CrashRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm ended it."""
    ask = rig._killer.ask
    monkeypatch.setattr(
        rig._killer, "ask", lambda *rest, **more: ask(*rest, **more) | {"signal": signal.SIGALRM}
    )
    assert rig.crash(Save("unsafe", "group"), "blocking")["outcome"] == "hung"


def test_a_trial_that_breaks_down_is_a_defect_and_no_outcome(rig: CrashRig) -> None:
    with pytest.raises(RuntimeError, match="ended with 1"):
        rig.crash(Save("no_such_mode", "group"), "blocking")


def test_kills_fall_where_the_seed_says(tmp_path: Path) -> None:
    trial = Trial("kill/unsafe/0000", {"kind": "kill", "mode": "unsafe", "layout": "single"})
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    with (
        closing(study_of(SMALL, tmp_path / "a")) as one,
        closing(study_of(SMALL, tmp_path / "b")) as other,
    ):
        first, second = one.run(trial), other.run(trial)
    assert first["after_s"] == second["after_s"] and first["hit"] and first["outcome"] == "new"


def damage(folder: Path, change: Callable[[Path], None]) -> str:
    """What is said of a whole checkpoint after `change`."""
    image = PAYLOAD.image("group", 30)
    path = folder / "step_00000030"
    path.mkdir()
    for part in image.parts:
        (path / part.name).write_bytes(bytes(part.nbytes))
    for name, data in image.documents.items():
        (path / name).write_bytes(data)
    for name in (MANIFEST, COMMIT):
        (path / name).write_bytes(b"{}")
    change(path)
    return leak_check(path, image)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("other", lambda path: None),
        ("size mismatch", lambda path: (path / OPTIMIZER).write_bytes(b"12")),
        (
            "size mismatch",
            lambda path: ((path / MODEL).write_bytes(b""), (path / OPTIMIZER).unlink()),
        ),
        ("missing parts", lambda path: ((path / OPTIMIZER).unlink(), (path / COMMIT).unlink())),
        ("missing manifest", lambda path: ((path / MANIFEST).unlink(), (path / COMMIT).unlink())),
        (
            "manifest cut off",
            lambda path: ((path / MANIFEST).write_bytes(b"{"), (path / COMMIT).unlink()),
        ),
        ("missing commit", lambda path: (path / COMMIT).unlink()),
        ("commit cut off", lambda path: (path / COMMIT).write_bytes(b'{"a":')),
    ],
)
def test_the_state_of_the_files_in_the_published_words(
    tmp_path: Path, said: str, change: Callable[[Path], None]
) -> None:
    assert damage(tmp_path, change) == said


@pytest.mark.skipif(not memory_there(), reason="no folder in memory here")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_folder_in_memory_goes_when_the_study_and_its_group_are_killed(
    tmp_path: Path, number: int
) -> None:
    code = (
        "import os, signal\n"
        "from ecrl_cli.studies.crash_points.trial import CrashRig\n"
        "from ecrl_cli.studies.crash_points.store_fixture import Payload\n"
        "killer = CrashRig('memory', Payload(1, 4096, 4096))._killer\n"
        "print(killer.folder, killer.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        process_group=0,
    ) as study:
        assert study.stdout is not None
        folder, _, pid = study.stdout.readline().strip().rpartition(" ")
        assert Path(folder).is_dir()
        descriptor = os.pidfd_open(int(pid))
        os.killpg(study.pid, number)
        study.kill()
    assert select.select([descriptor], [], [], 30)[0], "the killer outlives the study"
    os.close(descriptor)
    assert not Path(folder).exists()
