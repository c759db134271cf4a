"""`failures` and `elastic`: what they plan, that a real run comes out valid, that a bug in the
recovery is found, and that each gate can fail.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.build import build
from ecrl_cli.config.fault_spec import parse
from ecrl_cli.config.identity import run_name
from ecrl_cli.config.studies import STRUCK, WRITING, Elastic, Failures
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.failures.plan import plan
from ecrl_cli.runs.run import RunResult
from ecrl_cli.studies.frame.limits import remaining
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Record, Study, StudyContext, command
from ecrl_cli.studies.mutants.recovery import BUGS, LIVE_BUGS, REPLICA_BUGS, environment, planted
from ecrl_cli.studies.training import elastic, failures, training_study
from ecrl_cli.studies.training.elastic import SIZES, ElasticRunSpec
from ecrl_cli.studies.training.failures import EVERY, KINDS, TARGET, FailureRunSpec, generate
from ecrl_cli.studies.training.live import LiveRunSpec
from ecrl_cli.studies.training.training_study import Bench, Keys, TrainedRun, who
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.verify.verdict import VALID as VALID_STATUS
from ecrl_cli.verify.verdict import Finding, Verdict
from tests.conftest import comes_true
from tests.studies import concluded, failed

PLAIN = FailureRunSpec("vit", 2, "blocking", "unsafe", "group")
KILLS = ("kill@5.backward/0.4:1", "kill@4.load:0")


def findings(keys: Any, found: list[Record]) -> Findings:
    study = failures.STUDY if isinstance(keys, Failures) else elastic.STUDY
    return concluded(study, keys, found)


def failures_of(folder: Path, **keys: Any) -> Any:
    return failures.STUDY.open(StudyContext(StudyConfig(Failures(**keys)), folder))


def test_a_plan_of_failures_holds_every_kind_and_moment_and_can_strike(tmp_path: Path) -> None:
    trials = failures_of(tmp_path, trials=150, planted=False).plan()
    entries = [parse(entry) for trial in trials for entry in trial.facts["entries"]]
    kinds, moments = (
        Counter(entry.what for entry in entries),
        Counter(entry.moment for entry in entries),
    )
    assert set(KINDS) == set(STRUCK) and len(kinds) >= len(STRUCK) - 2, kinds
    assert (
        min(
            moments[moment]
            for moment in (
                "boundary",
                "forward",
                "backward",
                "optimizer",
                "capture",
                "save",
                "load",
                "wall",
            )
        )
        > 2
    )
    for trial in trials[:40]:
        setup = FailureRunSpec(
            *(trial.facts[name] for name in ("model", "world_size", "strategy", "mode", "layout"))
        )
        config = build(setup.keys(tuple(trial.facts["entries"])))
        assert len(plan(config)) >= 2 and config.supervision.launcher == "zygote"
        assert (
            max(config.supervision.hang_timeout_s, config.supervision.start_timeout_s)
            < training_study.RUN_S / 5
        ), "what hangs is found in time, twice"
    assert [trial.facts for trial in failures_of(tmp_path, trials=150, planted=False).plan()] == [
        trial.facts for trial in trials
    ]


def test_the_same_plan_is_run_with_another_capture_where_it_can_be_deferred(tmp_path: Path) -> None:
    plans = [
        failures_of(tmp_path, trials=20, planted=False, capture=capture).plan()
        for capture in ("copy", "deferred")
    ]
    assert [{**trial.facts, "capture": ""} for trial in plans[0]] == [
        {**trial.facts, "capture": ""} for trial in plans[1]
    ]
    assert {(trial.facts["strategy"], trial.facts["capture"]) for trial in plans[1]} == {
        ("blocking", "copy"),
        ("overlapped", "deferred"),
    }


def test_no_two_failed_saves_leave_a_run_without_its_last_one() -> None:
    drawn = [
        generate(random.Random(number), ("blocking", "overlapped"), ("eio", "enospc"))[1]
        for number in range(60)
    ]
    late = [
        [
            step
            for step in (parse(entry).step for entry in entries)
            if step > TARGET // EVERY * EVERY - EVERY
        ]
        for entries in drawn
    ]
    assert {len(steps) for steps in late} == {0, 1}


def test_a_fault_is_not_drawn_behind_the_death_of_a_background_writer() -> None:
    """Its death may lose whatever waits for it: the fault would then be of the last save, after
    which the run rightly ends with it.
    """

    def both(strategy: str) -> list[tuple[int, int]]:
        drawn = [
            generate(random.Random(number), (strategy,), ("enospc", "writer"))[1]
            for number in range(80)
        ]
        pairs = [sorted(map(parse, entries), key=lambda entry: entry.what) for entries in drawn]
        return [
            (fault.step, death.step)
            for fault, death in pairs
            if (fault.what, death.what) == ("enospc", "writer")
        ]

    overlapped = both("overlapped")
    assert overlapped and all(
        -(-fault // EVERY) < -(-death // EVERY) for fault, death in overlapped
    )
    assert any(fault >= death for fault, death in both("blocking")), (
        "there it is a rank that dies, and saves again"
    )


def test_what_is_damaged_leaves_a_save_to_fall_back_to() -> None:
    drawn = [
        generate(random.Random(number), ("overlapped",), ("corrupt", "writer"))[1]
        for number in range(80)
    ]
    pairs = [sorted(map(parse, entries), key=lambda entry: entry.what) for entries in drawn]
    both = [
        (damage.step, loss.step)
        for damage, loss in pairs
        if (damage.what, loss.what) == ("corrupt", "writer")
    ]
    assert both and all(
        damage // EVERY - (loss <= damage // EVERY * EVERY) >= 2 for damage, loss in both
    )


def test_a_plan_of_sizes_changes_them_and_kills_who_is_there(tmp_path: Path) -> None:
    trials = elastic.STUDY.open(
        StudyContext(StudyConfig(Elastic(trials=80, planted=False)), tmp_path)
    ).plan()
    for trial in trials:
        sizes = [size for _, size in trial.facts["sizes"]]
        assert 2 <= len(sizes) <= 5 and all(
            before != after for before, after in itertools.pairwise(sizes)
        )
        assert 1 <= len(trial.facts["entries"]) <= 3
    assert {size for trial in trials for _, size in trial.facts["sizes"]} == set(SIZES)
    assert {trial.facts["replicas"] for trial in trials} == {0, 4, 8} and len(
        {trial.facts["hash_seed"] for trial in trials}
    ) == 5
    assert {trial.facts["strategy"] for trial in trials} == set(WRITING)


def test_a_trial_can_be_run_again_by_what_is_printed() -> None:
    config = StudyConfig(Failures(trials=7, kinds=("kill", "nan"), planted=False), seed=3)
    assert (
        command(config, "run/0001")
        == "ecrl study study=failures seed=3 study.trials=7 study.kinds='[kill,nan]'"
        " study.planted=false 'trial=run/0001'"
    )
    assert (
        command(StudyConfig(Elastic()), "run/0001")
        == "ecrl study study=elastic seed=1337 'trial=run/0001'"
    )


def test_the_command_of_the_run_alone_makes_the_same_run() -> None:
    spec = ElasticRunSpec("vit", "overlapped", 4, ((0, 2), (6, 1)))
    other = FailureRunSpec("small_cnn", 3, "overlapped", "atomic_nodirsync", "single")
    live = LiveRunSpec("immediate_rollback", 3, 2, "overlapped", 0.2)
    for setup, entries in (
        (PLAIN, KILLS),
        (other, ("writer@5%before_rename",)),
        (spec, ("kill@7:0",)),
        (live, ("kill@5.backward/0.4:0+2",)),
    ):
        typed = training_study.typed(setup.keys(entries)).removeprefix("ecrl train ")
        line = f"{sys.executable} -m ecrl_cli.cli.main train {typed} --cfg job --json"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert list(json.loads(done.stdout)) == [run_name(build(setup.keys(entries)))], (
            "whose end is of the run's id"
        )


def test_runs_under_failures_and_changing_sizes_are_valid(tmp_path: Path) -> None:
    """With one launcher; nothing of them is left."""
    bench = Bench(tmp_path)
    try:
        run = bench.play(PLAIN.keys(KILLS), PLAIN.reference)
        assert (run.outcome, run.code, run.fired, run.attempts) == (
            "valid",
            0,
            [["kill", "backward"], ["kill", "load"]],
            3,
        ), run
        spec = ElasticRunSpec("small_cnn", "overlapped", 4, ((0, 2), (6, 1), (10, 3)))
        resized = bench.play(spec.keys(("kill@8.backward/0.5:0",)), spec.reference)
        assert (resized.outcome, resized.resized, resized.attempts) == ("valid", 2, 4), resized
    finally:
        bench.close()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_a_person_stops_is_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped_by_a_person(*given: Any) -> RunResult:
        with StopSignals():
            os.kill(os.getpid(), signal.SIGTERM)
        return RunResult(143, "failed", "stopped")

    monkeypatch.setattr(training_study, "run", stopped_by_a_person)
    with pytest.raises(KeyboardInterrupt) as stopped:
        Bench(tmp_path).play(PLAIN.keys(KILLS), PLAIN.reference)
    assert stopped.value.args == (signal.SIGTERM,), "the runner of studies tells a SIGTERM by this"


def bench_with_reference(folder: Path) -> Bench:
    """Its runs are the test's own affair."""
    bench = Bench(folder)
    bench._references[json.dumps(PLAIN.reference, sort_keys=True)] = folder / "reference"
    return bench


