"""TrainState and the strategies in one process: what is captured is a copy, and what is restored is
bit for bit what was captured.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ecrl_cli.checkpoint.capture.loading import load_checkpoint
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.format.names import MODEL, TRAIN
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.strategies.strategy import Strategy, StrategyInputs, make_strategy
from ecrl_cli.config.schema import CheckpointConfig, RunConfig, WriteModeConfig
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.errors import ConfigError, Fenced, StorageError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import CheckpointLine, Span
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.span_clock import SpanClock
from tests.unit.checkpoint_support import flip, writer_process

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


class Net(nn.Module):
    """Batch normalisation (buffers), dropout (generators), a tied weight, a buffer that is not
    persistent, a bfloat16 and an empty one.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(width, width)
        self.tied = nn.Linear(width, width)
        self.tied.weight = self.last.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.register_buffer("bfloat", torch.arange(5, dtype=torch.bfloat16))
        self.register_buffer("nothing", torch.zeros(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.first(x)).relu()).mean((2, 3))
        out: torch.Tensor = self.tied(self.last(x))
        return out


class Run:
    """A training in one process, with everything a TrainState holds."""

    def __init__(
        self, kind: str = "adamw", width: int = 8, seed: int = 7, digest: str = "blake3"
    ) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.model = Net(width)
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
        self.sampler = ResumableGlobalBatchSampler(64, 8, 1337)
        self.train_state = TrainState(
            self.model,
            self.optimizer,
            self.scheduler,
            self.scaler,
            self.sampler,
            0,
            1,
            digest=digest,
        )
        self.global_step = 0

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.loss()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.sampler.advance()
            self.global_step += 1
            losses.append(loss)
        return [loss.item() for loss in losses]

    def loss(self) -> torch.Tensor:
        noise = random.random() + float(np.random.normal())
        return (self.model(torch.randn(8, 1, 6, 6)) * noise).square().mean()

    def progress(self, chain: str = "c" * 64) -> TrainPosition:
        return TrainPosition(
            self.global_step, self.sampler.epoch, self.sampler.cursor_step, 1337, chain
        )


def config(
    strategy: str = "blocking",
    layout: str = "group",
    format: str = "safetensors",
    **checkpoint: Any,
) -> RunConfig:
    return replace(
        RunConfig(),
        checkpoint=CheckpointConfig(strategy=strategy, layout=layout, format=format, **checkpoint),
    )


def strategy_of(run: Run, root: Path, settings: RunConfig, attempt: int = 0) -> Strategy:
    layout = RunLayout(root)
    logs = layout.attempt(attempt)
    clock = SpanClock(Journal(logs.spans(0)), attempt, monotonic(), "compute")
    made = make_strategy(StrategyInputs(settings, run.train_state, layout, attempt, clock))
    made.prepare()
    return made


def lines(root: Path) -> list[CheckpointLine]:
    return list(read_journal(RunLayout(root).attempt(0).checkpoints, CheckpointLine).events)


