"""The real arms of the power-loss study: what counts as lost, which crash states a block log has,
what the gates refuse, and the rig itself.
"""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from ecrl_cli.config.checkpointers import TORCH_CHECKPOINTING, TORCHSNAPSHOT
from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import EcrlError
from ecrl_cli.linux import prerequisites
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.checkpointers import lacking
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.studies.power_loss import real_arms, real_findings
from ecrl_cli.studies.power_loss import study as power_loss
from ecrl_cli.studies.power_loss.disk_mounts import cut_off
from ecrl_cli.studies.power_loss.disk_server import DiskWrite, LoggedDisk, read_log
from ecrl_cli.studies.power_loss.real_arms import RealArms
from ecrl_cli.studies.power_loss.real_blocks import PAGE, BlockState, crash_states
from ecrl_cli.studies.power_loss.real_process import TORCH_SUBJECTS, Answer, Saver, outcome_of
from ecrl_cli.studies.power_loss.subject_store import PLANTS, Payload, Recovered, StoreSubject
from tests import studies
from tests.conftest import comes_true
from tests.studies import concluded
from tests.study_records import POWER_LOSS, shutdown

PAYLOAD = Payload(7, 4096, 2048)


# ---- what counts as lost


@pytest.mark.parametrize(
    ("step", "exact", "acknowledged", "outcome"),
    [
        (3, True, 3, "new"),
        (4, True, 3, "new"),
        (2, True, 3, "lost_ack"),
        (None, True, 3, "lost_all"),
        (None, True, None, "empty_ok"),
        (1, True, None, "new"),
        (3, False, 3, "silent_wrong"),
        (5, True, 3, "silent_wrong"),
        (0, True, None, "silent_wrong"),
    ],
)
def test_the_outcome_follows_from_what_was_acknowledged(
    step: int | None, exact: bool, acknowledged: int | None, outcome: str
) -> None:
    answer = Answer(recovered=Recovered(step, exact, 0))
    assert outcome_of(answer, acknowledged, (acknowledged or 0) + 1) == outcome


@pytest.mark.parametrize("outcome", ["detected", "untyped", "hung"])
def test_a_recovery_that_gives_nothing_keeps_its_own_outcome(outcome: str) -> None:
    assert outcome_of(Answer(outcome, error="why"), 3, 4) == outcome


def test_what_is_acknowledged_after_the_power_loss_does_not_count() -> None:
    """A file system that is shutting down may let an fsync return although nothing of it is
    durable.
    """
    saver = Saver.__new__(Saver)
    saver.acknowledged = [(1, 10.0), (2, 11.0), (3, 12.5)]
    assert [saver.told(moment) for moment in (9.0, 12.0, 13.0)] == [0, 2, 3]


# ---- the states of a disk


def log_of(text: str) -> list[DiskWrite]:
    """`w`: a page, `W`: four of them, `|`: a flush."""
    sizes = {"w": PAGE, "W": 4 * PAGE, "|": 0}
    return [
        DiskWrite(index * 8 * PAGE, bytes([index + 1]) * sizes[letter])
        for index, letter in enumerate(text)
    ]


def test_every_prefix_is_a_state_and_knows_what_was_acknowledged() -> None:
    log = log_of("ww|w|w")
    states = crash_states(log, 1, [3, 5], 1000, random.Random(1)).states
    plain = {
        (state.prefix, state.acknowledged)
        for state in states
        if not state.dropped and state.torn is None
    }
    assert plain == {(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)}


def test_what_was_flushed_is_never_missing() -> None:
    log = log_of("wWw|WWwww|wwwwwwww")
    for state in crash_states(log, 0, [9], 500, random.Random(2)).states:
        flushed = max((index for index in range(state.prefix) if log[index].is_flush), default=0)
        touched = (*state.dropped, *([state.torn[0]] if state.torn else []))
        assert all(flushed <= index < state.prefix for index in touched), state