def test_a_run_that_stops_of_itself_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_study, "run", lambda *given: RunResult(143, "failed", "stopped"))
    monkeypatch.setattr(training_study, "_judged", lambda *given: None)
    assert bench_with_reference(tmp_path).play(PLAIN.keys(KILLS), PLAIN.reference).code == 143


def test_a_run_that_is_never_over_is_an_outcome_and_nothing_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[subprocess.Popen[bytes]] = []

    def hang(planned: Any, context: Any) -> RunResult:
        alone.append(
            subprocess.Popen(
                ["sleep", "3600"], env={**os.environ, "ECRL_RUN": str(planned.layout.root)}
            )
        )
        alone[0].wait()
        return RunResult(0, "completed", "never")

    monkeypatch.setattr(training_study, "run", hang)
    monkeypatch.setattr(training_study, "RUN_S", 0.3)
    found = bench_with_reference(tmp_path).play(PLAIN.keys(KILLS), PLAIN.reference)
    assert (found.outcome, found.why) == ("hung", "not over after 0.3 s")
    # 0: reaped by somebody else
    assert alone[0].wait(120) in (0, -signal.SIGKILL) and not (tmp_path / "run").exists()
    run = replace(RUN, found=VALID | {"outcome": "hung", "why": "", "replay": "", "alone": ""})
    assert "valid" in failed(findings(Failures(), [run]))


