"""What every strategy with another checkpointer keeps: its steps say what they are, a damaged one
is refused or put on record, nothing is claimed that only ECRL's own store has.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception

from ecrl_cli.checkpoint.capture.tensor_sources import dtype_of
from ecrl_cli.checkpoint.checkpointers import dcp
from ecrl_cli.checkpoint.checkpointers.checkpointer import State
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.names import STEP_METADATA
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.step_metadata import read_step_metadata, size_of, written
from ecrl_cli.checkpoint.strategies.foreign import Unreadable, restore_foreign
from ecrl_cli.checkpoint.strategies.strategy import Strategy, StrategyInputs, make_strategy
from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.config.machine import check_machine
from ecrl_cli.config.schema import (
    CheckpointConfig,
    RecoveryConfig,
    RunConfig,
    StorageConfig,
    SupervisionConfig,
    WriteModeConfig,
)
from ecrl_cli.config.strategies import FOREIGN, StrategyKind
from ecrl_cli.errors import ConfigError, EcrlError, StorageError
from ecrl_cli.failures.plan import plan
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import ResumedFrom
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.training.restoring import restore
from tests.contract.variants import refused
from tests.needs import require
from tests.unit.checkpoint_support import flip
from tests.unit.test_checkpoint_train_state import Run, lines

# here it is; async_save says so in its thread
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
NAMES = [kind.name for kind in FOREIGN]
KINDS = {kind.name: kind for kind in FOREIGN}
SILENT = "torchsnapshot"  # version 0.1.0 does not wait for what its readers raise


@pytest.fixture(params=NAMES)
def kind(request: pytest.FixtureRequest) -> StrategyKind:
    found = KINDS[request.param]
    require(*checkpointer_of(found).modules)
    return found


def checkpointer_of(kind: StrategyKind) -> CheckpointerKind:
    assert kind.checkpointer is not None
    return kind.checkpointer


def config_of(kind: StrategyKind, **changes: object) -> RunConfig:
    return RunConfig(checkpoint=replace(CheckpointConfig(strategy=kind.name), **changes))  # type: ignore[arg-type]


@pytest.fixture
def run() -> Run:
    made = Run()
    made.train(1)
    return made


@pytest.fixture
def strategy(kind: StrategyKind, run: Run, tmp_path: Path) -> Iterator[Strategy]:
    made = prepared(kind, run, tmp_path)
    yield made
    made.close()


def prepared(kind: StrategyKind, run: Run, folder: Path) -> Strategy:
    clock = SpanClock(Journal(RunLayout(folder).attempt(0).spans(0)), 0, monotonic(), "compute")
    made = make_strategy(
        StrategyInputs(config_of(kind), run.train_state, RunLayout(folder), 0, clock)
    )
    made.prepare()
    return made


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By the name of a strategy, a run directory with a step that it saved: once, because a
    checkpointer may start a process that imports torch.
    """

    @cache
    def made(name: str) -> Path:
        folder, run = tmp_path_factory.mktemp(name), Run()
        run.train(1)
        strategy = prepared(KINDS[name], run, folder)
        strategy.save(run.progress())
        strategy.flush()
        strategy.close()
        return folder

    return made


@pytest.fixture
def step(saved: Callable[[str], Path], kind: StrategyKind, run: Run, tmp_path: Path) -> Path:
    """The folder of a step that was saved."""
    shutil.copytree(saved(kind.name), tmp_path, dirs_exist_ok=True)
    return RunLayout(tmp_path).checkpoints / f"step_{run.global_step:08d}"


def examined(kind: StrategyKind, step: Path, run_id: str = "") -> IntegrityReport:
    return verify_checkpoint(step, IntegrityConfig(checkpointer=kind.checkpointer, run_id=run_id))


def largest(kind: StrategyKind, step: Path) -> Path:
    """The largest file with tensors."""
    with_tensors = (
        path
        for path in written(step)
        if path != step / checkpointer_of(kind).committed or path.suffix == ".pt"
    )
    return max(with_tensors, key=lambda path: path.stat().st_size)


