"""Past one machine, without one: which launchers may be chosen, what srun is told, where ranks sit,
what jobs say of themselves.
"""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli import submission, submitit_job
from ecrl_cli.cli.arguments import Arguments, parse
from ecrl_cli.cli.compose import ComposedRun
from ecrl_cli.cli.main import main
from ecrl_cli.cli.prepare import TrainPlan
from ecrl_cli.cli.submission import queued, remember
from ecrl_cli.config.checks import check
from ecrl_cli.config.schema import (
    DatasetConfig,
    FailureConfig,
    ModelConfig,
    RunConfig,
    SupervisionConfig,
)
from ecrl_cli.errors import DEFECT, ConfigError, Stopped
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.runs.run import RunResult
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.runs.sweep import SweepManifest
from ecrl_cli.supervision.launch import slurm_allocation
from ecrl_cli.supervision.launch import torchrun as nodes
from ecrl_cli.supervision.launch.launcher import LaunchSpec
from ecrl_cli.supervision.launch.slurm_allocation import NodePlacement, place_attempt, placement_on
from ecrl_cli.supervision.run_lock import run_lock
from ecrl_cli.training.rendezvous import Rendezvous, TcpStoreAddress, from_environment

SLURM = "hydra/launcher=submitit_slurm"


def refused(*words: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(words)
    return caught.value


def engine(*words: str) -> list[str]:
    arguments: Arguments = parse(["dataset=digits", *words])
    assert [override.key_or_group for override in arguments.overrides] == ["dataset"]
    return arguments.launcher.for_hydra()


def test_the_two_engines_and_their_settings_are_kept_apart_from_what_describes_runs() -> None:
    texts = engine(
        SLURM,
        "hydra.launcher.partition=all",
        "hydra.launcher.timeout_min=5",
        "hydra.launcher.additional_parameters.no-kill=true",
    )
    assert texts[:3] == [SLURM, "hydra.launcher.partition=all", "hydra.launcher.timeout_min=5"]
    assert texts[3] == "++hydra.launcher.additional_parameters.no-kill=true"
    assert texts[-1] == "hydra.launcher.name=ecrl"
    assert engine("hydra/launcher=submitit_local")[0] == "hydra/launcher=submitit_local"
    assert engine() == []


@pytest.mark.parametrize(
    "words",
    [
        ["hydra/launcher=basic"],
        ["hydra/launcher=joblib"],
        ["hydra/launcher=submitit_local,submitit_slurm"],
        ["hydra.launcher.partition=all"],
        ["hydra.launcher.n_jobs=0"],
        ["hydra.launcher.n_jobs=two"],
        ["hydra.launcher.n_jobs=1.5"],
        ["hydra.launcher.n_jobs=1,2"],
        [SLURM, "hydra.launcher.n_jobs=2"],
        [SLURM, "hydra.launcher.partition=a,b"],
        [SLURM, "hydra.launcher.setup=[reboot]"],
        [SLURM, "hydra.launcher._target_=os.system"],
        [SLURM, "hydra.launcher.submitit_folder=/tmp"],
        [SLURM, "hydra.launcher.tasks_per_node=2"],
        [SLURM, "hydra.launcher.srun_args=[-v]"],
        [SLURM, 'hydra.launcher.comment="a\nreboot"'],
        ["hydra/launcher=submitit_local", "hydra.launcher.partition=all"],
        [SLURM, "hydra.sweep.dir=elsewhere"],
        [SLURM, "hydra/sweeper=basic"],
    ],
)
def test_everything_else_of_hydra_stays_refused(words: list[str]) -> None:
    assert "\n" not in refused(*words).line()


def test_an_engine_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name, **rest: None)
    assert main(["train", "dataset=digits", SLURM]) == 2
    assert "there is no sbatch on this machine" in capsys.readouterr().err and not list(
        tmp_path.iterdir()
    )


