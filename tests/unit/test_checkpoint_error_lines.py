"""The one line of each error that a checkpoint may end with: what, where, and the way out, as a
person reads it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture import staging_buffer
from ecrl_cli.checkpoint.capture.live_state import LiveState
from ecrl_cli.checkpoint.capture.loading import load_checkpoint, load_snapshot
from ecrl_cli.checkpoint.capture.shared_memory import Memory, SnapshotPair
from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout, StagingBuffer
from ecrl_cli.checkpoint.capture.tensor_sources import spec_of
from ecrl_cli.checkpoint.capture.train_state import _not_json, _other_model, _other_optimizer
from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.format.image import DTYPES, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.names import LEASE, MODEL, TRAIN
from ecrl_cli.checkpoint.repair.diagnose import Diagnosis, Source, diagnose
from ecrl_cli.checkpoint.repair.repair import check_folder, repair
from ecrl_cli.checkpoint.repair.scrub import scrub
from ecrl_cli.checkpoint.store.atomic_install import logged_digest
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.strategies.foreign import described
from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.errors import EcrlError, StorageError, shown
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs import PosixFs
from tests.unit.checkpoint_support import CONFIG, commit, flip, image, store_at


def damaged(root: Path) -> Path:
    with closing(store_at(root)) as store:
        path = commit(store, 6).path
    flip(path / MODEL, 5000)
    return path


def beyond_repair(root: Path) -> None:
    repair(damaged(root), Diagnosis(), root / "out")


def repaired_wrongly(root: Path) -> None:
    path = damaged(root)
    found = diagnose(path)
    flip(path / MODEL, 6000)
    repair(path, found, root / "out")


def two_names(root: Path) -> None:
    path = damaged(root)
    found = diagnose(path)
    os.link(path / TRAIN, root / "second")
    repair(path, found, root / "out")


def cut_meanwhile(root: Path) -> None:
    path = damaged(root)
    found = diagnose(path)

    class Cut(PosixFs):
        def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
            return 0

    repair(path, replace(found, sources=[Source(MODEL, 100)]), root / "out", fs=Cut())


def among_the_checkpoints(root: Path) -> None:
    check_folder(damaged(root).parent / "out", root / "checkpoints")


def nowhere(root: Path) -> None:
    check_folder(root / "no" / "out", root / "checkpoints")


def not_empty(root: Path) -> None:
    (root / "out").mkdir()
    (root / "out" / "file").touch()
    check_folder(root / "out", root / "checkpoints")


def another_state(root: Path) -> None:
    with closing(store_at(root)) as store:
        commit(store, 6)
        store.save(image(6, seed=2), 0)


def logged_otherwise(root: Path) -> None:
    with closing(store_at(root)) as store:
        store.save(replace(image(6), state_digest="f" * 64), 0)


def fenced(root: Path) -> None:
    store_at(root, attempt=4).close()
    with closing(CheckpointStore(root / "checkpoints", CONFIG)) as store:
        store.save(image(6), 3)


def damaged_lease(root: Path) -> None:
    (root / LEASE).write_bytes(b"{}")
    CheckpointStore(root).save(image(6), 0)


def no_such_checkpoint(root: Path) -> None:
    load_checkpoint(root / "step_00000006")


def no_snapshot(root: Path) -> None:
    with closing(SnapshotPair.create()) as pair:
        load_snapshot(pair, 6, "0" * 64, "blake3")


def no_descriptor(root: Path) -> None:
    left, right = (Channel(end) for end in socket.socketpair())
    with closing(left), closing(right):
        left.take_fd()


def unmapped(root: Path) -> None:
    LiveState(os.memfd_create("empty"), 4096, ())


def outgrown(root: Path) -> None:
    plan = plan_image({"all": [TensorSpec("parameters.w", "torch.float32", (4,))]})
    slot = StagingBuffer(
        Memory.create(plan.nbytes + 4096),
        BufferLayout(plan, ".pt", plan.nbytes + 4096),
        torch.device("cpu"),
    )
    with closing(slot):
        slot.serialize(b" " * 8192)


def unlogged(root: Path, *, curable: bool) -> None:
    layout = RunLayout(root)
    with closing(CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)) as log:
        log.write("submitted", 6)
        log.confirm(6, curable=curable)


def fail(error: Exception) -> Callable[[Path], None]:
    def do(root: Path) -> None:
        raise error

    return do


KIND: Any = SimpleNamespace(name="dcp")
HELD = "E-storage capture: step 6 would be saved as {held}, rank 0 logged ffffffff behind it"
LINES: dict[str, tuple[Callable[[Path], object], str]] = {
    "beyond repair": (
        beyond_repair,
        (
            "E-storage repair: step_00000006 is damaged beyond what its hashes can confirm; resume"
            " from another checkpoint"
        ),
    ),
    "repaired wrongly": (
        repaired_wrongly,
        (
            "E-storage repair: the corrected copy of step_00000006 is refused by hash:"
            " model.safetensors does not match its BLAKE3; nothing was kept; resume from another"
            " checkpoint"
        ),
    ),
    "a second name": (
        two_names,
        "E-storage repair: train.json has 2 names; it changed since it was looked at",
    ),
    "cut while it is copied": (
        cut_meanwhile,
        (
            "E-storage repair: model.safetensors ends 100 bytes early; it changed since it was"
            " looked at"
        ),
    ),
    "a copy among the checkpoints": (
        among_the_checkpoints,
        (
            "E-run-dir {shown:checkpoints/out}: lies among the checkpoints that are looked at; name"
            " a folder elsewhere"
        ),
    ),
    "a copy nowhere": (
        nowhere,
        "E-run-dir {shown:no}: does not exist; make it, or name another folder",
    ),
    "a copy over files": (
        not_empty,
        "E-run-dir {shown:out}: is not an empty folder; name a new one",
    ),
    "another state": (
        another_state,
        (
            "E-conflict checkpoints: step_00000006 of attempt 0 holds another state; nothing was"
            " overwritten; verify the run"
        ),
    ),
    "another state than was logged": (
        logged_otherwise,
        HELD + "; nothing was committed; if it comes back, use checkpoint.capture=copy",
    ),
    "fenced": (
        fenced,
        (
            "E-fenced checkpoints: attempt 4 owns the store, this is attempt 3; nothing was"
            " committed; stop this process"
        ),
    ),
    "a lease": (
        damaged_lease,
        (
            "E-storage lease: {root}/.attempt is damaged (no attempt number); remove it if no other"
            " process trains in this folder"
        ),
    ),
    "no checkpoint": (
        no_such_checkpoint,
        (
            "E-storage restore: step_00000006 failed at file: ENOENT at {root}/step_00000006 (No"
            " such file or directory); resume from another checkpoint"
        ),
    ),
    "no snapshot": (
        no_snapshot,
        (
            "E-snapshot restore: the snapshot of step 6 in memory is not the one that was chosen;"
            " resume the run"
        ),
    ),
    "no descriptor": (
        no_descriptor,
        (
            "E-storage slot: too many open files: memory to save into could not be received; raise"
            " the limit: ulimit -n 1024"
        ),
    ),
    "unmapped": (
        unmapped,
        (
            "E-storage capture: 4096 bytes of rank 0's state cannot be mapped (mmap length is"
            " greater than file size); use checkpoint.capture=copy"
        ),
    ),
    "outgrown": (
        outgrown,
        (
            "E-storage serialize: the file of {length} bytes outgrew its staging buffer of 4096;"
            " use checkpoint.format=safetensors"
        ),
    ),
    "unsaved": (
        lambda root: unlogged(root, curable=False),
        (
            "E-storage checkpoint: step 6 ends the attempt and was not saved (the background writer"
            " has ended); resume the run"
        ),
    ),
    "unsaved, and curable": (
        lambda root: unlogged(root, curable=True),
        (
            "E-unsaved checkpoint: step 6 ends the attempt and was not saved (the background writer"
            " has ended); resume the run"
        ),
    ),
    "not JSON": (
        fail(_not_json(TypeError("why"))),
        (
            "E-config checkpoint: optimizer, scheduler or scaler have state that is neither a"
            " tensor nor JSON (why); use one whose state_dict holds numbers, strings and tensors"
        ),
    ),
    "another model": (
        fail(_other_model("parameters.w")),
        (
            "E-config model: the checkpoint holds the state of another model (first difference:"
            " parameters.w); restore the configuration or start a new run"
        ),
    ),
    "another optimizer": (
        fail(_other_optimizer("lr")),
        (
            "E-config optimizer: the checkpoint holds the state of another optimizer (first"
            " difference: lr); restore the configuration or start a new run"
        ),
    ),
    "a dtype": (
        lambda root: spec_of("parameters.w", torch.zeros(1, dtype=torch.complex128)),
        "E-config checkpoint: parameters.w has dtype torch.complex128, which a checkpoint cannot"
        " hold; use one of " + ", ".join(DTYPES),
    ),
    "of a checkpointer": (
        fail(described(KIND, ValueError("bad\nworse"))),
        "E-error dcp: ValueError: bad; read the output of rank 0",
    ),
    "of a checkpointer's file": (
        fail(described(KIND, OSError(errno.ENOSPC, "No space left on device", "/x/y"))),
        "E-storage dcp: ENOSPC at /x/y (No space left on device)",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_an_error_says_what_where_and_the_way_out(tmp_path: Path, name: str) -> None:
    do, words = LINES[name]
    with pytest.raises(EcrlError) as caught:
        do(tmp_path)
    with closing(CheckpointStore(tmp_path)) as store:
        held = logged_digest(ImageHasher(image(6), store._pool).entries())[:8]
    length = caught.value.fact.split()[3] if "outgrew" in caught.value.fact else ""
    # a path of the user's, which is cut where it is long
    for name in ("checkpoints/out", "no", "out"):
        words = words.replace(f"{{shown:{name}}}", shown(str(tmp_path / name)))
    assert caught.value.line() == words.replace("{root}", str(tmp_path)).replace(
        "{held}", held
    ).replace("{length}", length)


def test_an_error_of_ours_is_told_as_it_is() -> None:
    error = StorageError("k", "f")
    assert described(KIND, error) is error


def test_a_save_that_failed_is_told_without_the_path_of_the_run(tmp_path: Path) -> None:
    """Records are read elsewhere."""
    layout = RunLayout(tmp_path)

    class Refusing(PosixFs):
        def mkdir(self, path: Path) -> None:
            if "stage" in path.name:
                raise StorageError.of("mkdir", path.with_name("stage"), OSError(errno.EIO, "no"))
            super().mkdir(path)

    with (
        closing(CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)) as log,
        closing(store_at(tmp_path, fs=Refusing())) as store,
    ):
        assert not save_and_record(store, image(6), 0, log)
        assert log.failure == "step 6 was not saved (mkdir: EIO at checkpoints/stage (no))"


# A file system that is given is the only one


class Elsewhere(PosixFs):
    """What is called `/run/...` lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _at(self, path: Path) -> Path:
        return self._folder / path.relative_to("/run")

    def mkdir(self, path: Path) -> None:
        super().mkdir(self._at(path))

    def open(self, path: Path, flags: int) -> int:
        return super().open(self._at(path), flags)

    def fsyncdir(self, path: Path) -> None:
        super().fsyncdir(self._at(path))

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        super().rename(self._at(source), self._at(target), replace=replace)

    def symlink(self, target: str, path: Path) -> None:
        super().symlink(target, self._at(path))

    def unlink(self, path: Path) -> None:
        super().unlink(self._at(path))

    def rmdir(self, path: Path) -> None:
        super().rmdir(self._at(path))

    def listdir(self, path: Path) -> list[str]:
        return super().listdir(self._at(path))

    def stat(self, path: Path) -> os.stat_result:
        return super().stat(self._at(path))