def test_all_subsets_of_a_small_group_and_every_tear_are_tried() -> None:
    found = crash_states(log_of("wwW|"), 0, [], 1000, random.Random(3))
    assert {state.dropped for state in found.states if state.prefix == 3} == {
        (),
        (0,),
        (1,),
        (2,),
        (0, 1),
        (0, 2),
        (1, 2),
    }
    assert {state.torn for state in found.states if state.torn} == {
        (2, 0, PAGE),
        (2, 0, 2 * PAGE),
        (2, 0, 3 * PAGE),
    }
    assert found.exhausted == found.epochs == 1


def test_states_are_limited_replayable_and_different() -> None:
    log = log_of("wW" * 20 + "|" + "Ww" * 20)
    first, again = (crash_states(log, 0, [41], 60, random.Random(4)) for _ in range(2))
    assert first == again and len(first.states) == len(set(first.states)) == 60
    fewer = crash_states(log, 0, [41], 10, random.Random(4)).states
    assert len(fewer) == 10 and any(state.prefix == 41 and state.acknowledged for state in fewer)


def test_a_state_writes_what_it_has_and_nothing_else() -> None:
    log = log_of("wW|w")
    assert [
        (write.offset, len(write.data))
        for write in BlockState(4, 0, (0,), (1, PAGE, 3 * PAGE)).writes(log)
    ] == [
        (9 * PAGE, 2 * PAGE),
        (24 * PAGE, PAGE),
    ]
    assert [write.offset for write in BlockState(2, 0).writes(log)] == [0, 8 * PAGE]


def test_the_logged_disk_keeps_the_data_and_the_order() -> None:
    disk, log = os.memfd_create("disk"), os.memfd_create("log")
    try:
        os.ftruncate(disk, 4 * PAGE)
        served = LoggedDisk(disk, log)
        served.write("/disk", b"one", PAGE, 0)
        served.fsync("/disk", 0, 0)
        served.write("/disk", b"two", PAGE, 0)
        assert served.read("/disk", 3, PAGE, 0) == b"two"
        assert read_log(log, os.fstat(log).st_size) == [
            DiskWrite(PAGE, b"one"),
            DiskWrite(0, b""),
            DiskWrite(PAGE, b"two"),
        ]
    finally:
        os.close(disk)
        os.close(log)


# ---- the subjects


def saved(subject: Any, steps: int = 2) -> list[int]:
    acknowledged: list[int] = []
    subject.begin()
    for step in range(1, steps + 1):
        subject.save(step, acknowledged.append)
    return acknowledged


@pytest.mark.parametrize("layout", ["group", "single"])
def test_the_store_as_a_subject_is_the_product(tmp_path: Path, layout: str) -> None:
    subject = StoreSubject(tmp_path, PAYLOAD, "atomic_dirsync", layout)
    assert saved(subject) == [1, 2]
    assert subject.recover(go_on=True) == Recovered(2, True, 0, True)
    other = StoreSubject(tmp_path, Payload(8, 4096, 2048), "atomic_dirsync", layout)
    assert not other.recover(go_on=False).exact


def test_each_planted_fault_changes_what_is_promised_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(PosixFs, "fsync", lambda self, fd: synced.append("file"))
    monkeypatch.setattr(
        PosixFs, "fsyncdir", lambda self, path: synced.append(path.name.partition("_")[0])
    )

    def run(variant: str) -> list[str]:
        synced.clear()
        folder = tmp_path / f"run{variant.replace('_', '')}"
        folder.mkdir()
        subject = StoreSubject(folder, PAYLOAD, "atomic_dirsync", "group", variant)
        subject.begin()
        begun = len(synced)
        subject.save(1, lambda _: synced.append("told"))
        return [*(["parent"] if folder.name in synced[:begun] else []), *synced[begun:]]

    whole = ["parent", *["file"] * 6, ".stage", "checkpoints", "told"]
    expected = {
        "": whole,
        "no_root_sync": [*whole[:8], "told"],
        "no_file_sync": ["parent", ".stage", "checkpoints", "told"],
        "no_parent_sync": whole[1:],
        "ack_when_begun": ["parent", "told", *whole[1:-1]],
    }
    assert expected.keys() == {"", *PLANTS}
    assert {variant: run(variant) for variant in expected} == expected


