"""Deferred capture of a state on a GPU, without one: streams and events are stand-ins, all else is
real. On a GPU: e2e/test_gpu.py.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.strategies import deferral_gpu
from ecrl_cli.checkpoint.strategies.deferral import UNWATCHED
from ecrl_cli.checkpoint.strategies.deferral_gpu import (
    CHANGED,
    GpuDeferral,
    GpuWriterClient,
    PinnedBuffer,
)
from ecrl_cli.checkpoint.strategies.overlapped import OverlappedStrategy
from ecrl_cli.checkpoint.writer.client import WriterClient
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from tests.conftest import comes_true
from tests.unit.checkpoint_support import writer_process
from tests.unit.test_checkpoint_deferred import (
    DEFERRED,
    KINDS,
    Rank,
    replaced,
    views_of_one,
    written_outside,
)
from tests.unit.test_checkpoint_train_state import OPTIMIZERS, Run, lines


class Event:
    """Has come, once `gate` is open."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def synchronize(self) -> None:
        assert self._gate.wait(60)


class Stream:
    """Copies at once. What waits for it is on record in `waited`."""

    def __init__(self) -> None:
        self.waited: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)

    def record_event(self) -> Event:
        return Event(self.gate)


class GpuRank(Rank):
    """A run whose state counts as one on a GPU, with the real writer."""

    def __init__(
        self, root: Path, writer: subprocess.Popen[bytes], run: Run, patch: pytest.MonkeyPatch
    ) -> None:
        self.copying, self.training = Stream(), Stream()
        patch.setattr(torch.cuda, "current_stream", lambda device=None: self.training)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch.cuda, "device", lambda device: nullcontext())
        patch.setattr(
            deferral_gpu,
            "_on_gpu",
            lambda tensors: {
                n: t for n, t in tensors.items() if t.numel() and not n.startswith("rng.")
            },
        )
        pin = PinnedBuffer.__init__

        def pinned(buffer: PinnedBuffer, *given: Any) -> None:
            pin(buffer, *given)
            buffer._stream = self.copying

        patch.setattr(PinnedBuffer, "__init__", pinned)
        patch.setattr(PinnedBuffer, "close", lambda buffer: None)

        def new_client(strategy: OverlappedStrategy, layout: BufferLayout) -> WriterClient:
            return deferral_gpu.gpu_client(
                strategy._context.layout, layout, torch.device("cpu"), strategy._context.log
            )

        patch.setattr(OverlappedStrategy, "_new_client", new_client)
        super().__init__(root, writer, run)
        context = self.strategy._context
        self.strategy._deferral = GpuDeferral(
            run.optimizer, context.clock, context.log, context.beat, context.tell
        )


MakeRank = Callable[..., GpuRank]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    layout = RunLayout(tmp_path)
    write_run_config(layout, DEFERRED)
    with writer_process(layout) as process:
        yield process


