"""Bugs in retention, in the choice of recovery and in the planned failures themselves, planted into
real runs: `ecrl verify` names each.

The run without a bug: a checkpoint every 2 of 12 steps, 3 kept; its only rank is killed after step
9 and the checkpoint of step 8 damaged, which is refused; recovery goes on from step 6.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.failures.plan import plan
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.fault_effects import check_effect
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, FindingBuilder, render
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import run_ecrl
from tests.e2e.planting import plant, suite_of
from tests.e2e.runs import tiny

NO_BAD, NO_LOSS, ACCOUNT, FAILURES = (
    "no-bad-checkpoint",
    "no-acknowledged-loss",
    "checkpoints-accounted",
    "failures-once",
)
SHAPE = tiny(
    "world_size=1",
    "target_steps=12",
    "checkpoint.every=2",
    "failure=listed",
    "failure.steps=",
    "failure.rank=",
)
HONEST = "none"
pytestmark = pytest.mark.timeout(600)  # one sweep of all

_STORE, _SAVING = "ecrl_cli.checkpoint.store.store", "ecrl_cli.checkpoint.store.checkpoint_log"
_RETIRE = """
    def retire(self):
        gone = []
        for entry in {which}:
            gone.append(module.Retired(entry.global_step, entry.path, self._records(entry)))
            self._trash(entry)
        return tuple(gone)
    module.CheckpointStore.retire = retire
"""

# By name: the module that is spoilt in rank 0, and how; then the promise, its status, and what is
# said.
IN_RANKS: dict[str, tuple[tuple[str, str], str, str, str]] = {
    "retention removes everything": (
        (_STORE, _RETIRE.replace("{which}", "self.entries()")),
        NO_LOSS,
        INVALID,
        "while 0 newer checkpoints were there, checkpoint.keep is 3",
    ),
    "retention removes the newest": (
        (_STORE, _RETIRE.replace("{which}", "self.entries()[:1]")),
        NO_LOSS,
        INVALID,
        "while 0 newer checkpoints were there",
    ),
    "retention removes all but one": (
        (_STORE, _RETIRE.replace("{which}", "self.entries()[1:]")),
        NO_LOSS,
        INVALID,
        "while 1 newer checkpoints were there",
    ),
    "retention keeps one too few": (
        (_STORE, _RETIRE.replace("{which}", "self.entries()[self.config.keep - 1:]")),
        NO_LOSS,
        INVALID,
        "while 2 newer checkpoints were there",
    ),
    "retention says nothing": (
        (
            _STORE,
            _RETIRE.replace("{which}", "self.entries()[self.config.keep:]").replace(
                "tuple(gone)", "()"
            ),
        ),
        NO_LOSS,
        INVALID,
        "step 6 was committed (attempt 0) and is gone",
    ),
    "acknowledged before the rename, and killed": (
        (
            _SAVING,
            """
    import os, signal
    from ecrl_cli.checkpoint.store.atomic_install import GroupInstaller
    from ecrl_cli.checkpoint.store.store import Saved
    save, install = module.save_and_record, GroupInstaller.install
    def spoilt(store, image, attempt, log):
        def early(self):
            if image.stamp.global_step == 8 and not attempt:
                digest = self.work.commit.self_sha256
                log.committed(8, Saved(self.target, digest, image.nbytes, 0.0, 0.0))
                os.kill(os.getpid(), signal.SIGKILL)
            install(self)
        GroupInstaller.install = early
        return save(store, image, attempt, log)
    import ecrl_cli.checkpoint.strategies.blocking
    ecrl_cli.checkpoint.strategies.blocking.save_and_record = spoilt
""",
        ),
        NO_LOSS,
        INVALID,
        "checkpoints/step_00000008 was committed and was gone when attempt 1 was launched",
    ),
    "the pointer stays one behind": (
        (
            _STORE,
            """
    point = module.CheckpointStore.point
    def behind(self, path, facts):
        older = [entry for entry in self.entries() if entry.path != path]
        name = older[0].path if older else path
        point(self, name, facts | {"global_step": int(name.name[5:13])})
    module.CheckpointStore.point = behind