@pytest.fixture(params=["blocking", "overlapped"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunConfig]:
    """Both strategies; the overlapped one with its writer running."""
    made = config(request.param)
    layout = RunLayout(tmp_path)
    write_run_config(layout, made)
    if request.param == "blocking":
        yield made
        return
    with writer_process(layout):
        yield made


def newest(root: Path) -> tuple[Path, str]:
    report = CheckpointStore(RunLayout(root).checkpoints).newest_valid().report
    assert report is not None and report.commit_sha256 is not None
    return report.path, report.commit_sha256


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_bit_for_bit_from_a_checkpoint(
    tmp_path: Path, settings: RunConfig, kind: str
) -> None:
    run = Run(kind)
    run.train(5)
    strategy = strategy_of(run, tmp_path, settings)
    strategy.save(run.progress())
    digests, scaled = run.train_state.digests(), run.scaler.state_dict()
    expected = run.train(4)
    after = run.train_state.digests()
    strategy.flush()
    strategy.close()

    path, commit = newest(tmp_path)
    resumed = Run(kind, seed=99)
    resumed.train(2)
    progress = resumed.train_state.restore(path, commit)
    assert progress == TrainPosition(5, 0, 5, 1337, "c" * 64)
    assert resumed.train_state.digests() == digests
    assert resumed.scheduler.last_epoch == 5 and resumed.scaler.state_dict() == scaled
    assert resumed.train(4) == expected
    assert resumed.train_state.digests() == after


def test_a_state_that_has_grown_since_the_last_checkpoint_is_saved_whole(tmp_path: Path) -> None:
    """An optimizer has no state before its first step."""
    run = Run("adamw")
    strategy = strategy_of(run, tmp_path, config())
    for _ in range(2):
        strategy.save(run.progress())
        run.train(1)
    strategy.save(run.progress())
    strategy.close()
    resumed = Run("adamw", seed=99)
    resumed.train_state.restore(*newest(tmp_path))
    assert resumed.train_state.digests() == run.train_state.digests()


def test_the_manifest_has_the_digests_of_the_moment_of_capture(
    tmp_path: Path, settings: RunConfig
) -> None:
    """state_dict aliases live tensors, AdamW's step on the CPU included: what is written must not
    be what training made of it since.
    """
    run = Run("adamw")
    run.train(3)
    strategy = strategy_of(run, tmp_path, settings)
    digests = run.train_state.digests()
    step_before = next(iter(run.optimizer.state.values()))["step"].item()
    strategy.save(run.progress())
    run.train(3)
    for tensor in (*run.model.parameters(), *run.model.buffers()):
        with torch.no_grad():
            tensor.zero_()
    for state in run.optimizer.state.values():
        for value in state.values():
            value.zero_()
    strategy.flush()
    strategy.close()
    path, commit = newest(tmp_path)
    loaded = load_checkpoint(path, commit)
    assert components(loaded.manifest) == digests
    assert loaded.tensors["optimizer.first.weight.step"].item() == step_before == 3


def test_every_line_is_written_in_order_and_accounts_for_the_time(
    tmp_path: Path, settings: RunConfig
) -> None:
    run = Run()
    run.train(2)
    strategy = strategy_of(run, tmp_path, settings)
    for _ in range(3):
        strategy.save(run.progress())
        run.train(1)
    strategy.flush()
    strategy.close()
    found = lines(tmp_path)
    for step in (2, 3, 4):
        mine = [line for line in found if line.global_step == step]
        assert {line.event for line in mine} == {"submitted", "received", "released", "committed"}
        named = {line.event: line for line in mine}
        assert mine[0].event == "submitted"
        assert named["received"].at <= named["committed"].at
        assert named["released"].stall_s >= named["submitted"].snapshot_s > 0
        parts, end = named["released"].stall_parts, named["committed"]
        assert (
            math.fsum(parts.values()) == pytest.approx(named["released"].stall_s, abs=1e-6)
            and parts["snapshot"] == named["submitted"].snapshot_s
        )
        if settings.checkpoint.strategy == "blocking":
            assert (parts["write"], parts["hash"], parts["commit"]) == (
                end.write_s,
                end.hash_s,
                end.commit_s,
            ) and parts["settle"] > 0
            assert parts.keys() == {"snapshot", "write", "hash", "commit", "settle", "barrier"}
        else:
            assert parts.keys() == {"snapshot", "backpressure", "enqueue", "barrier"}
        assert named["submitted"].bytes == named["committed"].bytes > 0
        assert named["committed"].path == f"checkpoints/step_{step:08d}"
    spans = read_journal(RunLayout(tmp_path).attempt(0).spans(0), Span).events
    assert all(before.end == after.start for before, after in pairwise(spans))
    assert {"compute", "sync", "snapshot"} <= {span.category for span in spans}


@pytest.mark.parametrize(
    ("layout", "format", "suffix"),
    [("single", "safetensors", ".safetensors"), ("group", "torch", ".pt")],
)
def test_the_other_layouts_restore_the_same(
    tmp_path: Path, settings: RunConfig, layout: str, format: str, suffix: str
) -> None:
    # of which the writer has begun
    digest = "sha256" if settings.checkpoint.strategy == "blocking" else "blake3"
    settings = replace(
        settings,
        checkpoint=replace(settings.checkpoint, layout=layout, format=format, digest=digest),
    )
    run = Run(digest=digest)
    run.train(3)
    strategy = strategy_of(run, tmp_path, settings)
    digests = run.train_state.digests()
    strategy.save(run.progress())
    run.train(1)
    strategy.save(run.progress())
    strategy.flush()
    strategy.close()
    path = RunLayout(tmp_path).checkpoints / f"step_00000003{suffix}"
    report = CheckpointStore(path.parent).verify(path)
    assert report.ok and report.manifest is not None and components(report.manifest) == digests
    assert report.manifest.digest == digest
    resumed = Run(seed=99, digest=digest)
    assert resumed.train_state.restore(path, report.commit_sha256 or "").global_step == 3
    assert resumed.train_state.digests() == digests
    size = path.stat().st_size
    flip(path, size // 2)
    with pytest.raises(StorageError, match="hash"):
        Run().train_state.restore(path, report.commit_sha256 or "")


def test_others_can_read_the_parts(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, tmp_path, config())
    strategy.save(run.progress())
    strategy.close()
    path, _ = newest(tmp_path)
    tensors = load_file(path / MODEL)
    assert torch.equal(tensors["parameters.first.weight"], run.model.first.weight)
    assert set(tensors) == {f"parameters.{n}" for n, _ in run.model.named_parameters()} | {
        f"buffers.{n}"
        for n in (
            "bfloat",
            "nothing",
            "norm.running_mean",
            "norm.running_var",
            "norm.num_batches_tracked",
        )
    }
    assert json.loads((path / TRAIN).read_bytes())["line_chain"] == ["c" * 64]


def test_the_slot_is_planned_again_when_the_optimizer_gets_its_state(
    tmp_path: Path, settings: RunConfig
) -> None:
    run = Run("sgd")
    strategy = strategy_of(run, tmp_path, settings)
    strategy.save(run.progress())
    run.train(2)
    digests = run.train_state.digests()
    strategy.save(run.progress())
    strategy.flush()
    strategy.close()
    path, commit = newest(tmp_path)
    assert (
        path.name == "step_00000002"
        and components(load_checkpoint(path, commit).manifest) == digests
    )


def test_a_state_that_was_replaced_not_changed_in_place_is_captured(tmp_path: Path) -> None:
    run = Run("sgd")
    run.train(1)
    strategy = strategy_of(run, tmp_path, config())
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    run.model.norm.running_mean = torch.full((8,), 3.0)
    run.train(1)
    digests = run.train_state.digests()
    strategy.save(run.progress())
    strategy.close()
    path, commit = newest(tmp_path)
    assert components(load_checkpoint(path, commit).manifest) == digests


def test_a_checkpoint_of_another_model_or_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    run = Run("adamw")
    run.train(1)
    strategy = strategy_of(run, tmp_path, config())
    strategy.save(run.progress())
    strategy.close()
    path, commit = newest(tmp_path)
    with pytest.raises(ConfigError, match="another model"):
        Run("adamw", width=9).train_state.restore(path, commit)
    with pytest.raises(ConfigError, match="another optimizer"):
        Run("sgd").train_state.restore(path, commit)


def test_only_what_was_committed_is_restored(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, tmp_path, config())
    strategy.save(run.progress())
    strategy.close()
    path, commit = newest(tmp_path)
    with pytest.raises(StorageError, match="commit"):
        Run().train_state.restore(path, "0" * 64)
    flip(path / MODEL, 900)
    with pytest.raises(StorageError, match=r"hash.*model\.safetensors"):
        Run().train_state.restore(path, commit)


def test_state_digest_sees_every_component(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    seen = {run.train_state.state_digest()}
    with torch.no_grad():
        run.model.first.bias[0] += 1
        seen.add(run.train_state.state_digest())
        run.model.norm.num_batches_tracked += 1
        seen.add(run.train_state.state_digest())
        next(iter(run.optimizer.state.values()))["step"] += 1
        seen.add(run.train_state.state_digest())
    assert len(seen) == 4


def test_without_a_writer_saves_fail_on_record_and_training_goes_on(tmp_path: Path) -> None:
    settings = config("overlapped")
    layout = RunLayout(tmp_path)
    write_run_config(layout, settings)
    run = Run()
    run.train(1)
    strategy = strategy_of(run, tmp_path, settings)
    strategy.save(run.progress())
    run.train(1)
    with writer_process(layout) as process:
        strategy.save(run.progress())
        strategy.flush()
        run.train(1)
        process.kill()
        process.wait()
        strategy.save(run.progress())
    with writer_process(layout):
        run.train(1)
        strategy.save(run.progress())
        strategy.flush()
    strategy.close()
    ends = [
        (line.event, line.global_step)
        for line in lines(tmp_path)
        if line.event in ("committed", "failed")
    ]
    assert ends[0] == ("failed", 1) and ends[1] == ("committed", 2) and ends[-1] == ("committed", 4)
    submitted = [line.global_step for line in lines(tmp_path) if line.event == "submitted"]
    assert submitted == [1, 2, 3, 4]


def test_a_refused_write_fails_the_checkpoint_not_the_training(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, tmp_path, config())
    checkpoints = RunLayout(tmp_path).checkpoints
    checkpoints.rename(tmp_path / "away")
    strategy.save(run.progress())
    (tmp_path / "away").rename(checkpoints)
    run.train(1)
    strategy.save(run.progress())
    strategy.close()
    ends = [
        (line.event, line.global_step, "ENOENT" in (line.reason or ""))
        for line in lines(tmp_path)
        if line.event in ("committed", "failed")
    ]
    assert ends == [("failed", 1, True), ("committed", 2, False)]


def test_the_write_mode_of_the_configuration_is_used(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    settings = replace(
        config(),
        write_mode=WriteModeConfig(
            "unsafe", sync_files=False, atomic=False, sync_directories=False
        ),
    )
    strategy = strategy_of(run, tmp_path, settings)
    strategy.save(run.progress())
    strategy.close()
    assert newest(tmp_path)[0].name == "step_00000001"


def test_none_does_nothing(tmp_path: Path) -> None:
    run = Run()
    strategy = strategy_of(run, tmp_path, config("none"))
    strategy.save(run.progress())
    strategy.flush()
    strategy.close()
    assert not RunLayout(tmp_path).checkpoints.exists() and lines(tmp_path) == []


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_what_lies_with_its_parameter_is_no_tensor_of_the_host(kind: str) -> None:
    """`host_keys` are those that stay in host memory while their parameter is on a device, as
    AdamW's step count on a GPU: on a CPU none.
    """
    run = Run(kind)
    run.train(1)
    assert run.train_state._optimizer_document()["host_keys"] == []


@pytest.mark.parametrize("later", [2, 4])
def test_an_attempt_claims_the_store_under_its_own_number(tmp_path: Path, later: int) -> None:
    """Attempt 3 writes: an older one that still lives is fenced off, a newer one is not."""
    run = Run()
    strategy = strategy_of(run, tmp_path, config("blocking"), attempt=3)
    with closing(CheckpointStore(RunLayout(tmp_path).checkpoints, StoreConfig())) as store:
        if later > 3:
            store.claim(later)
        else:
            with pytest.raises(Fenced):
                store.claim(later)
    strategy.close()