def test_a_store_reads_and_writes_through_its_file_system_alone(tmp_path: Path) -> None:
    fs, root = Elsewhere(tmp_path), Path("/run/checkpoints")
    with closing(CheckpointStore(root, CONFIG, fs)) as store:
        store.claim(0)
        saved = [commit(store, step, single=step % 2 == 1) for step in (6, 7, 12)]
        assert [entry.path for entry in store.entries()] == [saved[2].path, saved[1].path]
    with closing(CheckpointStore(root, CONFIG, fs)) as store:
        last, made = store.save(image(18), 0), image(18)
        (gone,) = store.update_pointers_and_retire(last, made)
        assert (gone.global_step, gone.path, gone.commit_sha256) == (
            7,
            saved[1].path,
            saved[1].commit_sha256,
        )
        choice = store.newest_valid()
        assert choice.report is not None and choice.report.commit_sha256 == last.commit_sha256
        found = store.reconcile(12, 0)
        assert found is not None and found.commit_sha256 == saved[2].commit_sha256
        assert scrub(root, fs=fs).valid == 2 and diagnose(last.path, fs=fs).findings == []
        store.quarantine(last.path)
        assert [entry.global_step for entry in store.entries()] == [12]
    assert not root.exists()


# Memory that CUDA copies from


class Cuda:
    """torch.cuda as far as a staging buffer uses it, on the CPU; `done`: what was asked of it."""

    def __init__(self, status: int) -> None:
        self.done, self._status = list[str](), status

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.done.append(f"register {nbytes}")
        self.address = address
        return self._status

    def cudaHostUnregister(self, address: int) -> None:
        assert address == self.address
        self.done.append("unregister")

    def set_device(self, device: torch.device) -> None:
        self.done.append(f"on {device}")

    def current_stream(self, device: torch.device) -> str:
        return "the current one"

    def Stream(self, device: torch.device) -> Cuda:
        return self

    def stream(self, stream: Cuda) -> Cuda:
        return self

    def __enter__(self) -> None:
        self.done.append("copy")

    def __exit__(self, *given: object) -> None: ...

    def wait_stream(self, stream: str) -> None:
        self.done.append(f"after {stream}")

    def synchronize(self) -> None:
        self.done.append("synchronize")


