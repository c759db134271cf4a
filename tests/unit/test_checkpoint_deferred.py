"""Deferred capture: what is written is the state of its step, bit for bit, although training goes
on; or it is copied, or refused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ecrl_cli.checkpoint.capture.live_state import LiveState
from ecrl_cli.checkpoint.capture.loading import tensor_at
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.shared_state import NotShareable, SharedState
from ecrl_cli.checkpoint.capture.staging_buffer import StagingBuffer
from ecrl_cli.checkpoint.capture.tensor_sources import spec_of
from ecrl_cli.checkpoint.format.image import TensorSpec, plan_image
from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.strategies.deferral import UNWATCHED, Deferral
from ecrl_cli.checkpoint.strategies.overlapped import OverlappedStrategy
from ecrl_cli.checkpoint.strategies.strategy import StrategyInputs, make_strategy
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.checkpoint.writer.server import UNCONFIRMED
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.unix_socket import connect
from ecrl_cli.records.events import CheckpointLine, Span
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.storage.writing import BLOCK
from tests.conftest import comes_true
from tests.open_files import open_files
from tests.unit.checkpoint_support import writer_process
from tests.unit.test_checkpoint_train_state import OPTIMIZERS, Run, config, lines

KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    **OPTIMIZERS,
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
}


class Rank:
    """A run with a deferring strategy and the real writer, which can be made to stand still."""

    def __init__(
        self,
        root: Path,
        writer: subprocess.Popen[bytes],
        run: Run,
        configured: RunConfig | None = None,
    ) -> None:
        self.root, self.writer, self.run, self.told = root, writer, run, list[str]()
        self.beaten = threading.Event()
        layout = RunLayout(root)
        self.clock = SpanClock(Journal(layout.attempt(0).spans(0)), 0, monotonic(), "compute")
        given = StrategyInputs(
            configured or DEFERRED,
            run.train_state,
            layout,
            0,
            self.clock,
            beat=self.beaten.set,
            tell=self.told.append,
        )
        strategy = make_strategy(given)
        assert isinstance(strategy, OverlappedStrategy)
        self.strategy = strategy

    def ready(self) -> None:
        """After the first step, and one that was watched."""
        self.run.train(1)
        self.strategy.prepare()
        self.run.train(1)

    def save(self, state_digest: str = "") -> None:
        self.strategy.save(replace(self.run.progress(), state_digest=state_digest))
        self.clock.switch("compute")

    @contextmanager
    def standing_writer(self) -> Iterator[None]:
        """The writer is stopped, with staging buffers granted."""
        client = self.strategy._client
        assert client is not None and comes_true(lambda: len(client._free) > 1)
        os.kill(self.writer.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.writer.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.writer.pid, signal.SIGCONT)

    def of(self, event: str) -> list[CheckpointLine]:
        return [line for line in lines(self.root) if line.event == event]

    def saved(self) -> Any:
        """The digests by component of the newest valid checkpoint."""
        report = CheckpointStore(RunLayout(self.root).checkpoints).newest_valid().report
        assert report is not None and report.manifest is not None
        return components(report.manifest)


WRITTEN = "parameters.last.bias was changed outside of the optimizer's step while it was copied"
DEFERRED = config("overlapped", capture="deferred")
MakeRank = Callable[..., Rank]


@pytest.fixture
def rank_of(tmp_path: Path) -> Iterator[MakeRank]:
    layout, made = RunLayout(tmp_path), list[Rank]()
    write_run_config(layout, DEFERRED)
    with writer_process(layout) as process:

        def make(run: Run | None = None) -> Rank:
            made.append(Rank(tmp_path, process, run or Run()))
            return made[-1]

        yield make
        for rank in made:
            rank.strategy.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_while_training_goes_on_is_the_state_of_its_step(
    rank_of: MakeRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(OPTIMIZERS, kind, KINDS[kind])
    undisturbed = Run(kind)
    expected = undisturbed.train(8)
    rank = rank_of(Run(kind))
    rank.ready()
    rank.run.train(1)
    digests = rank.run.train_state.digests()
    rank.save(rank.run.train_state.state_digest())
    assert rank.run.train(5) == expected[3:], "another trajectory in shared memory"
    assert rank.run.train_state.digests() == undisturbed.train_state.digests()
    rank.strategy.flush()
    assert rank.saved() == digests and rank.told == []
    submitted = rank.of("submitted")[0]
    assert submitted.reason is None and 0 < submitted.deferred_bytes < submitted.bytes


def test_the_optimizer_waits_for_the_copy_and_the_wait_is_on_record(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.ready()
    with rank.standing_writer():
        digests = rank.run.train_state.digests()
        rank.save()
        step = threading.Thread(target=rank.run.train, args=(1,))
        rank.beaten.clear()
        step.start()
        assert rank.beaten.wait(60) and step.is_alive()
        held = rank.run.train_state.digests()
        assert (held.parameters, held.optimizer) == (
            digests.parameters,
            digests.optimizer,
        ), "changed before it was copied"
    step.join()
    rank.strategy.flush()
    rank.clock.close()
    assert rank.saved() == digests != rank.run.train_state.digests()
    (waited,) = rank.of("waited")
    assert (
        waited.stall_parts == {"copy_wait": waited.stall_s}
        and waited.stall_s > 0
        and waited.global_step == 2
    )
    spans = read_journal(RunLayout(rank.root).attempt(0).spans(0), Span).events
    assert waited.stall_s in [
        span.end - span.start for span in spans if span.category == "write_wait"
    ]


def drained(root: Path) -> None:
    """What the supervisor asks for after an attempt."""
    supervisor = Channel(connect(RunLayout(root).writer))
    supervisor.send({"kind": "drain"})
    assert supervisor.receive(wait=True) == [{"kind": "drained"}]
    supervisor.close()


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "held-open"])
@pytest.mark.parametrize("logs", [True, False], ids=["digest", "no-digest"])
def test_a_rank_that_goes_while_its_state_is_copied_leaves_what_a_digest_confirms(
    rank_of: MakeRank, logs: bool, closes: bool
) -> None:
    """The writer holds the memory, but only the dead rank could have told whether it had been
    written to. Its connection may outlive it, in a child of its own.
    """
    rank = rank_of()
    rank.ready()
    with rank.standing_writer():
        digests = rank.run.train_state.digests()
        rank.save(rank.run.train_state.state_digest() if logs else "")
        if closes:
            assert rank.strategy._client is not None
            # what the kernel does to the connection of a killed process
            rank.strategy._client._channel.shutdown()
    drained(rank.root)
    end = "committed" if logs else "failed"
    assert [line.event for line in lines(rank.root)] == ["submitted", "released", "received", end]
    if logs:
        assert rank.saved() == digests
    else:
        assert UNCONFIRMED in str(rank.of("failed")[0].reason) and not list(
            RunLayout(rank.root).checkpoints.glob("step_*")
        )


def test_a_rank_that_leaves_its_attempt_waits_for_the_copy_and_is_free_then(
    rank_of: MakeRank,
) -> None:
    """As one that outlives others: its state is trained on in the next attempt."""
    rank = rank_of()
    rank.ready()
    with rank.standing_writer():
        digests = rank.run.train_state.digests()
        rank.save()
        left = threading.Thread(target=rank.strategy.close)
        rank.beaten.clear()
        left.start()
        assert rank.beaten.wait(60) and left.is_alive()
    left.join()
    assert (
        not rank.run.optimizer._optimizer_step_pre_hooks
        and not rank.run.optimizer._optimizer_step_post_hooks
    )
    rank.run.train(1)
    assert comes_true(lambda: bool(rank.of("committed")))
    assert rank.saved() == digests


def without_wait(patch: pytest.MonkeyPatch, rank: Rank) -> None:
    patch.setattr(Deferral, "wait", lambda self: None)


def without_hook(patch: pytest.MonkeyPatch, rank: Rank) -> None:
    assert rank.strategy._deferral is not None
    for hook in rank.strategy._deferral._hooks:
        hook.remove()


@pytest.mark.parametrize(
    ("bug", "logs", "reason"),
    [
        (without_wait, False, "the state of step 2 changed before it had been copied"),
        (without_hook, True, "step 2 would be saved as"),
    ],
)
def test_where_the_wait_is_left_out_nothing_torn_is_committed(
    rank_of: MakeRank,
    monkeypatch: pytest.MonkeyPatch,
    bug: Callable[..., None],
    logs: bool,
    reason: str,
) -> None:
    """Found by the count of changes in the shared memory; without that too, by the digest that the
    rank logged.
    """
    rank = rank_of()
    rank.ready()
    bug(monkeypatch, rank)
    with rank.standing_writer():
        rank.save(rank.run.train_state.state_digest() if logs else "")
        rank.run.train(1)
    rank.strategy.flush()
    monkeypatch.undo()
    assert rank.of("committed") == [] and [
        reason in str(line.reason) for line in rank.of("failed")
    ] == [True]
    assert not [
        path for path in RunLayout(rank.root).checkpoints.iterdir() if path.name.startswith("step_")
    ]


def test_this_file_would_see_a_torn_checkpoint(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With neither wait nor count nor digest, and a confirmation that does not look, a state is
    committed that no step ended in.
    """
    rank = rank_of()
    rank.ready()
    without_hook(monkeypatch, rank)
    monkeypatch.setattr(SharedState, "changed", lambda self: "")
    with rank.standing_writer():
        digests = rank.run.train_state.digests()
        rank.save()
        rank.run.train(1)
    rank.strategy.flush()
    assert rank.saved().parameters != digests.parameters and rank.saved().buffers == digests.buffers


