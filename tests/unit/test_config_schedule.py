"""`schedule=`: shares of a run become steps; the axes make the published matrix; a long run is
asked about.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.cli import train
from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.compose import compose_grid
from ecrl_cli.cli.prepare import slowed_by_others
from ecrl_cli.config.build import steps_at
from ecrl_cli.config.estimates import seconds, snapshot_bytes
from ecrl_cli.config.identity import run_name
from ecrl_cli.config.schema import RunConfig, ScheduleConfig
from ecrl_cli.errors import ConfigError


def one(line: str) -> RunConfig:
    (cell,) = compose_grid(parse(line.split())).cells
    return cell.config


@pytest.mark.parametrize(
    ("name", "steps"), [("base", (400, 1200)), ("late", (800, 1400)), ("between", (425, 1225))]
)
def test_a_schedule_is_shares_of_the_run(name: str, steps: tuple[int, ...]) -> None:
    config = one(f"dataset=digits schedule={name}")
    assert (config.failure.kind, config.failure.steps) == ("exit", steps)


@pytest.mark.parametrize(
    ("target", "every", "steps"),
    [(160, 20, (80, 140)), (1600, 50, (800, 1400)), (100, 30, (60, 90)), (20, 50, (10, 18))],
)
def test_it_follows_target_steps_and_stays_on_a_checkpoint_where_one_fits(
    target: int, every: int, steps: tuple[int, ...]
) -> None:
    config = one(
        f"dataset=digits schedule=late target_steps={target} checkpoint.every={every} failure=kill"
        " failure.rank=1"
    )
    assert (config.failure.kind, config.failure.rank, config.failure.steps) == ("kill", 1, steps)


def test_between_two_checkpoints_is_never_on_one() -> None:
    for target, every in itertools.product(range(8, 200, 7), range(2, 12)):
        steps = steps_at(ScheduleConfig("between", (0.25, 0.75), 0.5), target, every)
        assert steps[0] < steps[1] and (
            target < 4 * every or all(step % every for step in steps)
        ), (target, every, steps)


def test_the_axes_are_the_published_matrix() -> None:
    axes = (
        "dataset=cifar10,cifar100 model=resnet18,resnet50 schedule=base,late variant=blk seed=1337"
    )
    suites = (
        "cifar10-r18-base,cifar10-r18-late,cifar10-r50-base,cifar10-r50-late,"
        "cifar100-r18-base,cifar100-r18-late,cifar100-r50-base,cifar100-r50-late"
    )
    for scale in ("paper world_size=4", "smoke"):
        by_axes = [
            cell.config for cell in compose_grid(parse(f"-m {axes} scale={scale}".split())).cells
        ]
        by_suite = [
            cell.config
            for cell in compose_grid(
                parse(f"-m +suite={suites} variant=blk seed=1337 scale={scale}".split())
            ).cells
        ]
        assert [run_name(config) for config in by_axes] == [run_name(config) for config in by_suite]
        assert by_axes == by_suite


def test_a_schedule_typed_over_a_suite_renames_it() -> None:
    config = one("+suite=cifar10-r50-late schedule=base")
    assert (config.suite_name, config.failure.steps) == ("cifar10-r50-base", (400, 1200))


def test_steps_typed_over_a_suites_schedule_win() -> None:
    config = one("+suite=cifar10-r50-late failure.steps=[5,9]")
    assert (config.failure.steps, config.schedule, config.suite_name) == (
        (5, 9),
        ScheduleConfig(),
        "cifar10-r50-late",
    )


@pytest.mark.parametrize(
    "line",
    [
        "+suite=cifar10-r50-late schedule=none",
        "+suite=cifar10-r50-late failure=none",
        "+suite=digits-cnn schedule=none",
    ],
)
def test_no_schedule_over_a_suite_plans_nothing(line: str) -> None:
    config = one(line)
    assert (config.failure.kind, config.failure.steps) == ("none", ())


def test_an_arm_without_failures_has_no_steps() -> None:
    assert one("schedule=late variant=ref").failure.steps == ()


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (
            "schedule=late failure=kill failure.steps=[5]",
            "schedule: late says when failures are injected, and failure.steps is given",
        ),
        ("schedule=late failure=mtbf failure.mtbf_steps=9", "failure=mtbf sets its own steps"),
        ("schedule=late schedule.at=[0.5,0.2]", "schedule.at: must be strictly increasing"),
        ("schedule=late schedule.at=[1.5]", "schedule.at: must be a finite number > 0 and < 1"),
        ("schedule=late schedule.at=[half]", "schedule.at: must be a number"),
        ("schedule=never", "schedule: must be one of base, between, late, none"),
    ],
)
def test_what_contradicts_a_schedule_is_refused(line: str, fact: str) -> None:
    with pytest.raises(ConfigError) as raised:
        one(line)
    assert fact in raised.value.line()


def test_as_published_writes_one_unsynced_directory_of_pt_files_in_bf16() -> None:
    config = one("+suite=cifar10-r50-late variant=ovl setting=published")
    assert (
        config.precision,
        config.checkpoint.format,
        config.checkpoint.layout,
        config.checkpoint.strategy,
    ) == (
        "bf16",
        "torch",
        "single",
        "overlapped",
    )
    assert (
        config.write_mode.name,
        config.write_mode.sync_directories,
        config.write_mode.sync_files,
    ) == ("atomic_nodirsync", False, True)


def test_smoke_says_that_it_launches_another_way(capsys: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    compose_grid(parse(["scale=smoke"]), notes.append)
    assert notes == [
        "scale=smoke: ranks are forked by zygote; add supervision=torchrun for the default launcher"
    ]
    notes.clear()
    compose_grid(parse(["scale=smoke", "supervision=torchrun"]), notes.append)
    assert notes == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "starts"),
    [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("", False)],
)
def test_a_long_run_is_asked_about_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, answer: str, starts: bool
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", asked := Terminal())
    if starts:
        train.confirm_long_run(3600.0, lambda line: None)
    else:
        with pytest.raises(ConfigError, match="not started; add --yes"):
            train.confirm_long_run(3600.0, lambda line: None)
    assert "this takes roughly 60 min on this machine" in asked.getvalue()


@pytest.mark.parametrize("ci", [True, False])
def test_where_nobody_can_answer_it_is_said_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    if ci:
        monkeypatch.setenv("CI", "true")
        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("sys.stderr", Terminal())
    else:
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.setattr("sys.stdin", io.StringIO())
    said: list[str] = []
    train.confirm_long_run(601.0, said.append)
    train.confirm_long_run(599.0, said.append)
    assert len(said) == 1 and said[0].startswith("this takes roughly 10 min on this machine")


def test_an_estimate_counts_every_launch_by_what_it_takes() -> None:
    """Those after failures that are planned, listed or drawn, and after changes of the number of
    processes.
    """
    undisturbed = "dataset=digits model=small_cnn target_steps=120 checkpoint.every=20 failure="
    once, zygote = (
        seconds(one(f"{undisturbed}none supervision={launcher}"), gpus=0)
        for launcher in ("torchrun", "zygote")
    )
    listed = "listed failure.entries=[kill@30:1,kill@70:1]"
    again = [
        seconds(one(undisturbed + kind), gpus=0) - once
        for kind in ("kill failure.steps=[30,70]", listed, "mtbf failure.mtbf_steps=60")
    ]
    resized = seconds(one(f"{undisturbed}none elastic.schedule={{40:1,80:2}}"), gpus=0) - once
    assert (
        again == [again[0]] * 3
        and resized == pytest.approx(again[0], rel=0.2)
        and 0 < once - zygote < again[0] / 2
    )


@pytest.mark.parametrize(
    ("typed", "took"),
    [
        ("model=resnet18 model.width=8 dataset=cifar10", 0.085),
        ("model=resnet18 model.width=16 dataset=cifar10", 0.231),
        ("model=resnet18 model.width=64 dataset=cifar10", 2.31),
        ("model=resnet50 model.width=8 dataset=cifar10", 0.247),
        ("model=resnet50 model.width=64 dataset=cifar10", 6.57),
        ("model=resnet152 model.width=32 dataset=cifar10", 3.43),
        ("model=small_cnn model.width=32 dataset=cifar10", 0.070),
        ("model=vit model.width=16 dataset=digits", 0.049),
        ("model=vit model.width=128 dataset=cifar10", 0.227),
        ("model=resnet18 model.width=16 model.stem=imagenet dataset=tinyimagenet", 0.074),
    ],
)
def test_a_step_takes_what_it_took_on_one_core_within_a_factor_of_two(
    typed: str, took: float
) -> None:
    """`took`: seconds of a step of 32 samples, measured with torch 2.14 on an AMD EPYC; narrow
    networks move memory rather than multiply.
    """
    config = one(f"{typed} global_batch=32 world_size=1 threads=1 failure=none")
    step = (
        seconds(replace(config, target_steps=1_100), gpus=0)
        - seconds(replace(config, target_steps=100), gpus=0)
    ) / 1_000
    assert took / 2 < step < took * 2


@pytest.mark.parametrize(
    ("typed", "counted"),
    [
        ("model=small_cnn model.width=32 model.depth=1 dataset=cifar10", 1_258),
        ("model=small_cnn model.width=8 model.depth=2 dataset=digits", 1_442),
        ("model=small_cnn model.width=32 dataset=cifar10", 391_466),
        ("model=small_cnn model.width=32 model.depth=8 dataset=cifar10", 2_752_810),
        ("model=vit model.width=64 model.depth=8 dataset=cifar10", 407_882),
        ("model=resnet50 model.width=16 dataset=cifar10", 1_484_186),
        ("model=nt3 model.width=8 dataset=nt3", 9_677_078),
        ("model=nt3 model.width=16 dataset=cifar10", 980_142),
        ("model=nt3 model.width=128 dataset=digits", 247_886),
    ],
)
def test_a_snapshot_is_as_large_as_the_model_makes_it(typed: str, counted: int) -> None:
    """`counted`: the parameters of the model that is built; with momentum there are as many
    again.
    """
    assert snapshot_bytes(one(f"{typed} failure=none")) == pytest.approx(8 * counted, rel=0.4)


def test_what_a_run_is_expected_to_take_doubles_where_all_processors_are_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = []
    for busy in (0.0, 100.0):
        slowed_by_others.cache_clear()
        monkeypatch.setattr("psutil.cpu_percent", lambda interval, busy=busy: busy)
        times.append(slowed_by_others())
    slowed_by_others.cache_clear()
    assert times == [1.0, 2.0]


def test_a_refusal_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(ConfigError, match="not started"):
        train.train(
            ["dataset=fake", "model=resnet50", "run_dir=here"], debug=False, say=lambda line: None
        )
    assert list(tmp_path.iterdir()) == []


def test_an_estimate_knows_how_many_gpus_share_the_ranks() -> None:
    config = one("+suite=cifar10-r50-base variant=ref world_size=4 scale=paper")

    def training(gpus: int, nodes: int = 1) -> float:
        """Seconds without the launch, which takes as long everywhere."""
        supervision = replace(config.supervision, nodes=nodes)
        whole, short = (
            replace(config, supervision=supervision, target_steps=steps) for steps in (1_600, 600)
        )
        return seconds(whole, gpus=gpus) - seconds(short, gpus=gpus)

    assert training(1) == pytest.approx(4 * training(4))
    assert training(2) == pytest.approx(2 * training(4))
    assert training(8) == pytest.approx(training(4))  # four ranks use four
    assert training(2, nodes=2) == pytest.approx(training(4))
