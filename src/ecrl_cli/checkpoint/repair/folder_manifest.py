"""A manifest of digests over a folder of files that ECRL did not write, and what has changed since it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest, parse
from ecrl_cli.checkpoint.format.names import DIGEST
from ecrl_cli.checkpoint.repair.stranger_files import FileFacts, TensorFacts, examine
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.errors import ConfigError, EcrlError, EvidenceMissing, StorageError, plural
from ecrl_cli.storage.files import write_whole
from ecrl_cli.storage.fs import FOLDER, Fs, PosixFs
from ecrl_cli.storage.safe_read import MOST_DEEP, RefusedFile, read_small_in

FOLDER_MANIFEST = "ecrl-manifest.json"
SCHEMA_VERSION = 1
MAX_FOLDER_MANIFEST = 256 * 2**20
MOST_NAMED = 5  # tensors of a changed file

SAME, CHANGED, MISSING, NEW, DAMAGED = "same", "changed", "missing", "new", "damaged"


@dataclass(frozen=True)
class FolderManifest:
    """ecrl-manifest.json: the facts of each file by its path in the folder."""

    schema_version: int
    digest: str
    files: dict[str, FileFacts]


@dataclass(frozen=True)
class FileChange:
    """What became of a file: `status` is same, changed, missing, new or damaged; `said`: how."""

    path: str
    status: str
    said: str = ""


def folder_manifest(folder: Path, max_bytes: int, algorithm: str = DIGEST) -> FolderManifest:
    """The manifest of `folder` as it is now; StorageError if it cannot be listed."""
    fs = PosixFs()
    return FolderManifest(SCHEMA_VERSION, algorithm, dict(sorted(_files(fs, folder, "", algorithm, max_bytes, MOST_DEEP))))


def write_manifest(folder: Path, manifest: FolderManifest) -> Path:
    """Writes it into `folder`, durably; StorageError if that cannot be done."""
    body = encode(manifest)
    path = folder / FOLDER_MANIFEST
    try:
        write_whole(path, canonical_json(body | {"self_sha256": digest(body)}) + b"\n")
    except OSError as error:
        raise StorageError.of("manifest", path, error) from error
    return path


def read_manifest(folder: Path) -> FolderManifest | None:
    """The manifest in `folder`, None if there is none; EvidenceMissing if it is damaged."""
    if not os.path.lexists(folder / FOLDER_MANIFEST):
        return None
    try:
        value = parse(read_small_in(PosixFs(), folder, FOLDER_MANIFEST, MAX_FOLDER_MANIFEST))
        if not isinstance(value, dict) or value.pop("self_sha256", None) != digest(value):
            raise ValueError("its own digest does not match")
        found = decode(FolderManifest, value)
        if found.schema_version != SCHEMA_VERSION or found.digest not in DIGESTS:
            raise ValueError(f"schema version {found.schema_version}, digest {found.digest[:20]}")
    except (RefusedFile, ValueError, TypeError, RecursionError, EcrlError) as error:
        text = error.fact if isinstance(error, EcrlError) else str(error)
        raise EvidenceMissing(FOLDER_MANIFEST, f"cannot vouch for anything ({text[:160]})", "restore it, or remove it to write another") from error
    return found


def changes(before: FolderManifest, now: FolderManifest) -> list[FileChange]:
    """Every file on either side, by path."""
    return [_change(path, before.files.get(path), now.files.get(path)) for path in sorted(before.files.keys() | now.files.keys())]


def _change(path: str, before: FileFacts | None, now: FileFacts | None) -> FileChange:
    if before is None:
        return FileChange(path, NEW, "not in the manifest")
    if now is None:
        return FileChange(path, MISSING, "is gone")
    if (before.bytes, before.digest) == (now.bytes, now.digest):
        return FileChange(path, SAME)
    if now.problem and not before.problem:
        return FileChange(path, DAMAGED, f"cannot be loaded any more ({now.problem})")
    return FileChange(path, CHANGED, _said(before, now))


def _said(before: FileFacts, now: FileFacts) -> str:
    """What changed in a file: size, the tensors that came and went, those of another form, those of other values."""
    size = f"{before.bytes} bytes, now {now.bytes}" if before.bytes != now.bytes else ""
    if not before.tensors and not now.tensors:
        return size or "other bytes of the same number"
    both = [name for name in before.tensors if name in now.tensors]
    gone, came = ([name for name in one if name not in other] for one, other in ((before.tensors, now.tensors), (now.tensors, before.tensors)))
    formed = [name for name in both if _form(before.tensors[name]) != _form(now.tensors[name])]
    valued = [name for name in both if name not in formed and before.tensors[name].digest != now.tensors[name].digest]
    broken = [name for name in valued if before.tensors[name].finite and not now.tensors[name].finite]
    parts = [f"{what} {_named(names)}" for what, names in (("lacks", gone), ("has new", came), ("another dtype or shape:", formed)) if names]
    parts += [f"other values in {_named(valued)}"] if valued else []
    parts += [f"NaN or infinity in {_named(broken)}"] if broken else []
    same = len(both) - len(formed) - len(valued)
    kept = f"{plural(same, 'tensor is', 'tensors are')} the same" if same else ""
    if not parts:
        return f"every tensor is the same ({len(both)}), the bytes around them are not"
    return "; ".join(part for part in (*parts, kept) if part)


def _form(tensor: TensorFacts) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tensor.shape


def _named(names: list[str]) -> str:
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(repr(name[:80]) for name in sorted(names)[:MOST_NAMED]) + rest


def _files(fs: Fs, folder: Path, prefix: str, algorithm: str, max_bytes: int, deep: int) -> Iterator[tuple[str, FileFacts]]:
    """Every file below `folder`; links and what is no regular file are kept with the reason, and not followed."""
    if not deep:
        raise ConfigError(str(folder), f"has more than {MOST_DEEP} levels of folders", "name the folders that hold the files")
    home = fs.open(folder, FOLDER)
    try:
        for name in fs.listdir(folder):
            if not prefix and name == FOLDER_MANIFEST:
                continue
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                yield from _files(fs, path, f"{prefix}{name}/", algorithm, max_bytes, deep - 1)
                continue
            try:
                yield f"{prefix}{name}", examine(fs, home, name, algorithm, max_bytes)
            except (RefusedFile, StorageError) as error:
                text = error.fact if isinstance(error, StorageError) else str(error)
                yield f"{prefix}{name}", FileFacts(0, "", problem=text[:160])
    finally:
        fs.close(home)