@pytest.mark.parametrize("kind", TORCH_SUBJECTS)
def test_the_other_subjects_are_read_by_their_own_readers(tmp_path: Path, kind: str) -> None:
    from ecrl_cli.studies.power_loss.subject_torch import subject as subject_named

    if reason := lacking(kind):
        pytest.skip(reason)
    subject = subject_named(kind, tmp_path, PAYLOAD)
    assert saved(subject) == [1, 2]
    assert subject.recover(go_on=False) == Recovered(2, True, 0)
    newest = max(path for path in tmp_path.rglob("*") if path.is_file() and "00000002" in str(path))
    newest.write_bytes(newest.read_bytes()[:100])
    # torchsnapshot 0.1.0 does not wait for what its readers raise: it returns as if all had been
    # read
    assert subject.recover(go_on=False) == (
        Recovered(2, False, 0) if kind == TORCHSNAPSHOT.name else Recovered(1, True, 1)
    )


# ---- the gates


GOOD = POWER_LOSS.good
results_of = partial(studies.results, power_loss.STUDY, PowerLoss())
findings = partial(concluded, power_loss.STUDY, PowerLoss())


def failing(records: list[Record]) -> set[str]:
    return studies.failing(findings(records))


def test_good_records_pass_and_a_zero_is_stated_with_its_bound() -> None:
    assert failing(GOOD) == set()
    found = findings(GOOD)
    assert any(
        note.startswith("0 of 1 injected shutdowns (kernel 6.18, ext4 defaults")
        and "below 95.00%" in note
        for note in found.notes
    )
    rows = {(row["fs"], row["subject"]): row for row in found.tables[0].rows}
    assert rows["ext4", "atomic_dirsync, group"]["upper"] == pytest.approx(0.95)
    assert (
        rows["ext4", "unsafe, group"]["upper"] is None
        and rows["ext4", "unsafe, group"]["blocks"] == "1/1"
    )


def test_zeros_without_a_mode_that_may_lose_show_nothing() -> None:
    assert failing([shutdown("atomic_dirsync", "new")]) == {"shutdown: sensitive"}


def test_the_model_must_have_what_really_happened() -> None:
    assert real_findings.classes(results_of(GOOD)) == {
        "atomic_dirsync": {"new", "empty_ok"},
        "atomic_nodirsync": {"lost_ack"},
        "unsafe": {"lost_all", "new"},
    }
    outcomes = {
        "atomic_dirsync": ("new", "empty_ok"),
        "atomic_nodirsync": ("lost_ack", "new"),
        "unsafe": ("lost_all", "new", "empty_ok"),
    }
    model = [
        Record(
            f"model/ours/{mode}",
            {"arm": "ours", "mode": mode},
            {"outcomes": dict.fromkeys(has, 1)},
            0.1,
        )
        for mode, has in outcomes.items()
    ]
    assert [gate.passed for gate in power_loss.not_kinder(results_of([*model, *GOOD]))] == [True]
    (kinder,) = power_loss.not_kinder(results_of([model[0], model[2], *GOOD]))
    assert not kinder.passed and "atomic_nodirsync: lost_ack" in kinder.message
    (nothing,) = power_loss.not_kinder(results_of([*model, shutdown("torch.save", "new")]))
    assert not nothing.passed and nothing.message == "no real trial ran"
    assert not list(power_loss.not_kinder(results_of(GOOD))) and not list(
        power_loss.not_kinder(results_of(model))
    ), "one of them was not tried"


