"""The attacked run: a store with two committed checkpoints, and functions that rewrite one with all
hashes updated; and what a malicious input is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.config.build import build
from ecrl_cli.config.codec import encode
from ecrl_cli.records.events import SCHEMA_VERSION, SupervisorRecord, SupervisorSession
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.storage.files import write_json
from ecrl_cli.studies.frame.store_fixture import (
    GUARD,
    Payload,
    Template,
    forge,
    put_manifest,
    put_socket,
    put_zero_device,
    save_all,
)

STEPS = (10, 20)
MODEL_BYTES = 4096
Act = Callable[["RunFixture"], None]
RECORDS = (
    *("config.json", "supervisor.json", "failures.json", "dataset.json", "fired/000.json"),
    *(
        f"logs/attempt-00/{name}"
        for name in ("launch.json", "final.json", "rank0.jsonl", "checkpoint_rank0.jsonl")
    ),
)


@dataclass(frozen=True)
class RunFixture:
    """`root`: the run directory. `outside`: a folder beside it that must not be read. `canary`: a
    file that must never be created.
    """

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

    def put_manifest(self, data: bytes) -> None:
        """Write these bytes as MANIFEST, with a matching COMMIT."""
        put_manifest(self.group, data)

    def forge(self, edit: Callable[[dict[str, Any]], object]) -> None:
        """Apply `edit` to the manifest, with a matching COMMIT."""
        forge(self.group, edit)

    def put_part(self, name: str, data: bytes) -> None:
        """Write these bytes as a part with every record updated."""
        forge(self.group, lambda manifest: None, {name: data})


class FixtureTemplate:
    """The untouched fixture, made once and copied for every input."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._template = Template(folder, self._make)
        self.close = self._template.close

    @contextmanager
    def fixture(self) -> Iterator[RunFixture]:
        """A fresh copy, removed on exit."""
        with self._template.copied("made", self._folder / "now") as place:
            yield RunFixture(place / "run", place / "outside", place / "canary")

    def _make(self, name: str, folder: Path) -> None:
        (folder / "outside").mkdir()
        (folder / "outside" / "secret").write_bytes(b"{}")
        run = RunLayout(folder / "run")
        run.root.mkdir(mode=0o700)
        payload = Payload(self._seed, MODEL_BYTES, MODEL_BYTES // 2)
        for place, layout in (("checkpoints", "group"), ("single", "single")):
            with closing(CheckpointStore(run.root / place, StoreConfig(integrity=GUARD))) as store:
                save_all(store, [payload.image(layout, step) for step in STEPS])
        _records(run)


def _records(run: RunLayout) -> None:
    """The documents of a run that has just started."""
    write_run_config(run, build({}))
    write_json(
        run.supervisor,
        encode(
            SupervisorRecord(
                SCHEMA_VERSION, RUN_ID, 9, "running", 0, (), (SupervisorSession(1.0, 1.0, "boot"),)
            )
        ),
    )
    write_json(run.failures, [])
    run.fired.mkdir()
    folder = run.attempt(0).folder
    folder.mkdir(parents=True)
    for path in (run.attempt(0).rank(0), run.attempt(0).checkpoints):
        path.write_bytes(b"")


def _gone(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def _link_in(path: Path, fixture: RunFixture) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _sparse(path: Path, fixture: RunFixture) -> None:
    path.touch()
    os.truncate(path, 2**40)


FILE_TYPES: dict[str, Callable[[Path, RunFixture], None]] = {
    "a FIFO": lambda path, fixture: os.mkfifo(_gone(path)),
    "a socket": lambda path, fixture: put_socket(_gone(path)),
    "an endless device": lambda path, fixture: put_zero_device(_gone(path)),
    "a folder": lambda path, fixture: _gone(path).mkdir(),
    "a link out": lambda path, fixture: _gone(path).symlink_to(fixture.outside / "secret"),
    "a link in": _link_in,
    "a link to itself": lambda path, fixture: _gone(path).symlink_to(path.name),
    "a hard link out": lambda path, fixture: os.link(fixture.outside / "secret", _gone(path)),
    "a sparse terabyte": _sparse,
}


def made_into(kind: str, file: str) -> Act:
    """Replace `file`, relative to the run, by something else."""

    return lambda fixture: FILE_TYPES[kind](fixture.root / file, fixture)


@dataclass(frozen=True)
class MaliciousInput:
    """`look`: which of the `readers` reads the fixture afterwards. `refusers`: what may reject it:
    layers of the integrity check, or names of errors.

    `words`: the command line, if a command reads it; `{run}` and `{outside}` stand for the
    fixture's folders. `during`: what the attacker does before the reader's call number `at`.
    """

    group: str
    name: str
    look: str
    refusers: tuple[str, ...]
    act: Act = lambda fixture: None
    words: tuple[str, ...] = ()
    during: Callable[[RunFixture], None] | None = None
    at: int = -1

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}"