def test_a_step_says_what_it_is_and_is_complete_by_its_last_file(
    kind: StrategyKind, step: Path, run: Run, tmp_path: Path
) -> None:
    """Every way in which it can lack something, one after the other; each is refused at its
    layer.
    """
    found, page = examined(kind, step), step / STEP_METADATA
    events = [
        line.event for line in lines(tmp_path) if line.global_step == run.progress().global_step
    ]
    assert events[:2] == ["submitted", "received"] and "committed" in events
    line = next(line for line in lines(tmp_path) if line.event == "committed")
    assert found.ok and (found.global_step, found.attempt, found.commit_sha256) == (
        run.global_step,
        0,
        line.commit_sha256,
    )
    assert line.bytes == size_of(step) == sum(path.stat().st_size for path in written(step)) > 0
    refusal = examined(kind, step, "another run")
    assert (refusal.layer, refusal.reason) == (
        "commit",
        f"belongs to run {(found.run_id or '')[:8]}",
    )
    other = step.rename(step.with_name("step_00000099"))
    assert examined(kind, other).layer == "parts"
    step = other.rename(step)
    whole = page.read_bytes()
    changed = [
        {"train": {}},
        {"schema_version": 9},
        {"tensors": [["a", "torch.float32", 5]]},
        {"tensors": [[["a"], "torch.float32", [5]]]},
    ]
    for spoilt in (
        b"",
        b"{}",
        whole[:-1],
        *(canonical_json({**parse(whole), **change}) for change in changed),
    ):
        page.write_bytes(spoilt)
        assert examined(kind, step).layer == "commit"
    page.write_bytes(canonical_json({**parse(whole), "checkpointer": "another"}))
    assert examined(kind, step).layer == "parts"
    page.write_bytes(whole)
    committed = step / checkpointer_of(kind).committed
    committed.rename(step / "aside")
    report = examined(kind, step)
    assert not report.ok and report.layer == "parts" and "ENOENT" in report.reason


def test_what_is_cut_off_cannot_be_loaded_and_that_is_one_line(
    kind: StrategyKind, step: Path, run: Run
) -> None:
    sha256 = examined(kind, step).commit_sha256 or ""
    other, data = Run(seed=99), largest(kind, step)
    with pytest.raises(Unreadable, match="not 00000000"):
        restore_foreign(other.train_state, checkpointer_of(kind), step, "0" * 64)
    flip(data, data.stat().st_size // 2)
    report = examined(kind, step)
    # the check knows nothing of another format, and must not say that it does
    assert report.ok and report.manifest is None
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 3])
    if kind.name == SILENT:
        like = {
            spec.name: torch.empty(spec.shape, dtype=dtype_of(spec))
            for spec in read_step_metadata(PosixFs(), step).tensors
        }
        loaded = checkpointer_of(kind).load()().load(like, step / checkpointer_of(kind).state)
        # `state-restored` finds it after the restore
        assert not any(
            torch.count_nonzero(loaded[name]) for name in like if name.startswith("rng.")
        )
        return
    with pytest.raises(Unreadable) as error:
        restore_foreign(other.train_state, checkpointer_of(kind), step, sha256)
    assert (
        "\n" not in error.value.line()
        and step.name in error.value.fact
        and checkpointer_of(kind).name in error.value.fact
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error"
            " [127.0.0.1]:41099: Connection reset by peer"
        ),
        torch.distributed.DistNetworkError("The client socket has failed to connect"),
        ConnectionResetError(104, "Connection reset by peer"),
        OSError(24, "Too many open files"),
        StorageError.of("open", "state.pt", OSError(24, "Too many open files")),
        CheckpointException("load", {1: _wrap_exception(OSError(24, "Too many open files"))}),
    ],
    ids=[
        "gloo",
        "network",
        "connection",
        "descriptors",
        "descriptors-of-ours",
        "descriptors-of-a-rank-of-dcp",
    ],
)
def test_a_peer_that_dies_while_all_load_does_not_condemn_the_checkpoint(
    step: Path, kind: StrategyKind, run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nor does what this process lacks: the next attempt is to try the same checkpoint again."""

    def fails(*given: object) -> State:
        raise error

    monkeypatch.setattr(checkpointer_of(kind).load(), "load", fails)
    with pytest.raises(EcrlError, match="tries it again") as raised:
        restore_foreign(
            run.train_state, checkpointer_of(kind), step, examined(kind, step).commit_sha256 or ""
        )
    assert (
        not isinstance(raised.value, Unreadable)
        and raised.value.exit_code == 1
        and step.name in raised.value.fact
    )


def test_what_cannot_be_loaded_is_on_record_behind_a_power_loss_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next launch reads it: a file without its bytes would have to be restored by hand."""
    synced: list[str] = []
    monkeypatch.setattr(
        "ecrl_cli.storage.files.sync",
        lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name),
    )
    layout = RunLayout(tmp_path)
    layout.attempt(1).folder.mkdir(parents=True)
    order = AttemptSpec(1, 1, 4, ResumedFrom("checkpoints/step_00000004", "0" * 64), 4, ())
    config = RunConfig(checkpoint=CheckpointConfig(strategy="torch_save"))
    with pytest.raises(Unreadable):
        restore(cast("Any", SimpleNamespace(rank=0)), config, layout, order, None)
    assert layout.attempt(1).with_unloadable() == [0] and [
        name for name in synced if "unloadable_rank0" in name
    ]