def test_what_a_run_leaves_behind_does_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    left: list[subprocess.Popen[bytes]] = []

    def leave(planned: Any, context: Any) -> RunResult:
        left.append(
            subprocess.Popen(
                ["sleep", "3600"],
                env={**os.environ, "ECRL_RUN": str(planned.layout.root.resolve())},
            )
        )
        return RunResult(0, "completed", "done")

    monkeypatch.setattr(training_study, "run", leave)
    monkeypatch.setattr(training_study, "_judged", lambda *given: None)
    found = bench_with_reference(tmp_path / "link").play(PLAIN.keys(KILLS), PLAIN.reference)
    assert found.left == [f"process {left[0].pid}"]
    assert remaining(tmp_path / "real" / "run") == [] and left[0].wait(120) is not None


def test_a_failure_counts_once_all_of_it_was_injected() -> None:
    """`corrupt` stands for two entries of the plan: the kill, and the damage."""
    config = build(PLAIN.keys(("corrupt@8", "kill@9:1")))
    assert [named for named, _ in training_study.injected_entries(config, ())] == [
        ["corrupt", "boundary"],
        ["kill", "boundary"],
    ]
    assert [done for _, done in training_study.injected_entries(config, {0, 2})] == [False, True]
    assert [done for _, done in training_study.injected_entries(config, {0, 1})] == [True, False]
    assert training_study.injected_entries(build(PLAIN.reference), ()) == []