def small(**changes: Any) -> RunConfig:
    supervision = SupervisionConfig(**{"nodes": 2, "on_node_loss": "shrink", **changes})
    return RunConfig(global_batch=48, world_size=4, target_steps=10, supervision=supervision)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (small(launcher="zygote"), "supervision.nodes"),
        (replace(small(nodes=3)), "supervision.nodes"),
        (replace(small(), elastic=replace(small().elastic, schedule={5: 2})), "elastic.schedule"),
    ],
)
def test_several_nodes_share_the_ranks_of_torchrun_equally(config: RunConfig, key: str) -> None:
    check(small())
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("alive", "batch", "expected"),
    [
        (["a", "b"], 48, NodePlacement(("a", "b"), 4)),
        (["a", "b", "c"], 48, NodePlacement(("a", "b"), 4)),
        (["a"], 48, NodePlacement(("a",), 2)),
        (["a"], 15, NodePlacement(("a",), 1)),
    ],
)
def test_ranks_sit_on_what_is_left_and_shards_stay_equal(
    alive: list[str], batch: int, expected: NodePlacement
) -> None:
    assert placement_on(alive, replace(small(), global_batch=batch)) == expected


def test_no_node_gets_more_ranks_than_it_was_meant_to() -> None:
    config = replace(small(nodes=3), world_size=6)
    assert placement_on(["a", "b"], config) == NodePlacement(("a", "b"), 4)
    assert placement_on(["a", "b"], replace(config, global_batch=54)) == NodePlacement(
        ("a", "b"), 2
    ), "54 is no multiple of 4, and 3 ranks need 3 nodes or 1"


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[list[str]]]:
    """Three nodes, of which those named answer; gives what Slurm is told."""

    def make(answering: str) -> list[list[str]]:
        told: list[list[str]] = []

        def run(words: list[str], **rest: Any) -> subprocess.CompletedProcess[str]:
            told.append(words)
            return subprocess.CompletedProcess(words, 0, "a\nb\nc\n", "")

        def asked(nodes: Sequence[str]) -> tuple[str, ...]:
            assert "a" not in nodes, "the supervisor's own"
            return tuple(node for node in nodes if node in answering)

        for name, value in {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "[a-c]",
            "SLURMD_NODENAME": "a",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(subprocess, "run", run)
        for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(slurm_allocation, "answering", asked)
        return told

    return make


def test_a_spare_node_of_the_allocation_takes_the_place_of_a_lost_one(
    allocated: Callable[[str], list[list[str]]],
) -> None:
    allocated("c")
    assert place_attempt(small(on_node_loss="requeue")) == NodePlacement(("a", "c"), 4, ("b",))


def test_a_run_that_may_not_shrink_is_queued_again(
    allocated: Callable[[str], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = allocated("")
    assert place_attempt(small()) == NodePlacement(("a",), 2, ("b", "c"))
    assert ["scontrol", "requeue", "7"] not in told
    with pytest.raises(Stopped) as caught:
        place_attempt(small(on_node_loss="requeue"))
    assert told[-1] == ["scontrol", "requeue", "7"]
    assert (
        caught.value.line().startswith("E-requeued SIGTERM: b, c of the allocation does not answer")
        and caught.value.exit_code == 143
    )
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(Stopped):
        place_attempt(small(on_node_loss="requeue"))
    assert told[-1] == ["scontrol", "requeue", "7_3"], "7 would mean every task of the array"


def slurm_counts(monkeypatch: pytest.MonkeyPatch, restarts: int, *, begun: str = "") -> None:
    """Slurm says that this job was started again `restarts` times, and refuses to requeue it.
    `begun`: what this process was told of that.
    """

    def run(words: list[str], **rest: Any) -> subprocess.CompletedProcess[str]:
        if words[:2] == ["scontrol", "requeue"]:
            return subprocess.CompletedProcess(words, 1, "", "Job is pending execution for job 7\n")
        return subprocess.CompletedProcess(
            words,
            0,
            f"JobId=7 JobName=ecrl JobState=COMPLETING Requeue=1 Restarts={restarts} BatchFlag=1\n",
            "",
        )

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", begun)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("restarts", "begun", "code"),
    [(1, "", "requeued"), (2, "1", "requeued"), (0, "", "stopped"), (1, "1", "stopped")],
)
def test_a_job_that_slurm_itself_queued_again_when_it_missed_the_node_is_queued_again(
    allocated: Callable[[str], list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    restarts: int,
    begun: str,
    code: str,
) -> None:
    """Slurm then refuses ours. Where it counts no restart more than this job began with, it refuses
    for another reason.
    """
    allocated("")
    monkeypatch.setattr(slurm_allocation, "allocated", lambda: ("a", "b", "c"))
    slurm_counts(monkeypatch, restarts, begun=begun)
    with pytest.raises(Stopped) as caught:
        place_attempt(small(on_node_loss="requeue"))
    assert caught.value.line().startswith(
        f"E-{code} SIGTERM: b, c of the allocation does not answer"
    )


def test_outside_a_fitting_allocation_nothing_starts(
    allocated: Callable[[str], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated("bc")
    with pytest.raises(ConfigError, match="4 nodes asked, the allocation has 3"):
        place_attempt(small(nodes=4))
    monkeypatch.setenv("SLURMD_NODENAME", "b")
    with pytest.raises(ConfigError, match="the supervisor runs on b, the allocation begins with a"):
        place_attempt(small())
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(ConfigError, match="this is no Slurm allocation"):
        place_attempt(small())
    assert place_attempt(small(nodes=1)) == NodePlacement((), 4)


@pytest.mark.parametrize(("code", "listed", "said"), [(1, "", "Invalid hostlist"), (0, "\n", "")])
def test_an_allocation_whose_nodes_slurm_does_not_tell_is_an_error_of_ours(
    allocated: Callable[[str], list[list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    listed: str,
    said: str,
) -> None:
    allocated("bc")
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda words, **rest: subprocess.CompletedProcess(words, code, listed, said),
    )
    with pytest.raises(ConfigError, match=f"does not tell the nodes of .*{said}"):
        place_attempt(small())


def test_srun_starts_one_agent_per_node_that_never_restarts_anything(tmp_path: Path) -> None:
    order = AttemptSpec(2, 4, 0, None, 0, ())
    spec = LaunchSpec(RunLayout(tmp_path), order, port=4000, nodes=("a", "b"))
    words = nodes.srun_command(spec, "meeting", tmp_path / "scratch")
    text = " ".join(words)
    assert (
        Path(words[0]).name == "srun"
        and "--nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=a,b --overlap" in text
    )
    node = (
        f"{sys.executable} -m ecrl_cli.supervision.launch.srun_node_main meeting 2"
        " ecrl_cli.training.worker"
    )
    assert f"{node} --nnodes 2 --nproc-per-node 2 --max-restarts 0 --rdzv-backend ecrl" in text
    assert (
        "--rdzv-id meeting" in text
        and text.endswith(f"-m ecrl_cli.training.worker {tmp_path} 2")
        and ":4000 " in text
    )


TOLD = """\
1: Root Cause (first observed failure):
0: Root Cause (first observed failure):
1: [0]:
0: [0]:
1:   rank      : 1 (local_rank: 1)
0:   rank      : 2 (local_rank: 0)
1:   exitcode  : -9 (pid: 77)
0:   exitcode  : 1 (pid: 55)
1: =======================================================
0: =======================================================
srun: error: n2: task 1: Exited with exit code 1
"""


def test_each_nodes_agent_tells_of_its_own_rank_by_our_numbers() -> None:
    """c10d may have called the second node's ranks 0 and 1: its label and the local rank say which
    they are.
    """
    found = nodes.node_failures(TOLD, 2)
    assert [(end.rank, end.exit_code, end.signal) for end in found] == [(0, 1, None), (3, None, 9)]
    assert min(found, key=nodes._explains_less).rank == 3, "the first lost its peer"


def test_rank_0_is_where_the_supervisor_is_whatever_c10d_says() -> None:
    given = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "b",
        "MASTER_PORT": "4000",
    }
    store = TcpStoreAddress("b", 4000, "ecrl")
    assert from_environment(given) == Rendezvous(0, 4)
    assert from_environment({**given, "ECRL_NODE": "1"}) == Rendezvous(
        2, 4, store, attended=False, before=2
    )
    assert from_environment(
        {**given, "RANK": "3", "LOCAL_RANK": "1", "ECRL_NODE": "0"}
    ) == Rendezvous(1, 4, store, attended=True)
    assert from_environment({**given, "LOCAL_RANK": "1", "ECRL_NODE": "1"}).local_rank == 1, (
        "the device is counted on each machine anew"
    )


def test_a_job_has_all_its_nodes_and_one_supervisor_on_the_first() -> None:
    given = {"nodes": 1, "additional_parameters": {"reservation": "mine"}, "partition": "all"}
    made = submission.slurm_settings(given, 3, True)
    assert made["nodes"] == 1 and made["srun_args"][:2] == ["--nodes=1", "--ntasks=1"]
    assert made["additional_parameters"] == {"nodes": 3, "no-kill": True, "reservation": "mine"}
    assert submission.slurm_settings({**given, "nodes": 4}, 1, False)["additional_parameters"] == {
        "nodes": 4,
        "reservation": "mine",
    }


@dataclass(frozen=True)
class Handed:
    """A job whose work is done when its end is waited for."""

    job_id: str
    does: Callable[[], None]

    def results(self) -> None:
        self.does()


class Jobs:
    """An engine whose jobs are calls: what each run's job does, by seed, where one that raises was
    lost.
    """

    def __init__(
        self, does: Mapping[int, Callable[[RunLayout], None]], refuses: Exception | None = None
    ) -> None:
        self.does, self.refuses, self.seeds, self.name = (
            does,
            refuses,
            list[int](),
            "submitit_slurm",
        )

    def start(
        self,
        job: submitit_job.SubmititJob,
        overrides: Sequence[Sequence[str]],
        nodes: int,
        spare: bool,
    ) -> list[Handed]:
        if self.refuses:
            raise self.refuses
        folders = [words[-1].removeprefix("hydra.sweep.subdir=").strip("'") for words in overrides]
        self.seeds += [job.configs[folder].seed for folder in folders]
        return [
            Handed(f"9_{i}", partial(self.does[job.configs[f].seed], RunLayout(Path(f))))
            for i, f in enumerate(folders)
        ]


def plan_of(folder: Path, *seeds: int) -> TrainPlan:
    base = RunConfig(
        dataset=DatasetConfig("digits"), model=ModelConfig("small_cnn"), failure=FailureConfig()
    )
    cells = {
        f"run-s{seed}": ComposedRun((f"seed={seed}",), replace(base, seed=seed)) for seed in seeds
    }
    return TrainPlan(
        folder,
        True,
        {name: plan_run(cell.config, folder / name) for name, cell in cells.items()},
        cells,
    )


def submitted(
    plan: TrainPlan, engine: Jobs
) -> tuple[dict[str, RunResult], dict[str, tuple[str, str]], list[str]]:
    said: list[str] = []
    results = submission.submit(plan, engine, said.append)  # type: ignore[arg-type]
    with SweepLayout(plan.folder).manifest.open() as file:
        return (
            results,
            {row["run"]: (row["status"], row["reason"]) for row in csv.DictReader(file)},
            said,
        )


def says(*result: Any) -> Callable[[RunLayout], None]:
    return lambda layout: submitit_job.record(layout, RunResult(*result))


def nothing(layout: RunLayout) -> None:
    """A job that never begins."""


def raises(
    error: BaseException, first: Callable[[RunLayout], None] = nothing
) -> Callable[[RunLayout], None]:
    """A job that does `first`, and whose end the engine tells by `error`."""

    def job(layout: RunLayout) -> None:
        first(layout)
        raise error

    return job


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The jobs that Slurm says it still has."""
    there: set[str] = set()

    def squeue(words: list[str], **rest: Any) -> subprocess.CompletedProcess[bytes]:
        assert words[:3] == ["squeue", "-h", "-j"]
        return (
            subprocess.CompletedProcess(words, 0, b"PENDING\n")
            if words[3] in there
            else subprocess.CompletedProcess(words, 1, b"")
        )

    monkeypatch.setattr(subprocess, "run", squeue)
    return there


def test_the_manifest_is_what_the_jobs_say_and_silence_is_no_success(
    tmp_path: Path, queue: set[str]
) -> None:
    working = says(8, "running", "its job is at work")
    does = {
        1: says(0, "completed", "target reached"),
        2: says(7, "failed", "E-no-progress"),
        3: says(143, "failed", "E-stopped"),
        4: raises(RuntimeError("job 4 was\nlost"), working),
        5: raises(RuntimeError("job 5 was\ncancelled")),
    }
    results, rows, _ = submitted(plan_of(tmp_path / "sweep", *does), Jobs(does))
    assert (
        rows["run-s1"] == ("completed", "")
        and rows["run-s2"] == ("failed", "E-no-progress")
        and rows["run-s3"][0] == "pending"
    )
    assert rows["run-s4"] == ("pending", "submitit_slurm: lost"), "ended without a word"
    assert rows["run-s5"] == ("pending", "submitit_slurm: cancelled"), "never began"
    assert [result.exit_code for result in results.values()] == [0, 7, 143, 143, 143]


def test_a_lost_job_ends_nothing_but_itself(tmp_path: Path, queue: set[str]) -> None:
    """Those after it are waited for, and the manifest goes on telling of them while they run."""
    told = threading.Event()

    def told_of(self: SweepManifest, run: str, status: str, reason: str = "") -> None:
        record(self, run, status, reason)
        if (run, status) == ("run-s2", "running"):
            told.set()

    def long(layout: RunLayout) -> None:
        says(8, "running", "its job is at work")(layout)
        assert told.wait(120), "nobody follows any more"
        says(0, "completed", "target reached")(layout)

    does = {
        1: raises(RuntimeError("cancelled")),
        2: long,
        3: raises(
            RuntimeError("Job 9_2\nhas not produced any output (state: FAILED)\nINFO its log")
        ),
    }
    record = SweepManifest.record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SweepManifest, "record", told_of)
        patch.setattr(submission, "LOOK_EVERY_S", 0.01)
        _, rows, said = submitted(plan_of(tmp_path / "sweep", *does), Jobs(does))
    assert rows == {
        "run-s1": ("pending", "submitit_slurm: cancelled"),
        "run-s2": ("completed", ""),
        "run-s3": ("pending", "submitit_slurm: has not produced any output (state: FAILED)"),
    }
    assert [line.split("_slurm: ")[1] for line in said if "E-engine" in line] == [
        "cancelled",
        "has not produced any output (state: FAILED)",
    ]


def test_an_engine_that_takes_no_job_says_why_for_all(tmp_path: Path) -> None:
    _, rows, _ = submitted(
        plan_of(tmp_path / "sweep", 1, 2),
        Jobs({}, RuntimeError("sbatch: error: invalid partition")),
    )
    assert set(rows.values()) == {("pending", "submitit_slurm: sbatch: error: invalid partition")}


def test_a_job_that_waits_in_the_queue_is_not_submitted_again(
    tmp_path: Path, queue: set[str]
) -> None:
    plan = plan_of(tmp_path / "sweep", 1, 2)
    queue.update({"9_0", "9_1"})
    results, rows, said = submitted(plan, Jobs({1: raises(KeyboardInterrupt()), 2: nothing}))
    assert "the same command finds them" in said[-1] and {
        result.exit_code for result in results.values()
    } == {8}
    assert set(rows.values()) == {("pending", "its job waits in the queue")}
    queue.remove("9_1")
    again = Jobs({2: says(0, "completed", "target reached")})
    results, rows, _ = submitted(plan, again)
    assert (
        again.seeds == [2]
        and rows["run-s1"] == ("pending", "its job waits in the queue")
        and results["run-s1"].exit_code == 8
    )


def test_where_nobody_knows_of_a_queue_jobs_are_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not queued(layout), "never submitted"
    remember(layout, "12_3")
    assert not queued(layout), "no squeue"
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$3" = 12_3 ] && echo PENDING\n')
    squeue.chmod(0o700)
    assert queued(layout)
    layout.job.write_text("{")
    assert not queued(layout), "its name cannot be read"


def test_one_damaged_record_does_not_keep_the_others_from_being_submitted(
    tmp_path: Path, queue: set[str]
) -> None:
    plan = plan_of(tmp_path / "sweep", 1, 2)
    damaged = plan.runs["run-s1"].layout
    damaged.root.mkdir(parents=True)
    damaged.supervisor.write_text("{")
    refused = says(2, "failed", "E-record supervisor.json")
    _, rows, _ = submitted(plan, Jobs({1: refused, 2: says(0, "completed", "target reached")}))
    assert rows == {"run-s1": ("failed", "E-record supervisor.json"), "run-s2": ("completed", "")}


def test_the_same_command_submits_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path / "sweep", 1, 2, 3)
    monkeypatch.setattr(submission, "is_finished", lambda layout: layout.root.name == "run-s1")
    busy = plan.runs["run-s2"].layout
    busy.root.mkdir(parents=True)
    jobs = Jobs({3: says(0, "completed", "target reached")})
    with run_lock(busy):
        results, rows, _ = submitted(plan, jobs)
    assert jobs.seeds == [3]
    assert {name: status for name, (status, _) in rows.items()} == {
        "run-s1": "completed_prev",
        "run-s2": "running",
        "run-s3": "completed",
    }
    assert results["run-s2"].exit_code == 8


def test_what_an_earlier_job_said_is_not_taken_for_this_ones_word(
    tmp_path: Path, queue: set[str]
) -> None:
    plan = plan_of(tmp_path / "sweep", 1)
    submitit_job.record(plan.runs["run-s1"].layout, RunResult(0, "completed", "target reached"))
    results, _, _ = submitted(plan, Jobs({1: nothing}))
    assert results["run-s1"].exit_code == 143


def test_who_stops_waiting_stops_no_job(tmp_path: Path, queue: set[str]) -> None:
    results, rows, said = submitted(
        plan_of(tmp_path / "sweep", 1), Jobs({1: raises(KeyboardInterrupt())})
    )
    assert (
        "the jobs go on" in said[-1]
        and rows["run-s1"][0] == "pending"
        and results["run-s1"].exit_code == 143
    )


def attended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meets: Callable[[], RunResult]
) -> RunLayout:
    monkeypatch.setattr(submitit_job, "run", lambda planned, context: meets())
    layout = RunLayout(tmp_path)
    submitit_job.attend(layout, RunConfig(device="cpu"))
    return layout


def test_a_run_that_another_job_holds_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(tmp_path)
    with run_lock(layout):
        result = submitit_job.attend(layout, RunConfig())
    assert result.exit_code == 8 and submitit_job.recorded(layout) is None


def test_a_defect_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> RunResult:
        raise ValueError("never thought of")

    said = submitit_job.recorded(attended(tmp_path, monkeypatch, breaks))
    assert said and said.exit_code == DEFECT and "never thought of" in said.reason


def test_the_engines_signal_stops_the_run_first_and_then_reaches_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def stopped() -> RunResult:
        signal.raise_signal(signal.SIGUSR2)
        order.append("the run is at rest")
        return RunResult(143, "failed", "E-stopped SIGTERM: stopped")

    before = {
        number: signal.signal(
            number, lambda received, frame: order.append(signal.Signals(received).name)
        )
        for number in (signal.SIGUSR2, signal.SIGTERM)
    }
    try:
        layout = attended(tmp_path, monkeypatch, stopped)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert order == ["SIGTERM", "the run is at rest", "SIGUSR2"]
    assert submitit_job.recorded(layout) == RunResult(143, "failed", "E-stopped SIGTERM: stopped")


def test_a_run_that_reached_its_target_is_not_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def just_in_time() -> RunResult:
        signal.raise_signal(signal.SIGUSR2)
        return RunResult(0, "completed", "target reached")

    before = {
        number: signal.signal(
            number, lambda received, frame: order.append(signal.Signals(received).name)
        )
        for number in (signal.SIGUSR2, signal.SIGTERM)
    }
    try:
        attended(tmp_path, monkeypatch, just_in_time)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert order == ["SIGTERM"]


def test_a_job_that_slurm_queued_again_leaves_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Stopped("SIGTERM", "b does not answer", code=slurm_allocation.REQUEUED).line()
    with pytest.raises(SystemExit):
        attended(tmp_path, monkeypatch, lambda: RunResult(143, "failed", line))


def test_whoever_had_slurm_queue_a_job_again_its_stop_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost node, preemption, an administrator: the signal alone does not tell them from
    `scancel`.
    """
    for name in ("cancelled", "done", "queued"):
        (tmp_path / name).mkdir()
    slurm_counts(monkeypatch, 0)
    stopped = RunResult(143, "stopped", "E-stopped SIGTERM: stopped")
    assert (
        submitit_job.recorded(attended(tmp_path / "cancelled", monkeypatch, lambda: stopped))
        == stopped
    )
    slurm_counts(monkeypatch, 1)
    assert (
        submitit_job.recorded(
            attended(tmp_path / "done", monkeypatch, lambda: RunResult(0, "completed", ""))
        )
        is not None
    )
    with pytest.raises(SystemExit):
        attended(tmp_path / "queued", monkeypatch, lambda: stopped)