# ---- the plan, and what a machine cannot do


def arms(scratch: Path, **study: Any) -> RealArms:
    return RealArms(StudyContext(StudyConfig(PowerLoss(**study)), scratch))


class FakeRig:
    """Every file system works here, but btrfs cannot be cut off and XFS not be made."""

    def probe(self, kind: str) -> dict[str, Any]:
        return {
            "error": "no such file system" if kind == "xfs" else "",
            "refusal": 25 if kind == "btrfs" else None,
        }

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def fake_rig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_arms, "Rig", lambda folder: FakeRig())
    monkeypatch.setattr(prerequisites, "lacking", lambda *names: "")


def test_without_root_both_arms_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerequisites.os, "geteuid", lambda: 1000)
    study = arms(tmp_path)
    assert list(study.plan()) == [] and study.skips() == []
    assert [study.missing(arm) for arm in ("shutdown", "blocks")] == [
        "needs root, this is uid 1000 (run it as root)"
    ] * 2


@pytest.mark.usefixtures("fake_rig")
def test_what_cannot_be_mounted_or_cut_off_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        real_arms,
        "lacking",
        lambda name: "not installed" if name == TORCH_CHECKPOINTING.name else "",
    )
    study = arms(tmp_path, real_trials=1)
    assert {(skip.arm, skip.reason) for skip in study.skips()} == {
        (f"shutdown: {TORCH_CHECKPOINTING.name}", "not installed"),
        ("shutdown/xfs", "no such file system"),
        ("blocks/xfs", "no such file system"),
        ("shutdown/btrfs", "btrfs refuses FS_IOC_SHUTDOWN: ENOTTY (errno 25)"),
    }
    assert {(trial.facts["arm"], trial.facts["fs"]) for trial in study.plan()} == {
        ("shutdown", "ext4"),
        ("blocks", "ext4"),
        ("blocks", "btrfs"),
    }


@pytest.mark.usefixtures("fake_rig")
def test_without_fuse_only_the_blocks_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        prerequisites, "lacking", lambda *names: "no FUSE" if "/dev/fuse" in names else ""
    )
    study = arms(tmp_path, real_trials=1)
    assert {trial.facts["arm"] for trial in study.plan()} == {"shutdown"}
    assert study.missing("blocks") == "no FUSE" and not study.missing("shutdown")


@pytest.mark.usefixtures("fake_rig")
def test_an_arm_that_no_file_system_can_serve_is_missing_with_every_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        prerequisites, "lacking", lambda *names: "no mkfs.ext4" if "mkfs.ext4" in names else ""
    )
    study = arms(tmp_path, real_trials=1)
    assert {trial.facts["arm"] for trial in study.plan()} == {"blocks"}
    assert (
        study.missing("shutdown")
        == "no mkfs.ext4; no such file system; btrfs refuses FS_IOC_SHUTDOWN: ENOTTY (errno 25)"
    )
    assert not study.missing("blocks") and [skip.arm for skip in study.skips()] == [
        "blocks/ext4",
        "blocks/xfs",
    ]


@pytest.mark.usefixtures("fake_rig")
def test_the_plan_has_its_trials_in_blocks_with_the_subjects_interleaved(tmp_path: Path) -> None:
    plan = [
        trial for trial in arms(tmp_path, real_trials=10).plan() if trial.facts["arm"] == "shutdown"
    ]
    assert len({trial.key for trial in plan}) == len(plan)
    ours = [
        trial.facts["block"]
        for trial in plan
        if (trial.facts["subject"], trial.facts["layout"], trial.facts["variant"])
        == ("unsafe", "group", "")
    ]
    assert ours == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    subjects = [trial.facts["subject"] for trial in plan]
    assert all(first != second for first, second in pairwise(subjects) if first == "unsafe")


def test_the_working_directorys_own_file_system_is_never_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: pytest.fail("it would have been cut off"))
    with pytest.raises(EcrlError, match="nothing is mounted"):
        cut_off(tmp_path, tmp_path)