def views_of_one(run: Run) -> None:
    """Two parameters in one piece of memory, as a flattening wrapper lays them."""
    whole = torch.cat([run.model.last.weight.detach().reshape(-1), run.model.last.bias.detach()])
    count = run.model.last.weight.numel()
    run.model.last.weight.data, run.model.last.bias.data = (
        whole[:count].view_as(run.model.last.weight),
        whole[count:],
    )


def replaced(run: Run) -> None:
    """As an optimizer that makes new state in each step."""
    state = run.optimizer.state[run.model.last.bias]
    state["exp_avg"] = state["exp_avg"].clone()


def written_outside(run: Run) -> None:
    """As weights that are averaged after the step."""
    with torch.no_grad():
        run.model.last.bias.mul_(0.5)


@pytest.mark.parametrize(
    ("early", "after", "reason"),
    [
        (views_of_one, None, "is a view of larger memory"),
        (None, replaced, "optimizer.last.bias.exp_avg was replaced by another tensor"),
        (None, written_outside, "parameters.last.bias was changed outside of the optimizer's step"),
    ],
)
def test_what_cannot_be_deferred_is_copied_and_says_so_once(
    rank_of: MakeRank,
    early: Callable[[Run], None] | None,
    after: Callable[[Run], None] | None,
    reason: str,
) -> None:
    rank = rank_of()
    if early:
        early(rank.run)
    rank.ready()
    for _ in range(2):
        if after:
            after(rank.run)
        digests = rank.run.train_state.digests()
        with rank.standing_writer():
            rank.save()
            rank.run.train(1)
        rank.strategy.flush()
        assert rank.saved() == digests
    assert [
        reason in str(line.reason) and not line.deferred_bytes for line in rank.of("submitted")
    ] == [True] * 2
    assert (
        len(rank.told) == 1
        and reason in rank.told[0]
        and rank.told[0].startswith("checkpoint.capture=deferred is not possible")
    )