def test_a_run_without_all_its_failures_is_idle() -> None:
    verdict = Verdict("run", "1", "reference", (Finding("exactly-once", VALID_STATUS, "kept"),))
    found = TrainedRun(fired=[["kill", "backward"]], digests="a")
    assert training_study._outcome(found, verdict, "a", 2) == (
        "idle",
        "1 of 2 failures were injected",
    )
    assert training_study._outcome(found, verdict, "a", 1) == ("valid", "")


@pytest.mark.parametrize("made", [failures.STUDY, elastic.STUDY])
def test_the_search_for_a_planted_bug_goes_on_behind_what_is_not_its_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Study
) -> None:
    study = made.open(StudyContext(StudyConfig(made.keys()), tmp_path))
    outcomes = iter(("idle", "unknown", "left", "hung", "valid", "differs"))
    monkeypatch.setattr(Bench, "play", lambda *given: TrainedRun(next(outcomes)))
    trial = next(trial for trial in study.plan() if trial.facts["arm"] == "planted")
    assert study.run(trial) == {"found": True, "runs": 6, "by": ""}


def test_what_still_works_for_a_run_is_found(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, env={**os.environ, "ECRL_RUN": str(tmp_path)}
    ) as process:
        # it has its environment once it has become another program
        assert comes_true(lambda: remaining(tmp_path) == [process.pid])
        assert remaining(tmp_path / "other") == []
    assert remaining(tmp_path) == []


@pytest.mark.parametrize("bug", sorted(BUGS | REPLICA_BUGS))
def test_a_bug_can_be_planted_and_is_gone_afterwards(tmp_path: Path, bug: str) -> None:
    before = dict(os.environ)
    with planted(bug, tmp_path / "bug"):
        assert os.environ["PYTHONPATH"].startswith(str(tmp_path / "bug"))
        compile((tmp_path / "bug" / "sitecustomize.py").read_text(), "sitecustomize.py", "exec")
    with environment(PYTHONHASHSEED="4", ECRL_NOTHING=""):
        assert os.environ["PYTHONHASHSEED"] == "4" and "ECRL_NOTHING" not in os.environ
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("module", "body"),
    (BUGS | REPLICA_BUGS | LIVE_BUGS).values(),
    ids=(BUGS | REPLICA_BUGS | LIVE_BUGS),
)
def test_a_patch_names_nothing_that_the_patched_module_has_no_longer(
    module: str, body: str
) -> None:
    """A bug that fails with an AttributeError would be found for that."""
    patched = import_module(module)
    attributes = [
        node
        for node in ast.walk(ast.parse(f"def spoil(module):\n{body}"))
        if isinstance(node, ast.Attribute)
    ]
    paths = [ast.unparse(node) for node in attributes]
    made = {
        path
        for node, path in zip(attributes, paths, strict=True)
        if isinstance(node.ctx, ast.Store)
    }
    for path in paths:
        first, name, *rest = path.split(".")
        if first == "module":
            value = getattr(patched, name)
            for each in rest:
                value = getattr(value, each)
        elif first == "self" and path not in made:
            assert re.search(
                rf"\bself\.{name}\b|\bdef {name}\b|^    {name}: ",
                inspect.getsource(patched),
                re.MULTILINE,
            ), path
        elif first in ("item", "block"):
            assert re.search(
                rf"\.{name}\b|^    {name}: ", inspect.getsource(patched), re.MULTILINE
            ), path


def test_a_bug_of_the_replicas_is_searched_with_replicas_and_any_other_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: dict[str, list[tuple[int, int]]] = {}

    def play(bench: Bench, keys: Keys, reference: Keys, hash_seed: str = "") -> TrainedRun:
        played.setdefault(bench._bug, []).append(
            (keys["elastic"]["replicas"], reference["elastic"]["replicas"])
        )
        return TrainedRun()

    monkeypatch.setattr(Bench, "play", play)
    study = elastic.STUDY.open(StudyContext(StudyConfig(Elastic(trials=1)), tmp_path))
    searched = [study.run(trial) for trial in study.plan() if trial.facts["arm"] == "planted"]
    assert not any(found["found"] for found in searched), "no run was invalid"
    assert {bug: set(replicas) for bug, replicas in played.items()} == {
        **{bug: {(0, 0)} for bug in BUGS},
        **{bug: {(4, 4), (8, 8)} for bug in REPLICA_BUGS},
    }