# ---- the rig: file systems of its own, mounted, cut off, gone


@pytest.fixture
def rigged(tmp_path: Path) -> Iterator[RealArms]:
    """A study whose rig works here; the test is skipped, with the reason, where the machine
    cannot.
    """
    study = arms(
        tmp_path, real_trials=1, real_states=12, real_model_bytes=8192, real_optimizer_bytes=4096
    )
    keys = {trial.key for trial in study.plan()}
    if not {"shutdown/ext4/unsafe/group/0/0000", "blocks/ext4/unsafe/group"} <= keys:
        pytest.skip(next(filter(None, map(study.missing, ("shutdown", "blocks")))))
    try:
        yield study
    finally:
        study.close()


def run(study: RealArms, *keys: str) -> list[Record]:
    plan = {trial.key: trial for trial in study.plan()}
    return [Record(key, plan[key].facts, study.run(plan[key]), 0.0) for key in keys]


def test_a_real_shutdown_takes_what_is_not_durable_and_only_that(rigged: RealArms) -> None:
    records = run(
        rigged,
        *(
            f"shutdown/ext4/{name}/0/0000"
            for name in (
                "unsafe/group",
                "atomic_dirsync/group",
                "atomic_dirsync/group/no_file_sync",
            )
        ),
    )
    assert [record.found["outcome"] for record in records] == ["lost_all", "new", "lost_all"]
    assert all(record.found["cut"] and record.found["goes_on"] for record in records)
    assert failing(records) == set()


def test_real_block_logs_show_the_same(rigged: RealArms) -> None:
    records = run(rigged, *(f"blocks/ext4/{name}/group" for name in ("unsafe", "atomic_dirsync")))
    assert [record.found["states"] for record in records] == [12, 12]
    assert all(record.found["flushes"] > 4 for record in records)
    assert failing(records) == set()


def test_nothing_is_mounted_here_and_nothing_stays(rigged: RealArms, tmp_path: Path) -> None:
    run(rigged, "shutdown/ext4/atomic_dirsync/group/0/0000")
    (rig,) = [child for child in psutil.Process().children() if disks_of(child.pid)]
    assert str(tmp_path) in Path(f"/proc/{rig.pid}/mounts").read_text()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    rigged.close()
    assert comes_true(lambda: not disks_of(rig.pid), 30)


STUDY = """
import sys
from pathlib import Path
from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.power_loss.real_arms import RealArms
from ecrl_cli.studies.frame.study import StudyContext
study = RealArms(StudyContext(StudyConfig(PowerLoss(real_trials=1)), Path(sys.argv[1])))
def unsafe_shutdown(facts):
    return facts["arm"] == "shutdown" and facts["subject"] == "unsafe"
trials = [trial for trial in study.plan() if unsafe_shutdown(trial.facts)]
print("ready", flush=True)
while True:
    study.run(trials[0])
    print("again", flush=True)
"""


@pytest.mark.usefixtures("rigged")
def test_a_killed_study_leaves_no_mount_and_no_loop_device(tmp_path: Path) -> None:
    scratch = tmp_path / "killed"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", STUDY, str(scratch)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "again\n"]
    rig = next(
        child
        for child in psutil.Process(process.pid).children()
        if "real_rig" in " ".join(child.cmdline())
    )
    assert disks_of(rig.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    assert comes_true(lambda: has_ended(rig) and not disks_of(rig.pid), 30)


def has_ended(process: psutil.Process) -> bool:
    """True too where nobody has reaped it yet: it may have become a child of this very process, if
    a test made it a subreaper.
    """
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def disks_of(pid: int) -> list[str]:
    """The loop devices over disks that process `pid` made."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found += [path.parts[3]] if f"ecrl-disk-{pid}-" in path.read_text() else []
        except OSError:  # gone in between
            continue
    return found
