"""States that cannot be captured or restored, and memory that does not suffice: each is refused by
name, and nothing is left of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture.shared_memory import Memory, SnapshotPair
from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout, CapturePlanner, StagingBuffer
from ecrl_cli.checkpoint.capture.tensor_sources import spec_of
from ecrl_cli.checkpoint.capture.train_state import pack_state, size_of, unpack_state
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.image import TensorSpec, plan_image
from ecrl_cli.checkpoint.format.train_document import NOWHERE
from ecrl_cli.errors import ConfigError, StorageError
from ecrl_cli.storage.writing import BLOCK
from tests.open_files import open_files
from tests.unit.test_checkpoint_train_state import Run

State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def state_of(run: Run) -> State:
    """What a checkpoint of `run` holds: tensors by name, and train.json."""
    gathered = run.train_state.gather(run.progress())
    tensors = {
        source.name: source.find().clone() for source in run.train_state.sources()
    } | gathered.rng
    return tensors, parse(run.train_state.train_document(run.progress(), gathered.line_chain))


@pytest.fixture
def run() -> Run:
    made = Run("sgd")
    made.train(1)
    return made


def without(name: str) -> Callable[[State], Any]:
    return lambda state: state[0].pop(name)


def replaced(name: str, tensor: torch.Tensor) -> Callable[[State], Any]:
    return lambda state: state[0].update({name: tensor})


def of_group(**changes: Any) -> Callable[[State], Any]:
    return lambda state: state[1]["optimizer"]["param_groups"][0].update(changes)


OTHERS: dict[str, tuple[Callable[[State], Any], str]] = {
    "a parameter less": (
        without("parameters.first.bias"),
        "another model (first difference: parameters.first.bias)",
    ),
    "a buffer more": (
        replaced("buffers.more", torch.zeros(1)),
        "another model (first difference: buffers.more)",
    ),
    "another shape": (
        replaced("parameters.first.bias", torch.zeros(9)),
        "another model (first difference: parameters.first.bias)",
    ),
    "another dtype": (
        replaced("parameters.first.bias", torch.zeros(8).double()),
        "another model (first difference: parameters.first.bias)",
    ),
    "state of a parameter that is not there": (
        replaced("optimizer.more.momentum_buffer", torch.zeros(1)),
        "another optimizer (first difference: optimizer.more.momentum_buffer)",
    ),
    "parameters in another order": (
        of_group(params=["last.weight"]),
        "another optimizer (first difference: param_groups)",
    ),
    "a hyperparameter more": (of_group(more=1), "another optimizer (first difference: more)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_state_of_another_run_is_refused_by_the_first_difference(run: Run, name: str) -> None:
    change, words = OTHERS[name]
    state = state_of(run)
    run.train_state.become(*state)
    change(state)
    with pytest.raises(ConfigError) as error:
        run.train_state.become(*state)
    assert words in str(error.value)


def test_state_that_is_neither_a_tensor_nor_json_is_refused(run: Run) -> None:
    run.optimizer.param_groups[0]["hook"] = object()
    for capture in (
        lambda: run.train_state.train_document(NOWHERE, []),
        lambda: run.train_state.rank_digests(NOWHERE),
    ):
        with pytest.raises(ConfigError, match="neither a tensor nor JSON"):
            capture()


def test_a_dtype_that_no_checkpoint_holds_is_refused() -> None:
    assert spec_of("x", torch.zeros(2, dtype=torch.bfloat16)) == TensorSpec(
        "x", "torch.bfloat16", (2,)
    )
    with pytest.raises(
        ConfigError, match=r"x has dtype torch\.complex128, which a checkpoint cannot hold"
    ):
        spec_of("x", torch.zeros(1, dtype=torch.complex128))


def test_the_settings_of_the_next_step_are_those_of_optimizer_and_scaler(run: Run) -> None:
    settings = run.train_state.step_settings()
    assert (settings.lr, settings.loss_scale, settings.growth_tracker) == (
        run.optimizer.param_groups[0]["lr"],
        2.0,
        1,
    )
    run.train_state.scaler = None
    assert (
        run.train_state.step_settings().loss_scale,
        run.train_state.step_settings().growth_tracker,
    ) == (None, None)


def test_a_state_travels_in_two_messages(run: Run) -> None:
    """A rank that has none takes it over, with its own generators."""
    header, data = pack_state(run.train_state, run.progress())
    assert size_of(header) == data.numel()
    other = Run("sgd", seed=8)
    progress = unpack_state(other.train_state, header, data)
    assert (progress.global_step, progress.line_chain) == (1, "")
    assert other.train_state.state_digest() == run.train_state.state_digest()


# Memory


def test_memory_that_cannot_be_had_is_an_error_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_files()
    pair = SnapshotPair.create()
    try:
        assert pair.make_room(0, 2 * BLOCK) == 2 * BLOCK

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageError, match=r"ENOMEM at a snapshot slot of 4096 bytes"):
            Memory.create(4096)
        assert pair.make_room(0, BLOCK) == 2 * BLOCK, "there is room already"
        with pytest.raises(
            StorageError, match=f"ENOMEM at a snapshot of {3 * BLOCK} bytes in memory"
        ):
            pair.make_room(0, 3 * BLOCK)
    finally:
        pair.close()
    assert open_files() <= before


def test_a_torch_file_that_outgrows_its_place_is_an_error() -> None:
    plan = plan_image({"all": [TensorSpec("parameters.w", "torch.float32", (4,))]})
    slot = StagingBuffer(
        Memory.create(plan.nbytes + BLOCK),
        BufferLayout(plan, ".pt", plan.nbytes + BLOCK),
        torch.device("cpu"),
    )
    slot.capture({"parameters.w": torch.ones(4)})
    assert 0 < slot.serialize(b"{}") <= BLOCK
    with pytest.raises(StorageError, match=f"outgrew its staging buffer of {BLOCK}"):
        slot.serialize(b" " * BLOCK)
    slot.close()


def test_the_layout_is_planned_again_where_a_tensor_has_another_shape(run: Run) -> None:
    """The optimizer's state has as many entries as before."""
    planner, gathered = CapturePlanner(run.train_state, ""), run.train_state.gather(NOWHERE)
    before = planner.refresh(gathered)
    assert planner.refresh(gathered) is before
    run.model.norm.running_mean = torch.zeros(80)
    after = planner.refresh(gathered)
    assert after.plan.nbytes >= before.plan.nbytes and after is not before
    assert {place.spec.name: place.spec.shape for place in after.plan.tensors}[
        "buffers.norm.running_mean"
    ] == (80,)
    assert planner.found["buffers.norm.running_mean"].shape == (80,)