def test_a_save_that_fails_is_on_record_and_leaves_nothing(
    kind: StrategyKind, strategy: Strategy, run: Run, tmp_path: Path
) -> None:
    """The disk is full, or whatever else the checkpointer raises."""

    class Full:
        def save(self, state: State, path: Path) -> None:
            path.parent.joinpath("half").write_bytes(b"half")
            raise OSError(28, "No space left on device", str(path))

        begin = save

        def close(self) -> None: ...

    strategy._checkpointer.close()  # type: ignore[attr-defined]
    strategy._checkpointer = Full()  # type: ignore[attr-defined]
    strategy.save(run.progress())
    strategy.flush()
    ended = [line for line in lines(tmp_path) if line.event in ("committed", "failed")]
    assert (
        [line.event for line in ended] == ["failed"]
        and "ENOSPC" in (ended[0].reason or "")
        and str(tmp_path) not in (ended[0].reason or "")
    )
    assert [
        path.name
        for path in RunLayout(tmp_path).checkpoints.iterdir()
        if not path.name.startswith(".attempt")
    ] == []


def test_a_step_that_is_there_is_not_overwritten(
    kind: StrategyKind, step: Path, strategy: Strategy, run: Run, tmp_path: Path
) -> None:
    before = (step / STEP_METADATA).read_bytes()
    strategy.save(run.progress())
    strategy.flush()
    assert [line.event for line in lines(tmp_path) if line.event in ("committed", "failed")] == [
        "committed",
        "failed",
    ]
    assert (step / STEP_METADATA).read_bytes() == before and examined(kind, step).ok


@pytest.mark.parametrize("name", NAMES)
def test_what_only_our_store_has_is_refused_in_one_line(name: str) -> None:
    kind = KINDS[name]
    base = config_of(kind)
    assert refused(kind, base) == ""
    wrong = {
        "write_mode": replace(
            base,
            write_mode=WriteModeConfig(
                "unsafe", sync_files=False, atomic=False, sync_directories=False
            ),
        ),
        "checkpoint.layout": config_of(kind, layout="single"),
        "checkpoint.format": config_of(kind, format="torch"),
        "checkpoint.finite": config_of(kind, finite="off"),
        "checkpoint.hmac_key_file": config_of(kind, hmac_key_file="key"),
        "storage.bytes_per_s": replace(
            base, storage=StorageConfig(name="throttled", bytes_per_s=1e6)
        ),
        "recovery": replace(base, supervision=SupervisionConfig(spares=1)),
    }
    for key, config in wrong.items():
        assert f" {key}:" in refused(kind, config)
    assert " recovery:" in refused(
        kind, replace(base, recovery=RecoveryConfig("immediate_rollback"))
    )


@pytest.mark.parametrize("failure", ["enospc", "eio", "slow_disk", "writer"])
def test_a_failure_inside_our_store_cannot_be_planned(failure: str) -> None:
    config = config_of(KINDS["dcp"], every=4)
    with pytest.raises(ConfigError, match="checkpoint=dcp writes by itself"):
        plan(
            replace(
                config, target_steps=24, failure=replace(config.failure, kind=failure, steps=(9,))
            )
        )


@pytest.mark.parametrize("name", [name for name in NAMES if checkpointer_of(KINDS[name]).modules])
def test_a_package_that_is_not_installed_is_said_before_the_launch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecrl_cli.linux.prerequisites.find_spec", lambda module: None)
    with pytest.raises(ConfigError) as error:
        check_machine(config_of(KINDS[name]))
    assert (
        f"{checkpointer_of(KINDS[name]).modules[0]} is not installed" in error.value.line()
        and "pip install" in error.value.line()
    )


