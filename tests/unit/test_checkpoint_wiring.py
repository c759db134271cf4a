"""What is configured arrives, what is refused says by whom and why, and what a network file system
shows late is waited for: one row each.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.checkpointers.torch_save import SyncedTorchSave, TorchSave
from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.image import encode_parts
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    LEASE,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STEP_METADATA,
    TRAIN,
    suffix_of,
)
from ecrl_cli.checkpoint.repair.diagnose import diagnose
from ecrl_cli.checkpoint.repair.scrub import ScrubConfig, scrub
from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.fencing import FencingToken
from ecrl_cli.checkpoint.store.integrity import (
    CheckpointRejected,
    IntegrityConfig,
    IntegrityReport,
    layer,
    report_of,
    verify_checkpoint,
)
from ecrl_cli.checkpoint.store.integrity import OpenCheckpoint as Found
from ecrl_cli.checkpoint.store.step_metadata import StepMetadata
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.strategies import overlapped
from ecrl_cli.checkpoint.strategies.foreign import ForeignStrategy, Unreadable, restore_foreign
from ecrl_cli.checkpoint.strategies.overlapped import OverlappedStrategy
from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import CheckpointConfig, RunConfig, StorageConfig, WriteModeConfig
from ecrl_cli.errors import CheckpointConflict, ConfigError, EcrlError, Fenced, StorageError
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage import durable
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.storage.fs_wrapper import ThrottledFs
from ecrl_cli.storage.safe_read import RefusedFile
from ecrl_cli.storage.writing import WriteMode
from tests.unit.checkpoint_support import CONFIG, commit, image, store_at

# The configuration


def checkpoint(**changes: Any) -> RunConfig:
    return RunConfig(checkpoint=replace(CheckpointConfig(), **changes))


def mode(**changes: bool) -> RunConfig:
    return RunConfig(write_mode=replace(WriteModeConfig("unsafe"), **changes))


DEFAULT = StoreConfig(WriteMode(), 3, IntegrityConfig(run_id="r", restorable=True))
CONFIGURED: dict[str, tuple[RunConfig, StoreConfig]] = {
    "nothing": (RunConfig(), DEFAULT),
    "sync_files": (mode(sync_files=False), replace(DEFAULT, mode=WriteMode(False, True, True))),
    "atomic": (mode(atomic=False), replace(DEFAULT, mode=WriteMode(True, False, True))),
    "sync_directories": (
        mode(sync_directories=False),
        replace(DEFAULT, mode=WriteMode(True, True, False)),
    ),
    "keep": (checkpoint(keep=7), replace(DEFAULT, keep=7)),
    "digest": (checkpoint(digest="sha256"), replace(DEFAULT, digest="sha256")),
    "max_bytes": (
        checkpoint(max_bytes=99),
        replace(DEFAULT, integrity=replace(DEFAULT.integrity, max_bytes=99)),
    ),
    "trust_owner": (
        checkpoint(trust_owner=True),
        replace(DEFAULT, integrity=replace(DEFAULT.integrity, trust_owner=True)),
    ),
    "finite": (
        checkpoint(finite="model"),
        replace(DEFAULT, integrity=replace(DEFAULT.integrity, finite="model")),
    ),
    "bytes_per_s": (
        RunConfig(storage=StorageConfig("throttled", bytes_per_s=5.0)),
        replace(DEFAULT, bytes_per_s=5.0),
    ),
}


@pytest.mark.parametrize("key", CONFIGURED)
def test_each_key_of_the_configuration_arrives_in_the_store(key: str) -> None:
    config, expected = CONFIGURED[key]
    assert StoreConfig.of(config, "r") == expected


def test_a_store_writes_through_what_it_is_given_and_ends_its_threads(tmp_path: Path) -> None:
    slow = CheckpointStore(tmp_path, StoreConfig(bytes_per_s=1e9))
    assert isinstance(slow.fs, ThrottledFs) and type(CheckpointStore(tmp_path).fs) is PosixFs
    with closing(store_at(tmp_path)) as store:
        commit(store, 6)
    with pytest.raises(RuntimeError, match="shutdown"):
        store._pool.submit(int)
    slow.close()


@pytest.mark.parametrize(
    ("layout", "format", "suffix"),
    [
        ("group", "safetensors", ""),
        ("single", "safetensors", ".safetensors"),
        ("group", "torch", ".pt"),
        ("single", "torch", ".pt"),
    ],
)
def test_the_suffix_of_a_checkpoint_follows_from_layout_and_format(
    layout: str, format: str, suffix: str
) -> None:
    assert suffix_of(CheckpointConfig(layout=layout, format=format)) == suffix


# The integrity check


def refused(kind: type[Exception], *given: object) -> Callable[[], None]:
    def fail() -> None:
        raise kind(*given)

    return fail


UNREAD = StorageError.of("read", "model", OSError(errno.EIO, "Input/output error"))


def unread() -> None:
    raise UNREAD


ERRORS: dict[str, tuple[Callable[[], None], str]] = {
    "of the file system": (unread, "EIO at model (Input/output error)"),
    "of a file": (refused(RefusedFile, "a pipe"), "a pipe"),
    "of a value": (refused(ValueError, "no JSON"), "no JSON"),
    "without a word": (refused(ValueError), "ValueError"),
    "too long": (refused(ValueError, "x" * 300), "x" * 200),
    "too deep": (refused(RecursionError, "too deep"), "too deep"),
    "too large": (refused(OverflowError, "too large"), "too large"),
    "out of memory": (refused(MemoryError), "does not fit into memory"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_of_a_damaged_checkpoint_is_a_refusal_by_its_layer(
    tmp_path: Path, name: str
) -> None:
    fail, reason = ERRORS[name]
    with pytest.raises(CheckpointRejected) as caught, layer("file"), layer("schema"):
        fail()
    assert (caught.value.layer, caught.value.reason, str(caught.value)) == (
        "schema",
        reason,
        f"schema: {reason}",
    )
    report = report_of(tmp_path, Found(train=b"{}"), caught.value)
    assert (report.ok, report.layer, report.reason, report.path, report.train) == (
        False,
        "schema",
        reason,
        tmp_path,
        b"{}",
    )
    assert report.unread is (UNREAD if fail is unread else None)


@pytest.mark.parametrize("kind", [KeyError, TypeError, AssertionError])
def test_a_defect_of_the_check_is_no_refusal(kind: type[Exception]) -> None:
    with pytest.raises(kind), layer("schema"):
        raise kind("a defect")


class OfAnother(PosixFs):
    """One file belongs to another user."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._fds = name, set[int]()

    def open_at(self, folder: int, name: str, flags: int) -> int:
        fd = super().open_at(folder, name, flags)
        (self._fds.add if name == self._name else self._fds.discard)(fd)
        return fd

    def fstat(self, fd: int) -> os.stat_result:
        found = super().fstat(fd)
        return os.stat_result((*found[:4], 4711, *found[5:])) if fd in self._fds else found


