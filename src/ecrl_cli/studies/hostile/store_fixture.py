"""The attacked run: a store with two committed checkpoints, and functions that rewrite one with all hashes updated."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import chunk_sums
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, MODEL
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, synthetic_image, synthetic_plan
from ecrl_cli.config.build import build
from ecrl_cli.config.codec import encode
from ecrl_cli.linux.unix_socket import bind
from ecrl_cli.records.events import SCHEMA_VERSION, SupervisorRecord, SupervisorSession
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.storage.files import write_json

STEPS = (10, 20)
MODEL_BYTES = 4096
GUARD = IntegrityConfig(run_id=RUN_ID)
Act = Callable[["Scene"], None]
RECORDS = (
    *("config.json", "supervisor.json", "failures.json", "dataset.json", "fired/000.json"),
    *(f"logs/attempt-00/{name}" for name in ("launch.json", "final.json", "rank0.jsonl", "checkpoint_rank0.jsonl")),
)


@dataclass(frozen=True)
class Scene:
    """`root`: the run directory. `outside`: a folder beside it that must not be read. `canary`: a file that must never be created."""

    root: Path
    outside: Path
    canary: Path

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.root)

    @property
    def group(self) -> Path:
        return self.root / "checkpoints" / "step_00000020"

    @property
    def single(self) -> Path:
        return self.root / "single" / "step_00000020.safetensors"

    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.group / MANIFEST).read_bytes())
        return value

    def put_manifest(self, data: bytes) -> None:
        """Write these bytes as MANIFEST, with a matching COMMIT."""
        (self.group / MANIFEST).write_bytes(data)
        body = json.loads((self.group / COMMIT).read_bytes()) | {"manifest_sha256": hashlib.sha256(data).hexdigest()}
        self.put_commit(body)

    def put_commit(self, body: dict[str, Any]) -> None:
        """Write a COMMIT whose own hash matches, whatever its content."""
        body = {key: value for key, value in body.items() if key != "self_sha256"}
        (self.group / COMMIT).write_bytes(canonical_json(body | {"self_sha256": digest(body)}))

    def put_part(self, name: str, data: bytes, **tensors: Any) -> None:
        """Write these bytes as a part with every record updated; `tensors` replaces the part's tensor list."""
        (self.group / name).write_bytes(data)
        value = self.manifest()
        value["parts"][name] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "chunk_crc32": list(chunk_sums(data)), **tensors}
        self.put_manifest(canonical_json(value))


class Stage:
    """The untouched scene, made once and copied for every input."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed

    @contextmanager
    def scene(self) -> Iterator[Scene]:
        """A fresh copy, removed on exit."""
        if not (self._folder / "made").exists():
            self._make(self._folder / "made")
        place = self._folder / "now"
        shutil.copytree(self._folder / "made", place, symlinks=True)
        try:
            yield Scene(place / "run", place / "outside", place / "canary")
        finally:
            shutil.rmtree(place)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self, folder: Path) -> None:
        (folder / "outside").mkdir(parents=True)
        (folder / "outside" / "secret").write_bytes(b"{}")
        run = RunLayout(folder / "run")
        run.root.mkdir(mode=0o700)
        for name, alone in (("checkpoints", False), ("single", True)):
            plan = synthetic_plan(MODEL_BYTES, MODEL_BYTES // 2, single=alone)
            with closing(CheckpointStore(run.root / name, StoreConfig(integrity=GUARD))) as store:
                store.claim(0)
                for step in STEPS:
                    image = synthetic_image(self._seed, step, plan)
                    store.update_pointers_and_retire(store.save(image, 0), image)
        _records(run)


def _records(run: RunLayout) -> None:
    """The documents of a run that has just started."""
    write_run_config(run, build({}))
    write_json(run.supervisor, encode(SupervisorRecord(SCHEMA_VERSION, RUN_ID, 9, "running", 0, (), (SupervisorSession(1.0, 1.0, "boot"),))))
    write_json(run.failures, [])
    run.fired.mkdir()
    folder = run.attempt(0).folder
    folder.mkdir(parents=True)
    for path in (run.attempt(0).rank(0), run.attempt(0).checkpoints):
        path.write_bytes(b"")


def write(file: str, data: bytes) -> Act:
    """Write `data` in place of `file`, as the attacker."""

    def act(scene: Scene) -> None:
        path = _gone(scene.root / file)
        path.write_bytes(data)

    return act


def _gone(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def _fifo(path: Path, scene: Scene) -> None:
    os.mkfifo(_gone(path))


def _socket(path: Path, scene: Scene) -> None:
    bind(_gone(path)).close()


def _device(path: Path, scene: Scene) -> None:
    os.mknod(_gone(path), 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: endless reads


def _folder(path: Path, scene: Scene) -> None:
    _gone(path).mkdir()


def _link_out(path: Path, scene: Scene) -> None:
    _gone(path).symlink_to(scene.outside / "secret")


def _link_in(path: Path, scene: Scene) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _loop(path: Path, scene: Scene) -> None:
    _gone(path).symlink_to(path.name)


def _hard_link(path: Path, scene: Scene) -> None:
    os.link(scene.outside / "secret", _gone(path))


def _sparse(path: Path, scene: Scene) -> None:
    path.touch()
    os.truncate(path, 2**40)


FILE_TYPES: dict[str, Callable[[Path, Scene], None]] = {
    "a FIFO": _fifo,
    "a socket": _socket,
    "an endless device": _device,
    "a folder": _folder,
    "a link out": _link_out,
    "a link in": _link_in,
    "a link to itself": _loop,
    "a hard link out": _hard_link,
    "a sparse terabyte": _sparse,
}


def made_into(kind: str, file: str) -> Act:
    """Replace `file`, relative to the run, by something else."""

    def act(scene: Scene) -> None:
        FILE_TYPES[kind](scene.root / file, scene)

    return act


def part_made_into(kind: str) -> Act:
    return partial(_act_on_part, kind)


def _act_on_part(kind: str, scene: Scene) -> None:
    FILE_TYPES[kind](scene.group / MODEL, scene)