@pytest.fixture
def rank_of(
    tmp_path: Path, writer: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeRank]:
    made: list[GpuRank] = []

    def make(run: Run | None = None) -> GpuRank:
        made.append(GpuRank(tmp_path, writer, run or Run(), monkeypatch))
        return made[-1]

    yield make
    for rank in made:
        rank.strategy.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_while_training_goes_on_is_the_state_of_its_step(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(OPTIMIZERS, kind, KINDS[kind])
    undisturbed = Run(kind)
    expected = undisturbed.train(7)
    rank = rank_of(Run(kind))
    rank.ready()
    digests = rank.run.train_state.digests()
    rank.save()
    assert rank.run.train(5) == expected[2:]
    rank.strategy.flush()
    assert rank.saved() == digests and rank.told == []
    (submitted,) = rank.of("submitted")
    assert submitted.reason is None and 0 < submitted.deferred_bytes < submitted.bytes


def test_the_copy_waits_for_the_step_the_next_step_for_the_buffers_and_the_update_for_all(
    rank_of: MakeRank,
) -> None:
    rank = rank_of()
    rank.ready()
    rank.save()
    assert rank.copying.waited[0] is rank.training
    (buffers,) = rank.training.waited
    seen: list[int] = []
    # after the deferral's own
    rank.run.optimizer.register_step_pre_hook(lambda *given: seen.append(len(rank.training.waited)))
    rank.run.train(1)
    assert seen == [2] and rank.training.waited[1] is not buffers


def test_the_image_is_handed_over_when_the_gpu_has_copied_it(rank_of: MakeRank) -> None:
    """Until then the writer has nothing, and training goes on."""
    rank = rank_of()
    rank.ready()
    rank.copying.gate.clear()
    digests = rank.run.train_state.digests()
    rank.save()
    rank.run.train(3)
    assert [line.event for line in lines(rank.root)] == ["submitted", "released"]
    rank.copying.gate.set()
    rank.strategy.flush()
    assert [line.event for line in lines(rank.root)] == [
        "submitted",
        "released",
        "received",
        "committed",
    ] and rank.saved() == digests


def test_what_is_saved_where_no_update_follows_is_whole(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.ready()
    digests = rank.run.train_state.digests()
    rank.save()
    rank.strategy.flush()
    assert rank.saved() == digests and len(rank.of("committed")) == 1


def test_a_rank_that_leaves_its_attempt_hands_over_what_it_has_copied(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.ready()
    digests = rank.run.train_state.digests()
    rank.save()
    rank.strategy.close()
    assert (
        not rank.run.optimizer._optimizer_step_pre_hooks
        and not rank.run.optimizer._optimizer_step_post_hooks
    )
    assert comes_true(lambda: bool(rank.of("committed"))) and rank.saved() == digests


def test_many_checkpoints_in_a_row_are_all_whole(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.ready()
    steps = []
    for _ in range(6):
        steps.append(rank.run.global_step)
        digests = rank.run.train_state.digests()
        rank.save()
        rank.run.train(1)
    rank.strategy.flush()
    assert [line.global_step for line in rank.of("committed")] == steps and rank.saved() == digests


def moved(run: Run) -> None:
    """As a wrapper that puts a parameter elsewhere."""
    run.model.last.bias.data = run.model.last.bias.data.clone()


@pytest.mark.parametrize("change", [written_outside, moved])
def test_what_is_changed_in_forward_is_refused_and_what_follows_is_copied(
    rank_of: MakeRank, change: Callable[[Run], None]
) -> None:
    rank = rank_of()
    rank.ready()
    hook = rank.run.model.register_forward_pre_hook(lambda *given: change(rank.run))
    rank.save()
    rank.run.train(1)
    hook.remove()
    digests = rank.run.train_state.digests()
    rank.save()
    rank.strategy.flush()
    (failed,) = rank.of("failed")
    assert failed.global_step == 2 and f"step 2: {CHANGED.format('parameters.last.bias')}" in str(
        failed.reason
    )
    assert [line.global_step for line in rank.of("committed")] == [3] and rank.saved() == digests
    assert [bool(line.reason) for line in rank.of("submitted")] == [False, True] and len(
        rank.told
    ) == 1


def test_a_refused_image_gives_its_buffer_back(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.ready()
    client: Any = rank.strategy._client
    buffers = rank.strategy._max_inflight
    assert comes_true(lambda: len(client._free) == buffers)
    for number in range(buffers):
        taken, slot = client.take()
        found = {
            name: tensor
            for name, tensor in rank.strategy._context.snapshotter.found.items()
            if name in slot._views
        }
        client.copy_next({}, found, {name: tensor.data_ptr() for name, tensor in found.items()})
        parts = slot.layout.parts(number, 0)
        client.submit(
            taken,
            CheckpointImage(
                rank.strategy._context.stamp(rank.run.progress()), slot.memory.view, parts, {}
            ),
            0,
        )
        client.confirm("parameters.last.bias")
    client.collect()
    assert len(client._free) == buffers and len(rank.of("failed")) == buffers


def test_an_update_outside_of_the_optimizer_before_a_capture_makes_copies(
    rank_of: MakeRank,
) -> None:
    rank = rank_of()
    rank.ready()
    written_outside(rank.run)
    digests = rank.run.train_state.digests()
    rank.save()
    rank.strategy.flush()
    assert rank.saved() == digests
    assert [str(line.reason) for line in rank.of("submitted")] == [
        "parameters.last.bias was changed outside of the optimizer's step"
    ]


def test_an_optimizer_that_makes_new_state_is_followed(rank_of: MakeRank) -> None:
    """Nothing is shared with another process that would have to know where it lies."""
    rank = rank_of()
    rank.ready()
    replaced(rank.run)
    digests = rank.run.train_state.digests()
    rank.save()
    rank.run.train(2)
    rank.strategy.flush()
    assert rank.saved() == digests and rank.told == []


def test_before_a_step_has_been_watched_captures_are_copies(rank_of: MakeRank) -> None:
    rank = rank_of()
    rank.run.train(1)
    rank.strategy.prepare()
    rank.save()
    rank.run.train(1)
    rank.save()
    rank.run.train(1)
    rank.strategy.flush()
    assert [(line.reason, bool(line.deferred_bytes)) for line in rank.of("submitted")] == [
        (UNWATCHED, False),
        (None, True),
    ]


def test_a_writer_that_has_ended_fails_the_checkpoint_of_its_step(
    rank_of: MakeRank, writer: subprocess.Popen[bytes]
) -> None:
    rank = rank_of()
    rank.ready()
    rank.copying.gate.clear()
    rank.save()
    writer.kill()
    writer.wait()
    client = rank.strategy._client
    assert isinstance(client, GpuWriterClient) and comes_true(lambda: client.gone)
    rank.run.train(1)
    rank.copying.gate.set()
    rank.strategy.flush()
    (failed,) = rank.of("failed")
    assert failed.global_step == 2 and "the background writer has ended" in str(failed.reason)


def test_what_torch_does_not_count_is_seen_by_the_digest_that_the_rank_logged(
    rank_of: MakeRank,
) -> None:
    rank = rank_of()
    rank.ready()
    digest = rank.run.train_state.state_digest()
    # before the copy, after the digest: as a write that overtakes the copy
    rank.run.model.last.bias.data.mul_(0.5)
    rank.save(digest)
    rank.run.train(1)
    rank.strategy.flush()
    assert rank.of("committed") == [] and [
        "step 2 would be saved as" in str(line.reason) for line in rank.of("failed")
    ] == [True]


def test_a_parameter_that_lies_elsewhere_while_it_is_copied_is_refused(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As weights that are swapped in forward and swapped back: no count and no address says so
    afterwards.
    """
    rank = rank_of()
    rank.ready()
    begin, bias = PinnedBuffer.copy_later, rank.run.model.last.bias

    def swapped(buffer: PinnedBuffer, tensors: dict[str, torch.Tensor]) -> Any:
        own = bias.data
        bias.data = own.clone()
        try:
            return begin(buffer, tensors)
        finally:
            bias.data = own

    monkeypatch.setattr(PinnedBuffer, "copy_later", swapped)
    rank.save()
    rank.run.train(1)
    rank.strategy.flush()
    (failed,) = rank.of("failed")
    assert rank.of("committed") == [] and CHANGED.format("parameters.last.bias") in str(
        failed.reason
    )


def test_a_copy_that_cannot_be_begun_fails_that_checkpoint_alone(
    rank_of: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = rank_of()
    rank.ready()
    begin = PinnedBuffer.copy_later

    def fail(buffer: PinnedBuffer, tensors: dict[str, torch.Tensor]) -> Any:
        if any(name.startswith("parameters.") for name in tensors):
            raise RuntimeError("out of memory")
        return begin(buffer, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(PinnedBuffer, "copy_later", fail)
        rank.save()
        rank.run.train(1)
    digests = rank.run.train_state.digests()
    rank.save()
    rank.run.train(1)
    rank.strategy.flush()
    (failed,) = rank.of("failed")
    assert (
        failed.global_step == 2
        and "the GPU's copy could not be begun (RuntimeError: out of memory)" in str(failed.reason)
    )
    assert [line.global_step for line in rank.of("committed")] == [3] and rank.saved() == digests


def test_views_of_larger_memory_are_copied(rank_of: MakeRank) -> None:
    """What is written to the larger memory is not counted for its views."""
    rank = rank_of()
    views_of_one(rank.run)
    rank.ready()
    rank.save()
    rank.strategy.flush()
    assert ["is a view of larger memory" in str(line.reason) for line in rank.of("submitted")] == [
        True
    ] and len(rank.told) == 1