def cuda_buffer(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> tuple[Cuda, Callable[[], StagingBuffer]]:
    cuda = Cuda(status)
    monkeypatch.setattr(staging_buffer.torch, "cuda", cuda)
    plan = plan_image({"all": [TensorSpec("parameters.w", "torch.float32", (4,))]})
    return cuda, lambda: StagingBuffer(
        Memory.create(plan.nbytes), BufferLayout(plan, "", plan.nbytes), torch.device("cuda", 1)
    )


def test_memory_for_cuda_is_pinned_and_a_copy_is_finished_when_it_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, make = cuda_buffer(monkeypatch, 0)
    slot = make()
    slot.capture({"parameters.w": torch.arange(4.0)})
    assert slot._views["parameters.w"].tolist() == [0, 1, 2, 3]
    slot.close()
    assert cuda.done == [
        "on cuda:1",
        "register 4096",
        "after the current one",
        "copy",
        "synchronize",
        "unregister",
    ]


def test_memory_that_cuda_does_not_pin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, make = cuda_buffer(monkeypatch, 2)
    with pytest.raises(StorageError) as caught:
        make()
    assert (
        caught.value.line()
        == "E-storage pin: cudaHostRegister of 4096 bytes gave 2; raise the limit of locked memory"
        " (ulimit -l)"
    )