def test_a_checkpoint_is_retired_with_its_folders(
    kind: StrategyKind, strategy: Strategy, run: Run, tmp_path: Path
) -> None:
    for _ in range(5):
        run.train(1)
        strategy.save(run.progress())
    strategy.flush()
    there = sorted(
        path.name
        for path in RunLayout(tmp_path).checkpoints.iterdir()
        if path.name.startswith("step_")
    )
    assert there == [f"step_{step:08d}" for step in (4, 5, 6)]
    assert [line.global_step for line in lines(tmp_path) if line.event == "retired"] == [2, 3]


def test_only_rank_0_gives_its_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running statistics differ between ranks until the next step begins with rank 0's; of what
    several ranks give, any may be written.
    """
    state = {
        "parameters.a": torch.zeros(1),
        "buffers.a": torch.zeros(1),
        "optimizer.a.b": torch.zeros(1),
        "rng.rank0.torch": torch.zeros(1),
    }
    monkeypatch.setattr(dcp.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dcp.dist, "get_rank", lambda: 0)
    assert dcp.own(state) == state
    monkeypatch.setattr(dcp.dist, "get_rank", lambda: 1)
    assert dcp.own(state).keys() == state.keys() - {"buffers.a"}
    given: list[State] = []
    for name in ("save_distributed", "save_beside"):
        monkeypatch.setattr(dcp, name, lambda state, **_: given.append(state) or Future())
    dcp.DistributedCheckpoint().save(state, tmp_path)
    dcp.AsyncDistributedCheckpoint().begin(state, tmp_path)
    assert [each.keys() for each in given] == [state.keys() - {"buffers.a"}] * 2


def module_of(name: str) -> Any:
    """What works with that package."""
    require(*checkpointer_of(KINDS[name]).modules)
    return importlib.import_module(f"ecrl_cli.checkpoint.checkpointers.{name}")


@pytest.fixture
def torchsnapshot() -> Any:
    return module_of("torchsnapshot")


@pytest.fixture
def torch_checkpointing() -> Any:
    return module_of("torch_checkpointing")


def test_every_rank_gives_torchsnapshot_the_buffers_of_rank_0(
    torchsnapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the rank's own stay what they were."""
    state = {
        "parameters.a": torch.ones(1),
        "buffers.a": torch.ones(2),
        "buffers.b": torch.ones(1),
        "rng.rank0.torch": torch.ones(1),
    }
    sources: list[int] = []

    def broadcast(tensor: torch.Tensor, src: int) -> None:
        sources.append(src)
        tensor.fill_(7.0)

    monkeypatch.setattr(torchsnapshot.dist, "broadcast", broadcast)
    for initialized, ranks, asked in ((False, 2, 0), (True, 1, 0), (True, 2, 2)):
        sources.clear()
        monkeypatch.setattr(
            torchsnapshot.dist, "is_initialized", lambda initialized=initialized: initialized
        )
        monkeypatch.setattr(torchsnapshot.dist, "get_world_size", lambda ranks=ranks: ranks)
        given = torchsnapshot.alike(state)
        assert sources == [0] * asked and given.keys() == state.keys()
        assert {name: float(tensor[0]) for name, tensor in given.items()} == {
            name: 7.0 if asked and name.startswith("buffers.") else 1.0 for name in state
        }
    assert all(bool((tensor == 1.0).all()) for tensor in state.values())


def test_torchsnapshot_gives_back_what_it_cannot_write_as_it_is(
    torchsnapshot: Any, tmp_path: Path
) -> None:
    """Tensors without elements, and bfloat16: bit for bit."""
    half = torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16)
    state = {
        "parameters.a": torch.arange(3.0),
        "parameters.b": half,
        "buffers.c": torch.zeros((0, 3), dtype=torch.int64),
    }
    made = torchsnapshot.TorchSnapshot()
    made.save(state, tmp_path / "state")
    found = made.load(state, tmp_path / "state")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in state.items()
    }
    assert torch.equal(
        found["parameters.b"].view(torch.int16), half.view(torch.int16)
    ) and torch.equal(found["parameters.a"], state["parameters.a"])


