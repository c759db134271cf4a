"""The undisturbed run that is trained beside struck ones: what it is, when it is trained, where it
lies, and that it takes no run along.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.cli import hydra_jobs
from ecrl_cli.cli.main import main
from ecrl_cli.config.checks import check
from ecrl_cli.config.elastic import sizes
from ecrl_cli.config.identity import reference_id, run_id
from ecrl_cli.config.schema import (
    CheckpointConfig,
    ElasticConfig,
    RecoveryConfig,
    RunConfig,
    SupervisionConfig,
)
from ecrl_cli.failures.plan import plan
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.report.model.inputs import run_inputs
from ecrl_cli.runs import run as runs
from ecrl_cli.runs.run import FINISHED, RunContext, RunResult
from ecrl_cli.runs.run_plan import RunPlan, plan_reference, plan_run, reference_of, references
from ecrl_cli.verify.disturbance import uninterrupted
from tests.runs.builder import RunBuilder, config_of

STRUCK = config_of("blk", "kill", (9, 20), 1)
SHAPE = [
    "dataset=fake",
    "dataset.size=80",
    "seed=7",
    "target_steps=24",
    "global_batch=8",
    "checkpoint.every=6",
    "scale.name=smoke",
]
KILLS = ["failure=kill", "failure.steps=[9,20]", "failure.rank=1"]
LOSSY = replace(
    config_of("blk", "kill", (9,), 1),
    recovery=RecoveryConfig("lossy_forward"),
    supervision=SupervisionConfig(launcher="zygote"),
)
ROLLBACK = replace(
    STRUCK,
    recovery=RecoveryConfig("immediate_rollback"),
    supervision=SupervisionConfig(launcher="zygote", spares=1),
)


@pytest.mark.parametrize(
    "config",
    [
        STRUCK,
        ROLLBACK,
        replace(STRUCK, elastic=ElasticConfig(schedule={10: 1, 20: 2})),
        replace(
            STRUCK,
            checkpoint=CheckpointConfig("in_memory", every=6, memory_every=2),
            run_dir="run",
            suite_name="suite",
            state_digests=STRUCK.state_digests,
        ),
    ],
)
def test_a_reference_must_end_where_the_run_ends_and_nothing_strikes_it(config: RunConfig) -> None:
    reference = reference_of(config)
    check(reference)
    assert reference_id(reference) == reference_id(config) and run_id(reference) != run_id(config)
    assert (
        plan(reference) == ()
        and reference.variant.name == "ref"
        and sizes(reference) == sizes(config)
    )
    assert (
        reference.supervision.spares,
        reference.supervision.grace_s,
        reference.checkpoint.every,
    ) == (0, 0.0, config.target_steps)


def test_whether_a_reference_is_trained_is_no_part_of_what_a_run_is() -> None:
    for choice in ("none", "always"):
        other = replace(STRUCK, reference=choice)
        assert (run_id(other), reference_id(other)) == (run_id(STRUCK), reference_id(STRUCK))


@pytest.mark.parametrize(
    ("config", "due"),
    [
        (STRUCK, True),
        (ROLLBACK, True),
        (replace(STRUCK, reference="none"), False),
        (config_of("ref"), False),
        (replace(config_of("ref"), reference="always"), True),
        (LOSSY, False),
        (replace(LOSSY, reference="always"), True),
    ],
)
def test_a_reference_is_for_runs_that_are_struck_and_claim_the_trajectory(
    config: RunConfig, due: bool
) -> None:
    assert (plan_run(config, Path("run")).reference is not None) is due


def test_runs_that_must_end_alike_share_one_and_an_undisturbed_arm_serves_as_well(
    tmp_path: Path,
) -> None:
    other = replace(
        STRUCK,
        variant=replace(STRUCK.variant, name="ovl"),
        checkpoint=CheckpointConfig("overlapped", every=6),
    )

    def due(**arms: RunConfig) -> list[RunPlan]:
        return references(plan_run(config, tmp_path / name) for name, config in arms.items())

    assert due(blk=STRUCK, ovl=other) == [plan_reference(STRUCK, tmp_path / "blk")]
    assert due(blk=STRUCK, ref=config_of("ref")) == due(blk=STRUCK, clean=config_of("clean")) == []
    assert len(due(blk=STRUCK, ref=replace(config_of("ref"), seed=8))) == 1


class Recorded:
    """Stands in for the run itself: leaves what a good run leaves. `fails`: how the reference ends,
    if not well.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.folders, self.fails = scratch, list[str](), RunResult(0, "completed", "")
        self.stops: dict[int, int] = {}  # of the run itself, by attempt

    def __call__(self, planned: RunPlan, context: RunContext) -> RunResult:
        config, run_dir = planned.config, planned.layout.root
        if RunLayout(run_dir).supervisor.exists():
            return FINISHED
        self.folders.append(
            run_dir.parent.name if run_dir.parent.name == REFERENCES else config.variant.name
        )
        if self.fails.exit_code and run_dir.parent.name == REFERENCES:
            return self.fails
        stops = {} if run_dir.parent.name == REFERENCES else self.stops
        made = RunBuilder(
            self.scratch / f"{len(self.folders)}",
            config,
            now=1000.0 * len(self.folders),
            stops=stops,
        ).build()
        shutil.copytree(made.root, run_dir, dirs_exist_ok=True)
        return RunResult(0, "completed", "target reached")


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    stand_in = Recorded(tmp_path / "scratch")
    monkeypatch.setattr(hydra_jobs, "run", stand_in)
    monkeypatch.setattr(runs, "run", stand_in)
    monkeypatch.chdir(tmp_path)
    return stand_in