OWNED = [
    *(
        (False, name, at)
        for name, at in (
            (COMMIT, "commit"),
            (MANIFEST, "manifest"),
            (MODEL, "parts"),
            (OPTIMIZER, "parts"),
            (RNG, "parts"),
        )
    ),
    (False, TRAIN, "parts"),
    (True, "step_00000006.json", "commit"),
    (True, "step_00000006.safetensors", "parts"),
]


@pytest.mark.parametrize(("single", "name", "at"), OWNED)
def test_a_file_of_another_user_is_refused_unless_owners_are_trusted(
    tmp_path: Path, single: bool, name: str, at: str
) -> None:
    with closing(store_at(tmp_path)) as store:
        path = commit(store, 6, single=single).path
    report = verify_checkpoint(path, CONFIG.integrity, OfAnother(name))
    assert (report.layer, report.reason) == (at, f"{name} belongs to uid 4711")
    trusting = IntegrityConfig(trust_owner=True)
    assert verify_checkpoint(path, trusting, OfAnother(name)).ok
    assert "belongs to uid 4711" in " ".join(
        finding.text for finding in diagnose(path, CONFIG.integrity, OfAnother(name)).findings
    )
    assert (
        diagnose(path, trusting, OfAnother(name)).findings
        == diagnose(path, fs=OfAnother(name)).findings
        == []
    )
    assert scrub(path.parent, fs=OfAnother(name)).valid == 1, "a scrub trusts by default"
    assert (
        scrub(path.parent, config=ScrubConfig(integrity=CONFIG.integrity), fs=OfAnother(name)).valid
        == 0
    )