@pytest.mark.parametrize(
    ("step", "suffix", "name"),
    [
        (6, "", "model.safetensors"),
        (6, ".safetensors", "step_00000006.safetensors"),
        (6, ".pt", "step_00000006.pt"),
    ],
)
def test_the_files_of_a_snapshot_are_named_after_its_step(
    run: Run, step: int, suffix: str, name: str
) -> None:
    layout = CapturePlanner(run.train_state, suffix).refresh(run.train_state.gather(NOWHERE))
    parts = layout.parts(6, 4711)
    assert parts[0].name == name and len(parts) == (1 if suffix else 3)
    assert (parts[0].offset, parts[0].nbytes) == (
        (layout.plan.nbytes, 4711) if suffix == ".pt" else (0, layout.plan.parts[0].nbytes)
    )


def test_what_is_restored_lacks_nothing(run: Run) -> None:
    tensors, train = state_of(run)
    for name in ("scheduler", "sampler", "line_chain", "global_step"):
        with pytest.raises(KeyError, match=name):
            run.train_state.become(
                tensors, {key: value for key, value in train.items() if key != name}
            )


def test_a_staging_buffer_has_room_for_the_torch_file_and_for_nothing_else(run: Run) -> None:
    gathered = run.train_state.gather(NOWHERE)
    for suffix, extra in (("", 0), (".safetensors", 0), (".pt", 2**20)):
        planner = CapturePlanner(run.train_state, suffix)
        layout = planner.refresh(gathered)
        assert (
            extra <= layout.nbytes - layout.plan.nbytes < extra + 2**18
            and layout.nbytes % BLOCK == 0
        )
    slot = StagingBuffer(Memory.create(layout.nbytes), layout, torch.device("cpu"))
    slot.capture(planner.found)
    assert slot.serialize(b"{}") <= layout.nbytes - layout.plan.nbytes
    slot.close()


def test_looking_for_the_state_of_an_optimizer_that_has_none_makes_none() -> None:
    """Its state is a dictionary that makes what is asked for: the first step would find it
    there.
    """
    fresh = Run("adamw")
    names = [source.name for source in fresh.train_state.sources()]
    assert not fresh.optimizer.state and not any(name.startswith("optimizer.") for name in names)
    assert fresh.train_state.signature() == (0, 0)
    fresh.train(1)
    assert "optimizer.first.weight.exp_avg" in [
        source.name for source in fresh.train_state.sources()
    ]


def test_a_lone_rank_has_its_own_state_alone(run: Run) -> None:
    (state,) = run.train_state.rank_states(run.progress())
    assert state == run.train_state.rank_digests(run.progress()).rank and state.rank == 0