def test_a_parameter_that_is_written_in_forward_ends_the_deferring(rank_of: MakeRank) -> None:
    """The writer refuses what it has not copied by then; what follows is copied."""
    rank = rank_of()
    rank.ready()
    hook = rank.run.model.register_forward_pre_hook(lambda *given: written_outside(rank.run))
    with rank.standing_writer():
        rank.save()
        step = threading.Thread(target=rank.run.train, args=(1,))
        rank.beaten.clear()
        step.start()
        assert rank.beaten.wait(60)
    step.join()
    hook.remove()
    rank.save()
    rank.strategy.flush()
    assert [line.global_step for line in rank.of("committed")] == [3]
    assert f"step 2: {WRITTEN}" in str(rank.of("failed")[0].reason) and len(rank.told) == 1


@pytest.mark.parametrize("logs", [False, True], ids=["no-digest", "digest"])
def test_a_write_in_forward_is_seen_also_where_the_copy_ends_before_the_update(
    rank_of: MakeRank, logs: bool
) -> None:
    """The writer copies the state with the write in it, and has finished before rank 0 looks."""
    rank = rank_of()
    rank.ready()
    client = rank.strategy._client
    assert client is not None

    def write(*given: Any) -> None:
        written_outside(rank.run)
        os.kill(rank.writer.pid, signal.SIGCONT)
        assert comes_true(lambda: not client.uncopied)

    hook = rank.run.model.register_forward_pre_hook(write)
    with rank.standing_writer():
        rank.save(rank.run.train_state.state_digest() if logs else "")
        rank.run.train(1)
    hook.remove()
    rank.strategy.flush()
    assert [line.event for line in lines(rank.root)][-2:] == ["received", "failed"] and len(
        rank.told
    ) == 1
    assert ("step 2 would be saved as" if logs else f"step 2: {WRITTEN}") in str(
        rank.of("failed")[0].reason
    )


