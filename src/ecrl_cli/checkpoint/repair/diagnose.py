"""Diagnoses a rejected checkpoint: which file, chunk, byte and bit is damaged, as far as its
records tell. Changes nothing, never raises.

The records are repaired first (in memory), each by its hash: COMMIT by its own, MANIFEST by the one
in COMMIT. Without a repairable manifest nothing is known about the parts.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.manifest import MAX_COMMIT, MAX_MANIFEST, Manifest, PartEntry
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STEP_NAME,
    TRAIN,
)
from ecrl_cli.checkpoint.repair.damage import NAMED, BitFlip, FileDamage, find_damage
from ecrl_cli.checkpoint.repair.record_repair import (
    Form,
    RepairedRecord,
    rebuild_entry,
    repair_commit,
    repair_manifest,
    repair_sidecar,
)
from ecrl_cli.checkpoint.store.atomic_install import sidecar_of
from ecrl_cli.checkpoint.store.integrity import (
    MAX_SIDECAR,
    MAX_TRAIN,
    CheckpointRejected,
    IntegrityConfig,
    IntegrityReport,
    layer,
)
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import FOLDER, Fs, PosixFs
from ecrl_cli.storage.safe_read import RefusedFile, open_regular, read_small

_PARTS = (MODEL, OPTIMIZER, RNG, TRAIN)


@dataclass(frozen=True)
class Source:
    """A file of the repaired copy: the first `bytes` bytes of the damaged one, with `flips`
    undone.
    """

    name: str
    bytes: int
    flips: tuple[BitFlip, ...] = ()


@dataclass
class Diagnosis:
    """All findings; `sources`: the files of a repaired copy."""

    findings: list[FileDamage] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    @property
    def repairable(self) -> bool:
        """Whether all damage is known to the bit. The integrity check still has to pass the
        repaired copy.
        """
        return bool(self.findings) and all(finding.repairable for finding in self.findings)


def diagnose(path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None) -> Diagnosis:
    """Find the damage in the checkpoint at `path`, which the integrity check rejected."""
    made, fs = Diagnosis(), fs or PosixFs()
    match = STEP_NAME.match(path.name)
    if match is None:
        return made
    with suppress(CheckpointRejected), layer("file"), ExitStack() as stack:
        folder = fs.open(path.parent if match[2] else path, FOLDER)
        stack.callback(fs.close, folder)
        search = _Search(fs, folder, config or IntegrityConfig(trust_owner=True), made)
        if match[2]:
            search.single(path.name)
        else:
            search.group(fs.listdir(path))
    return made


def line(report: IntegrityReport, diagnosis: Diagnosis | None) -> str:
    """The result of the integrity check and the findings, in one line."""
    if report.ok:
        return f"{report.path.name}: ok"
    texts = [f"refused by {report.layer}: {report.reason}"]
    for finding in diagnosis.findings if diagnosis else ():
        if finding.text not in report.reason:
            named = finding.file in report.reason or finding.file in finding.text
            texts.append(finding.text if named else f"{finding.file}: {finding.text}")
    said = f"{report.path.name}: {'; '.join(texts)}"
    return "".join(letter if letter.isprintable() else "?" for letter in said)


class _Search:
    """Examines one checkpoint's files in its open folder."""

    def __init__(self, fs: Fs, folder: int, config: IntegrityConfig, made: Diagnosis) -> None:
        self.fs, self.folder, self.config, self.made = fs, folder, config, made

    def group(self, names: list[str]) -> None:
        commit = self.record(COMMIT, MAX_COMMIT)
        mended = repair_commit(commit) if commit is not None else None
        self.found(COMMIT, mended, "self_sha256")
        manifest = self.record(MANIFEST, MAX_MANIFEST)
        if mended is None or mended.value is None or manifest is None:
            return
        text = repair_manifest(
            manifest,
            mended.value.manifest_sha256,
            lambda form: {name: self.remade(name, form) for name in _PARTS},
        )
        self.found(MANIFEST, text, "SHA-256 in COMMIT.json")
        if text.value is None:
            return
        if extra := sorted(set(names) - {COMMIT, MANIFEST, *_PARTS}):
            more = f", nor do {len(extra) - 1} others" if len(extra) > 1 else ""
            self.made.findings.append(
                FileDamage(
                    extra[0][:80],
                    f"does not belong{more}; a repaired copy goes without",
                    repairable=True,
                )
            )
        for name in _PARTS:
            if name in text.value.parts:
                self.part(name, text.value, MAX_TRAIN if name == TRAIN else self.config.max_bytes)

    def single(self, name: str) -> None:
        sidecar = sidecar_of(Path(name)).name
        data = self.record(sidecar, MAX_SIDECAR)
        if data is None:
            return
        mended = repair_sidecar(data, lambda form: {name: self.remade(name, form)})
        self.found(sidecar, mended, "hashes in it")
        if mended.value is not None and name in mended.value.parts:
            self.part(name, mended.value, self.config.max_bytes)

    def found(self, name: str, mended: RepairedRecord[Any] | None, oracle: str) -> None:
        """Add the finding and the source of a record; `oracle`: what its corrected bytes match."""
        if mended is None:
            return
        if mended.value is None:
            self.made.findings.append(FileDamage(name, "what changed in it cannot be told"))
            return
        if mended.flips:
            bits = ", ".join(f"byte {flip.offset} bit {flip.bit}" for flip in mended.flips[:NAMED])
            more = (
                f" and {len(mended.flips) - NAMED} more bits" if len(mended.flips) > NAMED else ""
            )
            text = f"{bits}{more} flipped; the corrected bytes match the {oracle}"
            self.made.findings.append(FileDamage(name, text, (), mended.flips, (), repairable=True))
        self.made.sources.append(Source(name, mended.bytes, mended.flips))

    def record(self, name: str, limit: int) -> bytes | None:
        """The bytes of a record; None, with a finding, if it cannot be read."""
        try:
            with self.opened(name) as (fd, size):
                return read_small(self.fs, fd, size, limit)
        except (StorageError, RefusedFile) as error:
            self.unreadable(name, error)
            return None

    def remade(self, name: str, form: Form) -> PartEntry:
        with self.opened(name) as (fd, size):
            return rebuild_entry(
                self.fs, fd, size, name, form, MAX_TRAIN if name == TRAIN else self.config.max_bytes
            )

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a file. StorageError or RefusedFile if it cannot be opened."""
        fd, size = open_regular(self.fs, self.folder, name, trust_owner=self.config.trust_owner)
        try:
            yield fd, size
        finally:
            self.fs.close(fd)

    def part(self, name: str, manifest: Manifest, limit: int) -> None:
        entry = manifest.parts[name]
        try:
            if entry.bytes > limit:
                raise RefusedFile(f"{entry.bytes} bytes, at most {limit} are read")
            with self.opened(name) as (fd, size):
                finding = find_damage(self.fs, fd, size, name, manifest)
        except (StorageError, RefusedFile) as error:
            self.unreadable(name, error)
            return
        if finding is not None:
            self.made.findings.append(finding)
        self.made.sources.append(Source(name, entry.bytes, finding.flips if finding else ()))

    def unreadable(self, name: str, error: StorageError | RefusedFile) -> None:
        text = (
            error.fact if isinstance(error, StorageError) else str(error).removeprefix(f"{name} ")
        )
        missing = isinstance(error, StorageError) and error.errno == errno.ENOENT
        self.made.findings.append(FileDamage(name, f"{name} is missing" if missing else text[:200]))