# What a network file system shows late


class LateLease(PosixFs):
    """The first look at the lease fails with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.looks = number, 0

    def open_at(self, folder: int, name: str, flags: int) -> int:
        if name == LEASE:
            self.looks += 1
            if self.looks == 1:
                raise StorageError.of("open", name, OSError(self.number, "late"))
        return super().open_at(folder, name, flags)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_newer_attempt_whose_lease_is_shown_late_fences_all_the_same(
    tmp_path: Path, number: int
) -> None:
    store_at(tmp_path, attempt=3).close()
    fs = LateLease(number)
    with pytest.raises(
        Fenced,
        match=(
            r"attempt 3 owns the store, this is attempt 2; nothing was committed; stop this process"
        ),
    ):
        FencingToken(fs, tmp_path / "checkpoints").check(2)
    assert fs.looks == 2
    assert (
        FencingToken(PosixFs(), tmp_path / "checkpoints").check(3)
        == FencingToken(PosixFs(), tmp_path / "checkpoints").check(9)
        == 3
    )


def test_a_store_that_nobody_has_claimed_belongs_to_whoever_asks(tmp_path: Path) -> None:
    assert FencingToken(PosixFs(), tmp_path).check(0) == -1
    (tmp_path / LEASE).write_bytes(b'{"attempt":true}')
    with pytest.raises(
        StorageError,
        match=(
            rf"{tmp_path}/\.attempt is damaged \(no attempt number\); remove it if no other process"
            r" trains"
        ),
    ):
        FencingToken(PosixFs(), tmp_path).check(0)
    (tmp_path / LEASE).write_bytes(canonical_json({"attempt": 5}) + b" " * 1011)
    assert FencingToken(PosixFs(), tmp_path).check(5) == 5
    (tmp_path / LEASE).write_bytes(canonical_json({"attempt": 5}) + b" " * 1012)
    with pytest.raises(StorageError, match="1025 bytes, at most 1024 are read"):
        FencingToken(PosixFs(), tmp_path).check(5)


def rejected(path: Path, reason: str) -> IntegrityReport:
    return IntegrityReport(path, False, "parts", reason)


@pytest.mark.parametrize(("after", "found"), [(15, True), (16, False)])
def test_so_many_late_checkpoints_are_looked_at_again(
    tmp_path: Path, after: int, found: bool
) -> None:
    for step in range(20):
        (tmp_path / f"step_{step:08d}").mkdir()
    looked: list[str] = []

    def examine(path: Path) -> IntegrityReport:
        looked.append(path.name)
        if len(looked) > 20 and path.name == f"step_{19 - after:08d}":
            return IntegrityReport(path, True)
        return rejected(path, "ENOENT at it")

    choice = catalog.newest_valid(PosixFs(), tmp_path, examine)
    assert (
        (choice.report is not None) == found
        and len(choice.rejected) == (15 if found else 20)
        and len(looked) == 36
    )
    assert choice.rejected[0].path == f"{tmp_path.name}/step_00000019"


def test_what_was_refused_for_damage_is_not_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "step_00000006").mkdir()
    looked: list[str] = []
    choice = catalog.newest_valid(
        PosixFs(),
        tmp_path,
        lambda path: looked.append(path.name) or rejected(path, "model lacks ENOENT"),
    )  # type: ignore[func-returns-value]
    assert looked == ["step_00000006"] and [
        (each.layer, each.reason) for each in choice.rejected
    ] == [("parts", "model lacks ENOENT")]


def test_a_folder_that_never_stands_still_is_searched_eight_times(tmp_path: Path) -> None:
    (tmp_path / "step_00000000").mkdir()
    listed, looked = list[str](), list[str]()

    class Growing(PosixFs):
        def listdir(self, path: Path) -> list[str]:
            listed.append(path.name)
            return super().listdir(path)

    def examine(path: Path) -> IntegrityReport:
        looked.append(path.name)
        (tmp_path / f"step_{len(looked):08d}").mkdir()
        return rejected(path, "damaged")

    choice = catalog.newest_valid(Growing(), tmp_path, examine)
    assert choice.report is None and len(listed) == 2 * 8 and len(looked) == 2**8 - 1


# The messages to the writer


@pytest.fixture
def told(tmp_path: Path) -> Iterator[tuple[WriterClient, Channel]]:
    layout = RunLayout(tmp_path)
    layout.logs.mkdir()
    with listen(layout.writer) as listener:
        client = WriterClient(layout, lambda memory: memory)  # type: ignore[arg-type, return-value]
        writer = Channel(listener.accept()[0])
    yield client, writer
    writer.close()
    client.close()


def test_a_message_to_the_writer_has_the_fields_of_the_protocol(
    told: tuple[WriterClient, Channel],
) -> None:
    client, writer = told
    made, memory = image(6), Memory.create(4096)
    client.open(3, 8192, 2, made.parts)
    client.share(memory, ())
    client.submit(1, made)
    client.submit(0, replace(made, state_digest="d"), 5)
    client.confirm("parameters.w")
    received: list[dict[str, Any]] = []
    while len(received) < 5:
        received += writer.receive(wait=True) or []
    parts = [[part.name, part.offset, part.nbytes] for part in made.parts]
    save = {
        "kind": "save",
        "stamp": encode(made.stamp),
        "parts": parts,
        "documents": {TRAIN: made.documents[TRAIN].decode()},
    }
    assert (
        received[0]["parts"][0][:3] == parts[0]
        and len(received[0]["parts"]) == len(encode_parts(made.parts)) == 3
    )
    assert {key: value for key, value in received[0].items() if key != "parts"} == {
        "kind": "open",
        "attempt": 3,
        "nbytes": 8192,
        "slots": 2,
    }
    assert received[1:] == [
        {"kind": "share", "nbytes": 4096, "places": []},
        save | {"slot": 1, "changes": None, "state_digest": ""},
        save | {"slot": 0, "changes": 5, "state_digest": "d"},
        {"kind": "confirmed", "changed": "parameters.w"},
    ]
    shared = writer.take_fd()
    assert os.fstat(shared).st_ino == os.fstat(memory.fd).st_ino
    os.close(shared)
    memory.close()


def test_what_the_writer_still_needs_of_the_state_is_known_until_it_says_otherwise(
    told: tuple[WriterClient, Channel],
) -> None:
    client, writer = told
    made, beats = image(6), list[int]()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            writer.send({"kind": "copied"})

    assert not client.uncopied and not client.unconfirmed
    client.submit(0, made)
    assert not client.uncopied and not client.unconfirmed, "it holds all of it"
    client.submit(1, replace(made, state_digest="d"), 1)
    assert client.uncopied and not client.unconfirmed, "a digest confirms it"
    writer.send({"kind": "copied"})
    client.wait_copied(lambda: None, 60.0)
    client.submit(0, made, 2)
    assert client.uncopied and client.unconfirmed and client.in_flight == 3
    client.wait_copied(beat, 0.001)
    assert len(beats) >= 3 and not client.uncopied and client.unconfirmed
    client.confirm("")
    assert not client.unconfirmed
    client.submit(1, made, 3)
    writer.socket.shutdown(socket.SHUT_RDWR)
    client.wait_copied(lambda: None, 60.0)
    assert client.gone and not client.uncopied and not client.unconfirmed, (
        "one that has ended needs nothing"
    )


# torch.save


@pytest.mark.parametrize(("kind", "synced"), [(TorchSave, False), (SyncedTorchSave, True)])
def test_torch_save_is_renamed_and_synced_only_where_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[TorchSave], synced: bool
) -> None:
    done: list[tuple[str, str]] = []
    real = SimpleNamespace(
        sync=durable.sync, sync_directory=durable.sync_directory, rename_over=durable.rename_over
    )

    def sync(fd: int) -> None:
        done.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))
        assert os.fstat(fd).st_size > 500, "what is in no file yet cannot be made durable"
        real.sync(fd)

    monkeypatch.setattr(durable, "sync", sync)
    monkeypatch.setattr(
        durable,
        "sync_directory",
        lambda path: done.append(("sync", path.name)) or real.sync_directory(path),
    )
    monkeypatch.setattr(
        durable,
        "rename_over",
        lambda source, target: (
            done.append(("rename", target.name)) or real.rename_over(source, target)
        ),
    )
    step = tmp_path / "checkpoints" / "step_00000006"
    step.mkdir(parents=True)
    state = {"parameters.w": torch.arange(3.0), "buffers.n": torch.tensor(7)}
    kind().save(state, step / "state.pt")
    renamed = ("rename", "state.pt")
    assert done == (
        [("sync", "state.tmp"), renamed, ("sync", "step_00000006"), ("sync", "checkpoints")]
        if synced
        else [renamed]
    )
    assert [path.name for path in step.iterdir()] == ["state.pt"]
    loaded = kind().load({}, step / "state.pt")
    assert loaded.keys() == state.keys() and all(
        torch.equal(loaded[name], tensor) for name, tensor in state.items()
    )


# Another checkpointer's step


class Failing:
    """A checkpointer whose loads fail with `error`, and its description."""

    name, committed, state = "torch_save", "state.pt", "state.pt"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def load(self, *given: object) -> Any:
        if given:
            raise self.error
        return lambda: self


PASSED_ON = [ConfigError("model", "another model"), KeyboardInterrupt(), SystemExit(1)]
TRIED_AGAIN: list[BaseException] = [
    ConnectionResetError(errno.ECONNRESET, "reset"),
    TimeoutError("late"),
    torch.distributed.DistNetworkError("refused"),
    RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] closed"),
    *(OSError(number, "no") for number in catalog.TRANSIENT_ERRNOS),
    *(StorageError.of("open", "it", OSError(number, "no")) for number in catalog.TRANSIENT_ERRNOS),
]
TRIED_AGAIN += [
    CheckpointException(
        "loading",
        {
            rank: (error, cast("Any", None))
            for rank, error in enumerate((ValueError("no"), TRIED_AGAIN[0]))
        },
    )
]
CONDEMNED = [
    OSError(errno.EIO, "no"),
    StorageError.of("open", "it", OSError(errno.ENOENT, "no")),
    RuntimeError("not enough data"),
    ValueError("nonsense\nin two lines"),
    BaseException("of torch.distributed.checkpoint"),
    CheckpointException("loading", {1: (ValueError("no"), cast("Any", None))}),
]


@pytest.mark.parametrize("error", [*PASSED_ON, *TRIED_AGAIN, *CONDEMNED], ids=repr)
def test_a_load_that_fails_condemns_the_checkpoint_only_where_that_is_its_fault(
    tmp_path: Path, error: BaseException
) -> None:
    step = tmp_path / "step_00000006"
    step.mkdir()
    optimizer = {"param_groups": [], "scalars": {}, "host_keys": []}
    train = {
        "global_step": 6,
        "line_chain": [],
        "sampler": {"epoch": 0, "cursor_step": 6, "seed": 7},
        "scheduler": {},
        "scaler": None,
    }
    metadata = StepMetadata("r", 0, 6, "torch_save", (), train | {"optimizer": optimizer})
    (step / STEP_METADATA).write_bytes(metadata.encoded())
    (step / "state.pt").touch()
    kind: Any = Failing(error)
    with pytest.raises(BaseException) as caught:
        restore_foreign(cast("Any", None), kind, step, metadata.sha256)
    raised = caught.value
    if error in PASSED_ON:
        assert raised is error
        return
    assert (
        isinstance(raised, EcrlError)
        and raised.__cause__ is error
        and "\n" not in raised.line()
        and type(error).__name__ in raised.fact
    )
    assert isinstance(raised, Unreadable) == (error in CONDEMNED)
    assert raised.remedy == (
        "the next attempt takes the one before"
        if error in CONDEMNED
        else "the next attempt tries it again"
    )


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (CheckpointConflict("checkpoints", "it is there already"), ["step_00000006"]),
        (StorageError("write", "ENOSPC"), []),
        (ValueError("no"), []),
    ],
    ids=["another's", "refused", "a defect"],
)
def test_of_a_save_that_failed_nothing_is_left_unless_it_is_another_saves(
    tmp_path: Path, error: Exception, left: list[str]
) -> None:
    (tmp_path / "step_00000006").mkdir()
    (tmp_path / "step_00000006" / "state.pt").touch()
    log: list[str] = []
    context = SimpleNamespace(
        log=SimpleNamespace(failed=lambda step, why, write_s: log.append(why.fact))
    )
    strategy: Any = SimpleNamespace(
        _context=context,
        _store=SimpleNamespace(fs=PosixFs()),
        _kind=SimpleNamespace(name="it"),
        _folder=lambda step: tmp_path / f"step_{step:08d}",
    )
    ForeignStrategy._failed(strategy, 6, error, 0.5)
    assert [path.name for path in tmp_path.iterdir()] == left and len(log) == 1


class Peer:
    """Rank 0 of two: says whether it could make the folder."""

    def __init__(self, *, made: bool) -> None:
        self.made, self.asked = made, list[int]()

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.asked.append(int(own))
        return [torch.tensor([int(self.made)]), own]


@pytest.mark.parametrize(
    ("every_rank", "made", "asked"), [(True, True, [1]), (True, False, [1]), (False, False, [])]
)
def test_no_rank_begins_a_save_whose_folder_rank_0_could_not_make(
    every_rank: bool, made: bool, asked: list[int]
) -> None:
    peer = Peer(made=made)
    context = SimpleNamespace(writes=False, train_state=SimpleNamespace(world_size=2, peers=peer))
    strategy: Any = SimpleNamespace(_context=context, _kind=SimpleNamespace(every_rank=every_rank))
    nothing = cast("Any", None)
    if every_rank and not made:
        with pytest.raises(
            StorageError,
            match=r"^E-storage checkpoint: rank 0 could not make the folder of the step$",
        ):
            ForeignStrategy._opened(strategy, nothing, nothing, nothing)
    else:
        assert ForeignStrategy._opened(strategy, nothing, nothing, nothing) == ""
    assert peer.asked == asked


@pytest.mark.parametrize(("refused", "told"), [(None, [1]), (StorageError("mkdir", "ENOSPC"), [0])])
def test_rank_0_tells_the_others_whether_it_could(
    refused: StorageError | None, told: list[int]
) -> None:
    peer = Peer(made=refused is None)

    def opened(*given: object) -> str:
        if refused:
            raise refused
        return "the sha256"

    context = SimpleNamespace(writes=True, train_state=SimpleNamespace(world_size=2, peers=peer))
    strategy: Any = SimpleNamespace(
        _context=context, _kind=SimpleNamespace(every_rank=True), _open=opened
    )
    nothing = cast("Any", None)
    if refused:
        with pytest.raises(StorageError) as caught:
            ForeignStrategy._opened(strategy, nothing, nothing, nothing)
        assert caught.value is refused
    else:
        assert ForeignStrategy._opened(strategy, nothing, nothing, nothing) == "the sha256"
    assert peer.asked == told


def test_a_state_of_another_structure_waits_until_what_is_in_flight_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer of before would be lost with its connection, and a checkpoint in flight with
    it.
    """
    heard: list[str] = []
    strategy = OverlappedStrategy.__new__(OverlappedStrategy)
    fresh = SimpleNamespace(gone=False)
    strategy._context = cast(
        "Any", SimpleNamespace(snapshotter=SimpleNamespace(refresh=lambda gathered: gathered))
    )
    strategy._planned = cast("Any", "before")
    before = SimpleNamespace(
        gone=False, wait_idle=lambda: heard.append("waited"), close=lambda: heard.append("closed")
    )
    strategy._client = cast("Any", before)
    monkeypatch.setattr(strategy, "_hear_failure", lambda: None)
    monkeypatch.setattr(strategy, "_connected", lambda layout: fresh)
    assert strategy._ready(cast("Any", "before")) is before and not heard
    assert strategy._ready(cast("Any", "another")) is fresh and heard == ["waited", "closed"]