def test_nothing_is_saved_before_it_is_confirmed_and_the_writer_is_not_busy_until_then(
    tmp_path: Path,
) -> None:
    """What it says on the heartbeat table: a writer that saves and does not come on would be
    replaced.
    """
    layout, beats = RunLayout(tmp_path), HeartbeatTable.create(1)
    write_run_config(layout, DEFERRED)
    with writer_process(layout, beats) as process:
        rank = Rank(tmp_path, process, Run())
        rank.ready()
        assert comes_true(lambda: beats.read(beats.writer).phase == "done"), "it owns the store"
        digests = rank.run.train_state.digests()
        rank.save()
        assert comes_true(
            lambda: bool(rank.of("received")) and beats.read(beats.writer).phase == "done"
        )
        assert not rank.of("committed") and not rank.of("failed")
        rank.run.train(1)
        assert comes_true(lambda: bool(rank.of("committed"))), "confirmed by the update alone"
        assert rank.saved() == digests
        rank.strategy.close()


def test_a_skipped_update_does_not_keep_the_only_buffer(tmp_path: Path) -> None:
    """As a gradient scaler skips one: the hooks of the optimizer are not called between two
    checkpoints.
    """
    layout, alone = RunLayout(tmp_path), config("overlapped", capture="deferred", max_inflight=1)
    write_run_config(layout, alone)
    with writer_process(layout) as process:
        rank = Rank(tmp_path, process, Run(), alone)
        rank.ready()
        rank.save()
        rank.run.global_step += 1
        rank.save()
        digests = rank.run.train_state.digests()
        rank.strategy.flush()
        assert [line.global_step for line in rank.of("committed")] == [
            2,
            3,
        ] and rank.saved() == digests
        rank.strategy.close()


def test_a_writer_is_given_nothing_once_deferring_was_given_up() -> None:
    run, told, shared = Run(), list[str](), list[object]()
    nothing: Any = None
    client: Any = SimpleNamespace(
        uncopied=False, unconfirmed=False, share=lambda *given: shared.append(given)
    )
    deferral = Deferral(run.optimizer, nothing, nothing, nothing, told.append)
    views = {"parameters.w": torch.zeros(8)[:4]}
    deferral.begin(client, views)
    deferral.begin(client, {"parameters.w": torch.zeros(4)})
    assert (
        shared == []
        and deferral.later({}, 6) == {}
        and deferral.reason == "parameters.w is a view of larger memory"
        and len(told) == 1
    )
    deferral.end()


def test_deferring_that_was_given_up_is_not_taken_up_again_by_a_later_update() -> None:
    run, told, weights = Run(), list[str](), {"parameters.w": torch.zeros(4)}
    nothing: Any = None
    client: Any = SimpleNamespace(uncopied=False, unconfirmed=False, share=lambda *given: None)
    deferral = Deferral(run.optimizer, nothing, nothing, nothing, told.append)
    deferral.begin(client, weights)
    run.train(1)
    assert list(deferral.later(weights, 1)) == ["parameters.w"]
    weights["parameters.w"].add_(1)
    run.train(2)
    assert (
        deferral.later(weights, 3) == {}
        and deferral.reason == "parameters.w was changed outside of the optimizer's step"
        and len(told) == 1
    )
    deferral.end()