FACTS: dict[str, Any] = {
    "arm": "random",
    "model": "vit",
    "world_size": 2,
    "strategy": "blocking",
    "mode": "unsafe",
    "layout": "group",
}
VALID: dict[str, Any] = {
    "outcome": "valid",
    "code": 0,
    "fired": [["kill", "backward"], ["kill", "load"]],
    "attempts": 3,
    "resized": 0,
    "why": "",
}
BAD: dict[str, Any] = {
    "outcome": "invalid",
    "why": "Broke promise",
    "replay": "ecrl study x 'trial=run/0000'",
    "alone": "ecrl train y",
}
RUN = Record("run/0000", {**FACTS, "entries": list(KILLS)}, VALID, 0.5)
BUG = Record(
    "planted/x",
    {"arm": "planted", "bug": "x"},
    {"found": True, "runs": 1, "by": "same-trajectory"},
    0.5,
)


def test_every_gate_of_the_failures_can_fail_and_says_how_to_run_it_again() -> None:
    assert failed(findings(Failures(), [RUN, BUG])) == {}
    said = failed(findings(Failures(), [replace(RUN, found=VALID | BAD), BUG]))["valid"]
    assert "ecrl study x 'trial=run/0000'" in said and "ecrl train y" in said
    assert failed(findings(Failures(), [RUN, replace(BUG, found=BUG.found | {"found": False})]))[
        "planted"
    ].endswith("not x")
    assert "not boundary" in failed(findings(Failures(trials=500), [RUN]))["phases"], (
        "as many as the soak runs"
    )
    assert failed(findings(Failures(), [BUG]))["valid"], "nothing tried is no pass"


def test_what_was_tried_is_told() -> None:
    notes = "\n".join(findings(Failures(), [RUN]).notes)
    assert (
        "by kind: kill 2" in notes
        and "by phase: backward 1, load 1" in notes
        and "another rank 1" in notes
        and "write mode: unsafe 1" in notes
    )
    assert (
        "Nothing was lost" in notes and "A run took 0.5 s in the middle and 0.5 s at most" in notes
    )
    assert "Nothing was lost" not in "\n".join(
        findings(Failures(), [replace(RUN, found=VALID | BAD)]).notes
    )
    assert [
        who(entry)
        for entry in ("kill@4:0", "kill@4:1", "kill@4:0+1", "kill@4:all", "writer@4%before_rename")
    ] == [*("rank 0", "another rank", "two ranks", "all ranks", "the target of its kind")]


def test_runs_with_replicas_that_end_apart_fail_the_study() -> None:
    facts = {
        **FACTS,
        "replicas": 4,
        "sizes": [[0, 2], [5, 1]],
        "hash_seed": "0",
        "entries": ["kill@4:0"],
    }
    one = Record("run/0000", facts, {**VALID, "resized": 1, "digests": "a"}, 0.5)
    other = replace(one, key="run/0001", facts={**facts, "sizes": [[0, 4], [5, 1]]})
    assert failed(findings(Elastic(planted=False), [one, other])) == {}
    apart = replace(other, found={**other.found, "digests": "b"})
    assert failed(findings(Elastic(planted=False), [one, apart]))["alike"].endswith(
        "not vit with 4 replicas: 2"
    )
    assert (
        "ended in 2 states, of 1 models"
        in failed(findings(Elastic(planted=False), [one, apart]))["alike"]
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("made", [failures.STUDY, elastic.STUDY])
def test_every_bug_planted_into_the_recovery_is_found(tmp_path: Path, made: Study) -> None:
    study = made.open(StudyContext(StudyConfig(made.keys()), tmp_path))
    try:
        found = {
            trial.facts["bug"]: study.run(trial)["found"]
            for trial in study.plan()
            if trial.facts["arm"] == "planted"
        }
    finally:
        study.close()
    assert found == dict.fromkeys(BUGS if made is failures.STUDY else BUGS | REPLICA_BUGS, True)