@pytest.mark.parametrize("writes", [True, False])
def test_only_the_rank_that_writes_prepares_a_writer(
    monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    """All ranks gather: the state of each is part of a checkpoint."""
    strategy = OverlappedStrategy.__new__(OverlappedStrategy)
    gathered: list[object] = []
    state = SimpleNamespace(gather=lambda progress: gathered.append(progress))
    strategy._context = cast(
        "Any",
        SimpleNamespace(
            writes=writes,
            train_state=state,
            snapshotter=SimpleNamespace(refresh=lambda gathered: "the layout"),
        ),
    )
    strategy._client = strategy._planned = None
    monkeypatch.setattr(strategy, "_connected", lambda layout: f"a writer for {layout}")
    strategy.prepare()
    assert len(gathered) == 1
    assert (strategy._planned, strategy._client) == (
        ("the layout", "a writer for the layout") if writes else (None, None)
    )


@pytest.mark.parametrize(
    ("deferred", "reason"), [(True, "there is no background writer"), (False, "")]
)
def test_why_nothing_is_deferred_is_on_the_line_where_something_could_be(
    monkeypatch: pytest.MonkeyPatch, deferred: bool, reason: str
) -> None:
    """Without a writer: the line of a strategy that copies has no reason, and the failure after it
    says why.
    """
    said: list[Any] = []
    strategy = OverlappedStrategy.__new__(OverlappedStrategy)
    context = SimpleNamespace(
        clock=SimpleNamespace(switch=lambda category: None),
        submitted=lambda step, nbytes, inflight, deferred_bytes=0, reason="": said.append(
            (step, nbytes, inflight, reason)
        ),
    )
    strategy._context = cast("Any", context)
    strategy._deferral = cast(
        "Any", SimpleNamespace(confirm_copy=lambda: None) if deferred else None
    )

    def ready(gathered: object) -> None:
        raise WriterGone("there is no background writer")

    monkeypatch.setattr(strategy, "_ready", ready)
    monkeypatch.setattr(strategy, "_failed", lambda step, gone: said.append(str(gone)))
    strategy._enqueue(cast("Any", SimpleNamespace(global_step=20)), cast("Any", None))
    assert said == [(20, 0, 1, reason), "there is no background writer"]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_as_many_staging_buffers_are_asked_for_as_checkpoints_may_be_in_flight(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    asked: list[int] = []

    class Client:
        def __init__(self, layout: object, make: object) -> None: ...

        def open(self, attempt: int, nbytes: int, slots: int, parts: object) -> None:
            asked.append(slots)

    monkeypatch.setattr(overlapped, "WriterClient", Client)
    context = SimpleNamespace(
        layout=None,
        attempt=0,
        train_state=SimpleNamespace(device=torch.device("cpu")),
        defers=False,
    )
    strategy = OverlappedStrategy(cast("Any", context), most)
    strategy._connected(cast("Any", SimpleNamespace(nbytes=8, plan=SimpleNamespace(parts=()))))
    assert asked == [most]