def test_event_loops_that_torchsnapshot_leaves_open_are_closed(torchsnapshot: Any) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    with suppress(ValueError), torchsnapshot.contained():
        made += [asyncio.new_event_loop(), asyncio.new_event_loop()]
        raise ValueError("in the middle")
    assert [loop.is_closed() for loop in made] == [True, True]
    after = asyncio.new_event_loop()
    after.close()
    assert len(made) == 2


@pytest.mark.parametrize(("begun", "ended"), [(None, True), (True, True), (False, False)])
def test_a_process_that_still_writes_is_not_ended(
    torch_checkpointing: Any, begun: bool | None, ended: bool
) -> None:
    closed: list[int] = []
    each: Any = torch_checkpointing.TorchCheckpointing()
    each._manager = SimpleNamespace(close=lambda: closed.append(1))
    each._begun = None if begun is None else SimpleNamespace(done=lambda: begun)
    each.close()
    each.close()
    assert closed == [1] * ended


def test_only_rank_0_gives_torch_checkpointing_its_state(
    torch_checkpointing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"parameters.a": torch.zeros(1)}
    monkeypatch.setattr(torch_checkpointing.dist, "get_rank", lambda: 1)
    assert list(torch_checkpointing._given(state).values()) == [state], "without a process group"
    monkeypatch.setattr(torch_checkpointing.dist, "is_initialized", lambda: True)
    assert torch_checkpointing._given(state) == {}
    monkeypatch.setattr(torch_checkpointing.dist, "get_rank", lambda: 0)
    assert list(torch_checkpointing._given(state).values()) == [state]


def test_a_save_in_the_background_waits_for_the_one_before(tmp_path: Path, run: Run) -> None:
    """One is in flight at a time: the next one begins when it has ended."""
    kind, begun, asked = KINDS["dcp_async"], list[Future[None]](), threading.Event()

    class Slow:
        def prepare(self) -> None: ...

        def begin(self, state: State, path: Path) -> Future[None]:
            begun.append(Future())
            asked.set()
            return begun[-1]

        def close(self) -> None: ...

    clock = SpanClock(Journal(RunLayout(tmp_path).attempt(0).spans(0)), 0, monotonic(), "compute")
    strategy = make_strategy(
        StrategyInputs(config_of(kind), run.train_state, RunLayout(tmp_path), 0, clock)
    )
    strategy._checkpointer = Slow()  # type: ignore[attr-defined]
    strategy.prepare()
    strategy.save(run.progress())
    asked.clear()
    run.train(1)
    second = threading.Thread(target=strategy.save, args=(run.progress(),))
    second.start()
    assert not asked.wait(0.2) and len(begun) == 1
    begun[0].set_result(None)
    assert asked.wait(120)
    second.join()
    begun[1].set_exception(OSError(28, "No space left on device", "x"))
    strategy.flush()
    strategy.close()
    ends = [
        (line.event, line.global_step)
        for line in lines(tmp_path)
        if line.event in ("committed", "failed")
    ]
    assert ends == [("committed", 1), ("failed", 2)]


def test_a_save_whose_failure_is_known_only_after_the_wait_stops_the_run_too(
    tmp_path: Path, run: Run
) -> None:
    """checkpoint.on_error=stop: what was in flight when the flush began counts as what had failed
    before.
    """
    begun: Future[None] = Future()

    class Failing:
        def prepare(self) -> None: ...

        def begin(self, state: State, path: Path) -> Future[None]:
            return begun

        def close(self) -> None: ...

    clock = SpanClock(Journal(RunLayout(tmp_path).attempt(0).spans(0)), 0, monotonic(), "compute")
    config = config_of(KINDS["dcp_async"], on_error="stop")
    strategy = cast(
        "Any", make_strategy(StrategyInputs(config, run.train_state, RunLayout(tmp_path), 0, clock))
    )
    strategy._checkpointer = Failing()
    strategy.prepare()
    strategy.save(run.progress())
    pending = strategy._pending

    def fail_while_waited_for() -> None:
        begun.set_exception(OSError(28, "No space left on device", "x"))
        pending.result()

    strategy._pending = SimpleNamespace(result=fail_while_waited_for)
    with pytest.raises(
        StorageError, match=r"step 1 was not saved \(.*ENOSPC.*checkpoint.on_error=stop"
    ):
        strategy.flush()
    strategy.close()