def verdicts(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return {line.partition(": ")[0]: line.partition(": ")[2].split()[0] for line in lines}


def test_a_struck_run_gets_its_reference_and_the_next_one_finds_it(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SHAPE, *KILLS, "run_dir=here/blk"]) == 0
    said = capsys.readouterr().err
    assert recorded.folders == ["custom", REFERENCES]
    assert (
        "reference: 1 undisturbed run afterwards" in said
        and "reference: an undisturbed run to compare blk with, in " in said
    )
    assert main(["train", *SHAPE, *KILLS, "checkpoint.keep=4", "run_dir=here/ovl"]) == 0
    assert main(["train", *SHAPE, *KILLS, "run_dir=here/blk"]) == 0
    assert recorded.folders == ["custom", REFERENCES, "custom"]
    capsys.readouterr()
    assert main(["verify", "here"]) == 0
    assert verdicts(capsys.readouterr().out) == {"blk": "valid", "ovl": "valid"}
    (reference,) = (tmp_path / "here" / REFERENCES).iterdir()
    assert uninterrupted(load(RunLayout(reference))) and not {"blk", "ovl"} ^ {
        found.name for found in run_inputs([tmp_path / "here"])
    }


def test_an_undisturbed_run_that_was_stopped_and_resumed_gets_its_reference(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was to need none; resumed from a checkpoint, it rests on the code that a reference is to
    check.
    """
    recorded.stops = {0: 9}
    assert main(["train", *SHAPE, "run_dir=calm/stopped", "reference=none"]) == 0
    assert main(["train", *SHAPE, "run_dir=here/stopped"]) == 0
    assert recorded.folders == ["custom", "custom", REFERENCES]
    assert "reference: an undisturbed run to compare stopped with" in capsys.readouterr().err
    assert main(["verify", "here/stopped"]) == 0 and main(["verify", "calm/stopped"]) == 3
    recorded.stops = {}
    assert main(["train", *SHAPE, "run_dir=calm/through"]) == 0 and recorded.folders[3:] == [
        "custom"
    ]


def test_it_can_be_left_out_and_verify_trains_it_on_request(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SHAPE, *KILLS, "run_dir=here/blk", "reference=none"]) == 0
    assert main(["train", *SHAPE[:2], "seed=8", *SHAPE[3:], "run_dir=here/calm"]) == 0
    assert recorded.folders == ["custom", "custom"]
    assert main(["verify", "here/blk"]) == 3
    assert main(["verify", "here", "--reference", "here/calm", "--with-reference"]) == 2
    capsys.readouterr()
    assert main(["verify", "here", "--with-reference"]) == 0
    told = capsys.readouterr()
    assert recorded.folders == ["custom", "custom", REFERENCES] and verdicts(told.out) == {
        "blk": "valid",
        "calm": "valid",
    }
    assert (
        "here/calm: is undisturbed and needs no reference" in told.err
        and "at most about the 5 s that the run took" in told.err
    )
    assert main(["verify", "here/blk", "--with-reference"]) == 0 and len(recorded.folders) == 3


def test_a_reference_that_fails_takes_no_run_along(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.fails = RunResult(5, "failed", "the disk is full")
    assert main(["train", *SHAPE, *KILLS, "run_dir=here/blk"]) == 5
    assert (
        "not trained (the disk is full); the runs stand, the same command tries again"
        in capsys.readouterr().err
    )
    assert main(["verify", "here/blk"]) == 3
    recorded.fails = RunResult(130, "stopped", "stopped by SIGINT")
    assert main(["verify", "here/blk", "--with-reference"]) == 130
    recorded.fails = RunResult(8, "failed", "another command is at it")
    assert main(["train", *SHAPE, *KILLS, "run_dir=here/blk"]) == 0
    recorded.fails = RunResult(0, "completed", "")
    assert main(["train", *SHAPE, *KILLS, "run_dir=here/blk"]) == 0
    assert recorded.folders == ["custom", *[REFERENCES] * 4] and main(["verify", "here/blk"]) == 0


def test_a_sweep_lists_it_in_its_manifest_unless_an_arm_is_undisturbed(
    recorded: Recorded, tmp_path: Path
) -> None:
    assert main(["-m", *SHAPE, *KILLS, "variant=blk,ovl", "run_dir=sweep"]) == 0
    with (tmp_path / "sweep" / "manifest.csv").open() as file:
        rows = [
            (row["run"].partition("/")[0][:10], row["variant"], row["status"])
            for row in csv.DictReader(file)
        ]
    assert [row[1:] for row in rows] == [
        ("blk", "completed"),
        ("ovl", "completed"),
        ("ref", "completed"),
    ] and rows[2][0] == REFERENCES
    assert len(run_inputs([tmp_path / "sweep"])) == 2, "no arm of a comparison"
    assert main(["-m", *SHAPE, *KILLS, "variant=clean,blk", "run_dir=other"]) == 0
    assert not (tmp_path / "other" / REFERENCES).exists()


def test_states_hashed_otherwise_have_no_reference_in_common() -> None:
    other = replace(STRUCK, checkpoint=replace(STRUCK.checkpoint, digest="sha256"))
    assert reference_id(other) != reference_id(STRUCK) == reference_id(reference_of(STRUCK))
    assert reference_of(other).checkpoint.digest == "sha256"
    places = [plan_reference(config, Path("run")).layout.root for config in (other, STRUCK)]
    assert places[0] != places[1], "one that is there already is not taken for the other"


@pytest.mark.parametrize(
    ("recorded", "digest"),
    [
        ({"digest": "sha256"}, "sha256"),
        ({}, "sha256"),
        ({"digest": "blake3"}, "blake3"),
        (None, "blake3"),
    ],
)
def test_a_run_keeps_the_digest_that_it_began_with(
    tmp_path: Path, recorded: dict[str, str] | None, digest: str
) -> None:
    """Versions without the key hashed by SHA-256."""
    if recorded is not None:
        write_run_config(layout := RunLayout(tmp_path), STRUCK)
        stored = json.loads(layout.config.read_text())
        del stored["config"]["checkpoint"]["digest"]
        stored["config"]["checkpoint"].update(recorded)
        layout.config.write_text(json.dumps(stored))
    planned = plan_run(STRUCK, tmp_path)
    assert planned.config.checkpoint.digest == digest and planned.run_id == run_id(STRUCK)
    assert planned.asked_digest == ("blake3" if digest == "sha256" else ""), (
        "which is said when it goes on"
    )