""",
        ),
        ACCOUNT,
        INVALID,
        (
            "latest.json names step_00000010, the newest checkpoint of the completed run is"
            " step_00000012"
        ),
    ),
}

# By name: how the supervisor is spoilt; then the promise, its status, and what is said.
IN_SUPERVISOR: dict[str, tuple[str, str, str, str]] = {
    "the integrity check refuses a sound checkpoint": (
        """
    from dataclasses import replace
    from ecrl_cli.checkpoint.store.store import CheckpointStore
    for name in ("verify", "examine_once"):
        def refusing(self, path, look=getattr(CheckpointStore, name)):
            report = look(self, path)
            if not report.ok or report.global_step != 6:
                return report
            reason = "model.safetensors does not match its BLAKE3"
            return replace(report, ok=False, layer="hash", reason=reason)
        patch(CheckpointStore, name, refusing)
""",
        NO_BAD,
        INVALID,
        (
            "attempt 1 refused checkpoints/step_00000006 (hash: model.safetensors does not match"
            " its BLAKE3), and checkpoints/.rejected_"
        ),
    ),
    "a false retirement before the choice": (
        """
    import shutil
    from dataclasses import replace
    from ecrl_cli.records.events import CheckpointLine
    from ecrl_cli.records.journal import Journal
    from ecrl_cli.supervision import supervisor
    choose = supervisor.choose
    def stale(layout, store, earlier, *rest):
        if earlier:
            journal = Journal(layout.attempt(0).checkpoints)
            journal.append(CheckpointLine("retired", 6, 0, 0.0, 0.0))
            shutil.rmtree(layout.checkpoints / "step_00000006")
        return choose(layout, store, earlier, *rest)
    patch(supervisor, "choose", stale)
""",
        NO_BAD,
        INVALID,
        (
            "attempt 1 resumed from step 4 although step 6 was committed and is on no record as"
            " refused"
        ),
    ),
    "a stale checkpoint without a word": (
        """
    from dataclasses import replace
    from ecrl_cli.supervision import resume
    newest = resume.newest_valid
    def oldest(fs, root, look):
        choice = newest(fs, root, look)
        return replace(choice, report=look(root / "step_00000004")) if choice.report else choice
    patch(resume, "newest_valid", oldest)
""",
        NO_BAD,
        INVALID,
        (
            "attempt 1 resumed from step 4 although step 6 was committed and is on no record as"
            " refused"
        ),
    ),
    "everything begins anew": (
        """
    from ecrl_cli.supervision import supervisor
    from ecrl_cli.supervision.resume import ResumePlan
    choose = supervisor.choose
    def forget(layout, store, earlier, *rest):
        found = choose(layout, store, earlier, *rest)
        if earlier:
            for entry in store.entries():
                store.quarantine(entry.path)
        return ResumePlan(None, found.rejected)
    patch(supervisor, "choose", forget)
""",
        NO_BAD,
        INVALID,
        "attempt 1 began anew although step 6 was committed and is on no record as refused",
    ),
    "what was refused is removed": (
        """
    import shutil
    from ecrl_cli.supervision import supervisor
    def remove(layout, store, rejected):
        for each in rejected:
            shutil.rmtree(layout.root / each.path)
    patch(supervisor, "quarantine_rejected", remove)
""",
        NO_BAD,
        UNKNOWN,
        "1 refused checkpoints of step 8 cannot be looked at again: 0 are still there",
    ),
    "a checkpoint vanishes before the choice": (
        """
    import shutil
    from ecrl_cli.supervision import supervisor
    choose = supervisor.choose
    def lose(layout, store, earlier, *rest):
        if earlier:
            shutil.rmtree(layout.checkpoints / "step_00000008")
        return choose(layout, store, earlier, *rest)
    patch(supervisor, "choose", lose)
""",
        NO_LOSS,
        INVALID,
        "checkpoints/step_00000008 was committed and was gone when attempt 1 was launched",
    ),
    "damage that changes nothing": (
        """
    from ecrl_cli.failures import storage_faults
    patch(storage_faults, "inflict", lambda damage: None)
