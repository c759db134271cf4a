"""On a GPU: recovery is exact, and a deferred capture is the state of its step, bit for bit.
Without one these are skipped, and say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.strategies.deferral_gpu import CHANGED, PinnedBuffer
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.verify.verdict import VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import Ecrl
from tests.e2e.runs import end_state, manifest, tiny
from tests.unit.checkpoint_support import writer_process
from tests.unit.test_checkpoint_deferred import DEFERRED, KINDS, Rank
from tests.unit.test_checkpoint_train_state import OPTIMIZERS, Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class GpuRun(Run):
    """`Run` on the GPU, with a parameter so large that its copy is still under way when the next
    step ends.
    """

    def __init__(self, kind: str = "adamw", extra: int = 50_000_000) -> None:
        super().__init__(kind)
        self.model.register_parameter("large", nn.Parameter(torch.full((extra,), 0.5)))
        self.model.cuda()
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0, growth_interval=3)
        self.train_state = TrainState(
            self.model, self.optimizer, self.scheduler, self.scaler, self.sampler, 0, 1
        )

    def loss(self) -> torch.Tensor:
        large: Any = self.model.large
        return (
            self.model(torch.randn(8, 1, 6, 6, device="cuda")).square().mean()
            + large.square().mean()
        )


MakeRank = Callable[[GpuRun], Rank]


@pytest.fixture
def rank_of(tmp_path: Path) -> Iterator[MakeRank]:
    layout, made = RunLayout(tmp_path), list[Rank]()
    write_run_config(layout, DEFERRED)
    with writer_process(layout) as writer:

        def make(run: GpuRun) -> Rank:
            made.append(Rank(tmp_path, writer, run))
            made[-1].ready()
            return made[-1]

        yield make
        for rank in made:
            rank.strategy.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_gpu_copies_while_training_goes_on_is_the_state_of_its_step(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(OPTIMIZERS, kind, KINDS[kind])
    undisturbed = GpuRun(kind)
    expected = undisturbed.train(7)
    rank = rank_of(GpuRun(kind))
    digests = rank.run.train_state.digests()
    rank.save()
    losses = rank.run.train(5)
    rank.strategy.flush()
    assert rank.saved() == digests and rank.told == []
    assert (
        losses == expected[2:]
        and rank.run.train_state.digests() == undisturbed.train_state.digests()
    )
    (submitted,) = rank.of("submitted")
    assert submitted.reason is None and 0 < submitted.deferred_bytes < submitted.bytes


@pytest.mark.parametrize("waits", [True, False])
def test_the_optimizer_waits_on_the_gpu_for_a_copy_that_is_late(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """The copying stream is held up for a second or so; without the wait the state of a later step
    is written.
    """
    begin = PinnedBuffer.copy_later

    def late(self: PinnedBuffer, tensors: dict[str, torch.Tensor]) -> Any:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(2_000_000_000)  # cycles
        return begin(self, tensors)

    monkeypatch.setattr(PinnedBuffer, "copy_later", late)
    if not waits:
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)
    rank = rank_of(GpuRun(extra=1_000_000))
    digests = rank.run.train_state.digests()
    rank.save()
    rank.run.train(3)
    rank.strategy.flush()
    assert (
        rank.saved().optimizer == digests.optimizer,
        rank.saved().parameters == digests.parameters,
    ) == (waits, waits)


def test_what_is_saved_where_no_update_follows_is_whole(rank_of: MakeRank) -> None:
    rank = rank_of(GpuRun())
    digests = rank.run.train_state.digests()
    rank.save()
    rank.strategy.flush()
    assert rank.saved() == digests and len(rank.of("committed")) == 1


def test_a_parameter_that_is_written_in_forward_ends_the_deferring(rank_of: MakeRank) -> None:
    rank = rank_of(GpuRun())

    def write(*given: Any) -> None:
        with torch.no_grad():
            rank.run.model.last.bias.mul_(0.5)

    hook = rank.run.model.register_forward_pre_hook(write)
    rank.save()
    rank.run.train(1)
    hook.remove()
    rank.save()
    rank.strategy.flush()
    assert [line.global_step for line in rank.of("committed")] == [3]
    (failed,) = rank.of("failed")
    assert failed.global_step == 2 and f"step 2: {CHANGED.format('parameters.last.bias')}" in str(
        failed.reason
    )
    assert len(rank.told) == 1 and [bool(line.reason) for line in rank.of("submitted")] == [
        False,
        True,
    ]


def test_many_checkpoints_in_a_row_are_all_whole(rank_of: MakeRank) -> None:
    rank = rank_of(GpuRun(extra=5_000_000))
    states = {}
    for _ in range(6):
        states[rank.run.global_step] = rank.run.train_state.digests()
        rank.save()
        rank.run.train(1)
    rank.strategy.flush()
    assert sorted(line.global_step for line in rank.of("committed")) == sorted(states)
    assert rank.saved() == states[max(states)]


SETTINGS = {
    "gloo": ["backend=gloo", "world_size=2"],
    "nccl": ["backend=nccl", "world_size=1", "supervision.launcher=torchrun"],
    "bf16": ["backend=nccl", "world_size=1", "precision=bf16", "optimizer=adamw"],
    "fp16": ["backend=nccl", "world_size=1", "precision=fp16"],
    "vit": [
        "backend=gloo",
        "world_size=2",
        "model=vit",
        "model.width=32",
        "model.depth=2",
        "optimizer=adamw",
    ],
    "replicas": ["backend=gloo", "world_size=2", "elastic.replicas=4"],
    "resnet18": ["backend=nccl", "world_size=1", "model=resnet18", "model.width=8"],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_recovery_on_a_gpu_is_exact(ecrl: Ecrl, tmp_path: Path, settings: list[str]) -> None:
    done = ecrl(
        "-m",
        *tiny("device=cuda", "failure.steps=[9,17]", "failure.rank=0", *settings),
        "variant=ref,ref2,blk,ovl",
        "run_dir=sweep",
    )
    assert done.returncode == 0, done.stderr
    runs = manifest(tmp_path / "sweep")
    for arm, run in runs.items():
        verdict = verify_run(run)
        assert verdict.status == VALID, render(verdict)
        assert json.loads(RunLayout(run).environment.read_text())["gpus"], arm


def test_recovery_from_deferred_captures_is_exact(ecrl: Ecrl, tmp_path: Path) -> None:
    given = tiny(
        "device=cuda", "backend=gloo", "world_size=2", "failure.steps=[9,17]", "failure.rank=0"
    )
    for arm in ("ref", "ovl"):
        deferred = ["checkpoint.capture=deferred"] if arm == "ovl" else []
        done = ecrl("-m", *given, *deferred, f"variant={arm}", f"run_dir={arm}")
        assert done.returncode == 0, done.stderr
    run, reference = manifest(tmp_path / "ovl")["ovl"], manifest(tmp_path / "ref")["ref"]
    verdict = verify_run(run, reference)
    assert verdict.status == VALID, render(verdict)
    lines = [
        line
        for attempt in load(RunLayout(run)).attempt_logs
        for line in attempt.checkpoints.events
        if line.event == "submitted"
    ]
    assert any(line.deferred_bytes for line in lines) and end_state(run) == end_state(reference)


def test_in_memory_snapshots_on_a_gpu_are_exact(ecrl: Ecrl, tmp_path: Path) -> None:
    given = tiny(
        "device=cuda", "backend=gloo", "world_size=2", "failure.steps=[9,17]", "failure.rank=0"
    )
    done = ecrl("-m", *given, "variant=ref,mem", "run_dir=sweep")
    assert done.returncode == 0, done.stderr
    for run in manifest(tmp_path / "sweep").values():
        verdict = verify_run(run)
        assert verdict.status == VALID, render(verdict)


@pytest.mark.parametrize(
    "arm",
    [
        "torch_save",
        "torch_save_durable",
        "dcp",
        "dcp_async",
        "torch_checkpointing",
        "torchsnapshot",
    ],
)
def test_other_checkpointers_on_a_gpu_are_judged_alike(
    ecrl: Ecrl, tmp_path: Path, arm: str
) -> None:
    given = tiny(
        "device=cuda", "backend=gloo", "world_size=2", "failure.steps=[9,17]", "failure.rank=0"
    )
    done = ecrl("-m", *given, f"variant=ref,{arm}", "run_dir=sweep")
    assert done.returncode == 0, done.stderr
    runs = manifest(tmp_path / "sweep")
    verdict = verify_run(runs[arm], runs["ref"])
    assert verdict.status == VALID, render(verdict)
    assert end_state(runs[arm]) == end_state(runs["ref"])
