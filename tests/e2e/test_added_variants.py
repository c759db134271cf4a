"""Another package adds a strategy, a recovery, a launcher, a model and a data set, by one file and
one YAML each: as docs/extend.md shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.schema import CheckpointConfig
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.data.datasets import build_dataset
from ecrl_cli.data.loading import BatchLoader
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.models import build
from ecrl_cli.models.optimization import build_optimizer
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.verify.verdict import VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import Ecrl
from tests.contract import test_recoveries, test_strategies, test_tasks
from tests.contract.variants import check_description, install
from tests.e2e.runs import supervisor, tiny
from tests.in_process import SharedLaunchers, ecrl_in_process


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return install(tmp_path / "site")


@pytest.fixture
def installed(site: Path) -> Iterator[None]:
    """`mylab` can be imported in this process; afterwards nothing knows of it."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (STRATEGIES, RECOVERIES, LAUNCHERS, TASKS):
            patch.setattr(registry, "_known", dict(registry._known))
        patch.syspath_prepend(site)
        yield


def test_what_a_package_adds_is_held_to_the_contracts_of_its_family(installed: None) -> None:
    check_description(STRATEGIES, "announced", "checkpoint", "strategy")
    check_description(RECOVERIES, "replaced_forward", "recovery", "name")
    check_description(LAUNCHERS, "timed", "supervision", "launcher")
    test_tasks.check_task("robust")
    assert "replaced_forward" in RECOVERIES.names() and "replaced_forward" not in RECOVERIES.builtin
    for check in (
        test_recoveries.test_the_object_does_not_contradict_itself,
        test_recoveries.test_who_goes_on_is_as_the_object_says,
    ):
        check(RECOVERIES.of("replaced_forward"))
    announced = STRATEGIES.of("announced")
    test_strategies.test_the_object_does_not_contradict_itself(announced)
    test_strategies.test_what_cannot_be_combined_is_refused_in_one_line(
        announced, CheckpointConfig(strategy="announced")
    )


def test_a_run_with_one_of_each_recovers_and_is_judged_where_the_package_is(
    ecrl: Ecrl, tmp_path: Path, site: Path, request: pytest.FixtureRequest
) -> None:
    added = [
        "checkpoint=announced",
        "recovery=replaced_forward",
        "supervision=timed",
        "supervision.spares=1",
        "model=linear",
        "dataset=stripes",
    ]
    keys = tiny(
        "supervision.launcher=",
        "model=",
        "model.width=",
        "dataset=",
        "failure.steps=[9]",
        "failure.moment=backward",
    )
    ecrl("train", *added, *keys, "run_dir=run", environment={"PYTHONPATH": str(site)})
    run = RunLayout(tmp_path / "run")
    first, second = supervisor(run.root)["attempts"]
    assert (first["outcome"], second["memory"], second["joined"], second["world_size"]) == (
        "survived",
        "survivors",
        [1],
        2,
    )
    said = run.attempt(0).output.read_text() + run.attempt(1).output.read_text()
    assert (
        "rank 0: step 6 is saved" in said
        and "rank 1: step 24 is saved" in said
        and said.count("launched in ") == 2
    )
    with pytest.raises(
        EvidenceMissing,
        match="unknown recovery 'replaced_forward'; install the package that the run was made with",
    ):
        verify_run(run.root)
    request.getfixturevalue("installed")
    verdict = verify_run(run.root)
    assert verdict.status == VALID, render(verdict)
    assert '"cause":"replaced_forward"' in run.attempt(0).lost_samples(0).read_text()


def logged_losses(run: Path) -> list[float]:
    """Of rank 0 in the first two steps, or of its first replica."""
    lines = [
        json.loads(line) for line in RunLayout(run).attempt(0).rank(0).read_text().splitlines()[:2]
    ]
    return [
        float(line["loss"][0] if isinstance(line["loss"], list) else line["loss"]) for line in lines
    ]


