"""What is asked of this machine, without torch."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config import machine
from ecrl_cli.config.estimates import human_bytes, human_seconds, snapshot_bytes
from ecrl_cli.config.schema import CheckpointConfig, ModelConfig, RunConfig
from ecrl_cli.errors import ConfigError


@pytest.mark.parametrize(
    ("chosen", "seen"), [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("0,1,2", 2)]
)
def test_gpus_are_counted_as_a_process_would_see_them(
    chosen: str | None, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert machine.visible_gpus(tmp_path) == seen


def test_a_processor_build_of_torch_has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: 8)
    monkeypatch.setattr(machine, "_torch_build", lambda: "2.15.0+cpu")
    with pytest.raises(ConfigError, match=r"CUDA is not available \(torch 2.15.0\+cpu"):
        machine.check_machine(replace(RunConfig(), device="cuda"))


@pytest.mark.parametrize(
    ("allowed", "most", "left"),
    [
        (96, 96, 96),
        (20, 4096, 96),
        (20, resource.RLIM_INFINITY, 96),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_open_files_are_allowed_as_far_as_the_machine_does(
    allowed: int, most: int, left: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [(allowed, most)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: now.append(limits))
    machine.check_machine(RunConfig())
    assert now[-1] == (allowed if left is None else left, most)


def test_too_few_open_files_are_refused_before_anything_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run at `ulimit -n 16` hung for the five minutes in which torch's store tries to connect."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, 95))
    with pytest.raises(
        ConfigError,
        match=r"open files: at most 95 allowed, 2 ranks may need 96; raise the limit: ulimit -n 96",
    ):
        machine.check_machine(RunConfig())


def test_snapshots_that_are_kept_must_fit_beside_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(
        RunConfig(),
        model=ModelConfig(name="resnet18", width=64),
        checkpoint=CheckpointConfig(strategy="in_memory", max_inflight=4),
    )
    monkeypatch.setattr(machine, "available_memory", lambda: 6 * snapshot_bytes(config))
    machine.check_machine(config)
    monkeypatch.setattr(machine, "available_memory", lambda: 6 * snapshot_bytes(config) - 1)
    with pytest.raises(
        ConfigError,
        match=r"6 x 89\.6 MB \(2 of them kept for recovery\) would need 538 MB of memory",
    ):
        machine.check_machine(config)


def test_a_state_that_is_shared_with_the_writer_must_fit_beside_the_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = CheckpointConfig(strategy="overlapped", max_inflight=4, capture="deferred")
    config = replace(
        RunConfig(), model=ModelConfig(name="resnet18", width=64), checkpoint=checkpoint
    )
    monkeypatch.setattr(machine, "available_memory", lambda: 5 * snapshot_bytes(config))
    machine.check_machine(config)
    monkeypatch.setattr(machine, "available_memory", lambda: 5 * snapshot_bytes(config) - 1)
    with pytest.raises(
        ConfigError,
        match=r"5 x 89\.6 MB \(one of them the state that is shared with the writer\) would need",
    ):
        machine.check_machine(config)


@pytest.mark.parametrize(("strategy", "refused"), [("overlapped", True), ("blocking", False)])
def test_slots_must_fit_into_memory(
    strategy: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(
        RunConfig(),
        model=ModelConfig(name="resnet18", width=64),
        checkpoint=CheckpointConfig(strategy=strategy, max_inflight=4),
    )
    monkeypatch.setattr(machine, "available_memory", lambda: 4 * snapshot_bytes(config))
    machine.check_machine(config)
    monkeypatch.setattr(machine, "available_memory", lambda: 4 * snapshot_bytes(config) - 1)
    if refused:
        with pytest.raises(ConfigError, match=r"4 x 89\.6 MB would need 358 MB of memory"):
            machine.check_machine(config)
    else:
        machine.check_machine(config)


def test_sizes_and_times_are_said_as_people_say_them() -> None:
    assert [human_bytes(n) for n in (12, 45_000_000, 3e12)] == ["12 bytes", "45 MB", "3 TB"]
    assert [human_seconds(n) for n in (0.2, 89, 90, 6000)] == ["1 s", "89 s", "1.5 min", "1.7 h"]


def test_ranks_share_a_gpu_only_over_gloo_and_only_when_asked_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: 1)
    monkeypatch.setattr(machine, "_torch_build", lambda: "2.15.0")
    config = replace(RunConfig(), device="cuda", world_size=4)
    machine.check_machine(replace(config, backend="gloo"))
    for backend in ("auto", "nccl"):
        with pytest.raises(ConfigError, match="4 ranks asked, 1 CUDA device visible"):
            machine.check_machine(replace(config, backend=backend))
    with pytest.raises(ConfigError, match="nccl needs CUDA"):
        machine.check_machine(replace(RunConfig(), device="cpu", backend="nccl"))