def test_what_the_writer_copies_is_not_copied_by_the_rank_too(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, capture = list[list[str]](), StagingBuffer.capture

    def captured(self: StagingBuffer, tensors: dict[str, torch.Tensor]) -> None:
        copied.append(sorted({name.partition(".")[0] for name in tensors}))
        capture(self, tensors)

    monkeypatch.setattr(StagingBuffer, "capture", captured)
    rank = rank_of()
    rank.ready()
    rank.save()
    rank.strategy.flush()
    assert copied[-1] == ["buffers", "rng"], "what changes in the next forward pass"


def test_nothing_is_deferred_before_a_step_has_been_watched(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.run.train(1)
    rank.strategy.prepare()
    rank.save()
    rank.run.train(1)
    rank.save()
    rank.strategy.flush()
    assert [(line.reason, bool(line.deferred_bytes)) for line in rank.of("submitted")] == [
        (UNWATCHED, False),
        (None, True),
    ]
    assert rank.told == []


def test_where_there_is_no_memory_to_share_it_is_copied(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(nbytes: int) -> Memory:
        raise StorageError(
            "allocate", f"a snapshot slot of {nbytes} bytes: no space left", "free some"
        )

    rank = rank_of()
    monkeypatch.setattr(Memory, "create", full)
    rank.ready()
    rank.save()
    rank.strategy.flush()
    (submitted,), why = rank.of("submitted"), str(rank.of("submitted")[0].reason)
    assert (
        why.startswith("a snapshot slot of ")
        and why.endswith(" bytes: no space left")
        and submitted.deferred_bytes == 0
    )
    assert (
        rank.told
        == [
            "checkpoint.capture=deferred is not possible, checkpoints are captured by a copy:"
            f" {why}"
        ]
        and len(rank.of("committed")) == 1
    )


def test_state_that_comes_later_is_shared_too(rank_of: MakeRank) -> None:
    """A parameter gets its first gradient, and with it its optimizer state, after the first
    checkpoint.
    """
    run = Run()
    run.model.first.bias.requires_grad_(False)
    rank = rank_of(run)
    rank.ready()
    rank.save()
    run.model.first.bias.requires_grad_(True)
    run.train(2)
    rank.save()  # the layout is another: shared anew, and watched for a step
    run.train(1)
    digests = run.train_state.digests()
    rank.save()
    run.train(1)
    rank.strategy.flush()
    assert [bool(line.deferred_bytes) for line in rank.of("submitted")] == [True, False, True]
    assert rank.saved() == digests and rank.told == []


def test_state_that_goes_is_shared_no_more(rank_of: MakeRank) -> None:
    """The optimizer forgets what it keeps of a parameter that is trained no more."""
    rank = rank_of()
    rank.ready()
    rank.save()
    rank.run.model.first.bias.requires_grad_(False)
    rank.run.model.first.bias.grad = None
    del rank.run.optimizer.state[rank.run.model.first.bias]
    for _ in range(2):
        rank.run.train(1)
        digests = rank.run.train_state.digests()
        rank.save()
    rank.strategy.flush()
    assert [line.global_step for line in rank.of("committed")] == [
        2,
        3,
        4,
    ] and rank.saved() == digests
    assert [bool(line.deferred_bytes) for line in rank.of("submitted")] == [True, False, True]


def test_another_writer_is_given_the_same_memory(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    write_run_config(layout, DEFERRED)
    with writer_process(layout) as first:
        rank = Rank(tmp_path, first, Run())
        rank.ready()
        rank.save()
        rank.strategy.flush()
    rank.run.train(1)
    at = rank.run.model.last.weight.data_ptr()
    gone = rank.strategy._client
    assert gone is not None and comes_true(lambda: gone.gone)
    rank.save()  # finds no writer
    with writer_process(layout):
        rank.run.train(1)
        rank.save()
        digests = rank.run.train_state.digests()
        rank.run.train(1)
        rank.strategy.flush()
        assert rank.saved() == digests and rank.run.model.last.weight.data_ptr() == at
        rank.strategy.close()
    assert [bool(line.deferred_bytes) for line in rank.of("submitted")] == [True, False, True]


def test_tensors_keep_their_values_strides_flags_and_alignment() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(4, 4)).to(memory_format=torch.channels_last)
    model[1].bias.requires_grad_(False)
    model[1].weight.data = model[1].weight.data.t()
    tensors = {f"parameters.{name}": parameter for name, parameter in model.named_parameters()}
    before = {
        name: (tensor.detach().clone(), tensor.stride(), tensor.requires_grad, id(tensor))
        for name, tensor in tensors.items()
    }
    state = SharedState(tensors)
    for name, parameter in model.named_parameters():
        values, *same = before[f"parameters.{name}"]
        assert (
            torch.equal(parameter, values)
            and [parameter.stride(), parameter.requires_grad, id(parameter)] == same
        )
        assert parameter.is_leaf and parameter.data_ptr() % 64 == 0
    assert state.moved(tensors) == state.changed() == ""
    state.close()
    assert all(torch.equal(tensors[name], values[0]) for name, values in before.items()), (
        "the tensors outlive the sharing"
    )


def test_shared_memory_is_gone_with_the_last_tensor_in_it() -> None:
    before, tensor = open_files("/memfd:ecrl-"), torch.arange(8.0)
    for _ in range(2):  # moved on, the memory before is gone
        state = SharedState({"parameters.a": tensor})
        state.close()
        del state
        assert len(open_files("/memfd:ecrl-") - before) == 1 and tensor.sum() == 28
    del tensor
    assert open_files("/memfd:ecrl-") <= before


def test_what_is_refused_is_left_where_it_was() -> None:
    whole = torch.arange(12.0)
    tensors = {"parameters.a": torch.zeros(3), "parameters.b": whole[4:]}
    at = [tensor.data_ptr() for tensor in tensors.values()]
    with pytest.raises(NotShareable, match="b is a view of larger memory"):
        SharedState(tensors)
    with pytest.raises(NotShareable, match="are the same memory"):
        SharedState({"parameters.a": whole, "parameters.b": whole.detach()})
    with pytest.raises(NotShareable, match="b is on meta, only a state on the CPU"):
        SharedState(
            {"parameters.a": tensors["parameters.a"], "parameters.b": torch.zeros(3, device="meta")}
        )
    with pytest.raises(NotShareable, match="b overlaps itself or has gaps"):
        SharedState(
            {
                "parameters.a": tensors["parameters.a"],
                "parameters.b": torch.empty(2, 3).as_strided((2, 3), (1, 1)),
            }
        )
    assert [tensor.data_ptr() for tensor in tensors.values()] == at


def test_tensors_of_any_order_in_memory_are_copied_as_they_are_read() -> None:
    tensors = {
        "parameters.last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameters.turned": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        "parameters.one": torch.tensor(7, dtype=torch.int64),
    }
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    plan = plan_image({"all": [spec_of(name, tensor) for name, tensor in tensors.items()]})
    state = SharedState(tensors)
    seen, image = (
        LiveState(os.dup(state.memory.fd), state.memory.nbytes, state.places),
        memoryview(bytearray(plan.nbytes)),
    )
    assert seen.copy_into(image, plan.parts, 0)
    assert all(
        torch.equal(tensor_at(image, place), expected[place.spec.name]) for place in plan.tensors
    )
    seen.close()
    state.close()


def test_a_state_that_changes_while_it_is_copied_is_no_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = SharedState({"parameters.a": torch.arange(3.0), "parameters.b": torch.ones(2)})
    parts = plan_image(
        {
            "all": [
                TensorSpec("parameters.a", "torch.float32", (3,)),
                TensorSpec("parameters.b", "torch.float32", (2,)),
            ]
        }
    ).parts
    seen, image = (
        LiveState(os.dup(state.memory.fd), state.memory.nbytes, state.places),
        memoryview(bytearray(2 * BLOCK)),
    )
    assert seen.copy_into(image, parts, 0) and not seen.copy_into(image, parts, 1), (
        "the count is another from the beginning"
    )
    copied, copy = list[Any](), np.copyto

    def meanwhile(*given: Any) -> None:
        copy(*given)
        copied.append(given)
        state.changes.add()

    monkeypatch.setattr(np, "copyto", meanwhile)
    assert not seen.copy_into(image, parts, 0) and len(copied) == 2
    copied.clear()
    seen.close()
    state.close()


def test_the_writer_cannot_change_the_state() -> None:
    state = SharedState({"parameters.a": torch.zeros(3)})
    seen = LiveState(os.dup(state.memory.fd), state.memory.nbytes, state.places)
    with pytest.raises(TypeError):
        seen._map[0] = 1
    seen.close()
    state.close()


@pytest.mark.parametrize("mapped", [True, False])
def test_the_descriptor_of_the_state_is_closed_whether_it_could_be_mapped_or_not(
    mapped: bool,
) -> None:
    """A writer lives through many attempts, and each would leave it the memory of a rank that is
    gone.
    """
    state = SharedState({"parameters.a": torch.zeros(3)})
    fd = os.dup(state.memory.fd)
    if mapped:
        LiveState(fd, state.memory.nbytes, state.places).close()
    else:
        with pytest.raises(StorageError, match="cannot be mapped"):
            LiveState(fd, 2**40, state.places)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    state.close()