def own_losses(run: Path) -> list[float]:
    """The same in one process by the task's own functions: the first of the model as it begins, the
    second after one update with the whole batch.
    """
    config = read_run_config(RunLayout(run)).config
    task, dataset = TASKS.of(config.task.name), build_dataset(config.dataset)
    torch.manual_seed(config.seed)
    model = build(config.model, dataset.traits.classes, dataset.traits.shape)
    optimizer = build_optimizer(config.optimizer, model.parameters())
    sampler = ResumableGlobalBatchSampler(
        len(dataset), config.global_batch, config.seed, config.elastic.replicas
    )
    loader, losses = BatchLoader(dataset, config.seed, config.dataset.augment), []
    for _ in range(2):
        ids = sampler.shard(0, config.world_size)
        ids = (
            ids[: config.global_batch // config.elastic.replicas]
            if config.elastic.replicas
            else ids
        )
        batch, whole = loader.batch(0, ids), loader.batch(0, sampler.shard(0, 1))
        losses.append(float(task.load()(model, batch.x, batch.y).detach()))
        optimizer.zero_grad()
        task.load()(model, whole.x, whole.y).backward()
        (task.load_update() or (lambda model, optimizer: optimizer.step()))(model, optimizer)
        sampler.advance()
    return losses


@pytest.mark.parametrize(
    ("chosen", "recorded"),
    [
        (
            ("task=robust", "dataset=waves", "model=linear", "optimizer.lr=0.01"),
            ("float32", "float32", [1]),
        ),
        (
            ("task=next_token", "dataset=counting", "model=bigram", "elastic.replicas=4"),
            ("int64", "int64", [8]),
        ),
        (
            (
                "task=robust",
                "dataset=waves",
                "model=linear",
                "optimizer.lr=0.01",
                "recovery=immediate_rollback",
                "supervision.spares=1",
            ),
            None,
        ),
    ],
    ids=["own loss and update, tuples", "text, replicas", "own update, in memory"],
)
def test_what_is_no_picture_recovers_exactly_too(
    tmp_path: Path,
    site: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    chosen: tuple[str, ...],
    recorded: tuple[str, str, list[int]] | None,
) -> None:
    """Killed in the middle, it ends bit for bit as the undisturbed run, with every sample on record
    once.
    """
    request.getfixturevalue("installed")
    keys = tiny(
        "model=",
        "model.width=8",
        "dataset=",
        "dataset.augment=",
        "dataset.size=96",
        "failure.steps=[9]",
        "reference=auto",
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    launchers = SharedLaunchers({"PYTHONPATH": str(site)})
    try:
        ecrl_in_process(tmp_path, "train", *chosen, *keys, "run_dir=run", launchers=launchers)
    finally:
        launchers.end()
    verdict = verify_run(tmp_path / "run")
    assert verdict.status == VALID and verdict.reference, render(verdict)
    assert {"same-trajectory", "exactly-once"} <= {
        each.promise for each in verdict.findings if each.status == VALID
    }
    assert logged_losses(tmp_path / "run") == pytest.approx(own_losses(tmp_path / "run"), rel=1e-4)
    if recorded:
        record = json.loads(RunLayout(tmp_path / "run").dataset.read_text())
        assert (record["inputs"], record["targets"], record["target_shape"]) == recorded


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            "task=robust dataset=stripes model=linear",
            (
                "task: robust takes targets of float32, those of stripes are int64; choose another"
                " task"
            ),
        ),
        (
            "task=classification dataset=waves model=linear",
            "task: classification takes targets of int64, those of waves are float32",
        ),
        (
            "task=regression dataset=digits",
            "task: regression takes targets of float32, those of digits are int64",
        ),
        (
            "task=robust dataset=waves model=linear dataset.augment=true",
            "dataset.augment: waves has no pictures that could be cropped and flipped",
        ),
        (
            "task=next_token dataset=counting model=linear",
            "model: linear cannot be built for inputs of (8,) and 32 outputs (IndexError",
        ),
        (
            "task=robust dataset=waves model=bigram",
            "task: robust cannot compute the loss of model bigram on waves (RuntimeError",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused_before_the_launch(
    tmp_path: Path,
    site: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    chosen: str,
    said: str,
) -> None:
    request.getfixturevalue("installed")
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = ecrl_in_process(
        tmp_path, "train", *chosen.split(), "target_steps=2", "run_dir=run", check=2
    )
    assert done.stderr.count("\n") == 1 and said in done.stderr
    assert not (tmp_path / "run").exists()