""",
        FAILURES,
        INVALID,
        "and attempt 1 did not refuse it",
    ),
    "damage dated an hour before": (
        """
    from ecrl_cli.supervision.attempts import supervisor_faults
    now = supervisor_faults.monotonic
    patch(supervisor_faults, "monotonic", lambda: now() - 3600)
""",
        FAILURES,
        INVALID,
        "before attempt 1 could be hit",
    ),
    "an attempt armed with nothing": (
        """
    from ecrl_cli.supervision.in_place import regroup_plan
    patch(regroup_plan, "pending", lambda planned, fired: ())
""",
        FAILURES,
        INVALID,
        "attempt 0 was not armed with entry 0, which had not fired",
    ),
}
ALL = {name: row[1:] for name, row in (IN_RANKS | IN_SUPERVISOR).items()}

# Claimed, and the fault does nothing: all in one run, which then has a single attempt.
DISARMED = (
    *(
        "slow_rank@2*0.02",
        "kill@3",
        "exit@4",
        "raise@5",
        "oom@6",
        "nan@7",
        "stop@8",
        "term@9",
        "readonly@10",
        "supervisor@11",
    ),
    *("enospc@1", "eio@3", "slow_disk@6*0.01"),
)
HARMLESS = (
    "ecrl_cli.failures.fault_kind",
    """
    from ecrl_cli.failures.faulty_store import FaultyRunStore
    for name in module.FAILURES.names():
        kind = type(module.fault_kind(name))
        kind.inject = lambda self, context: context.output
        if kind.__name__ in ("FullDisk", "FailedSync"):
            kind.inject_into_save = lambda self, save, context: None
    strike = FaultyRunStore._inject
    def harmless(self, entry):
        strike(self, entry)
        self._faulty.delay_s, self._slow = 0.0, 0
    FaultyRunStore._inject = harmless
""",
)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Struck, with each bug and with none."""
    folder = tmp_path_factory.mktemp("spoilt")
    environment = plant(
        folder / "plant",
        {name: row[0] for name, row in IN_RANKS.items()},
        {name: row[0] for name, row in IN_SUPERVISOR.items()},
    )
    named = f"suite_name={','.join(map(suite_of, (HONEST, *ALL)))}"
    run_ecrl(
        folder,
        "-m",
        *SHAPE,
        named,
        "failure.entries=[corrupt@9]",
        "variant=blk",
        "run_dir=sweep",
        environment=environment,
        timeout=500,
    )
    return folder / "sweep"


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    folder = tmp_path_factory.mktemp("harmless")
    entries = f"failure.entries=[{','.join(DISARMED)}]"
    environment = plant(folder / "plant", {"harmless": HARMLESS})
    run_ecrl(
        folder,
        "train",
        *SHAPE,
        "suite_name=harmless",
        entries,
        "variant=blk",
        "run_dir=run",
        environment=environment,
        timeout=170,
    )
    return RunLayout(folder / "run")


@pytest.mark.parametrize("bug", ALL)
def test_a_planted_bug_breaks_its_promise(spoilt: Path, bug: str) -> None:
    (run,) = spoilt.glob(f"{suite_of(bug)}-*")
    promise, status, said = ALL[bug]
    verdict = verify_run(run)
    finding = next(found for found in verdict.findings if found.promise == promise)
    assert verdict.status == status == finding.status, render(verdict)
    assert any(said in text for text in (finding.message, *finding.evidence)), render(verdict)


def test_without_a_bug_the_promises_are_kept(spoilt: Path) -> None:
    (run,) = spoilt.glob(f"{HONEST}-*")
    kept = {finding.promise: finding.status for finding in verify_run(run).findings}
    assert {kept[promise] for promise in (NO_BAD, NO_LOSS, ACCOUNT, FAILURES)} == {VALID}, kept


@pytest.mark.parametrize("entry", DISARMED)
def test_a_fault_that_did_nothing_is_missed(harmless: RunLayout, entry: str) -> None:
    case, notes = Case(load(harmless)), FindingBuilder(FAILURES)
    index = DISARMED.index(entry)
    (fired,) = [each for each in case.run.fired if each.index == index]
    check_effect(case, fired, plan(case.run.stored.config)[index], notes)
    assert notes.finding("").status == INVALID, (entry, fired)
