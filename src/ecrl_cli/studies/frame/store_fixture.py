"""Fixtures that the studies of the store share: small checkpoints without torch, what they must
hold, forged records, special files, and what is left over.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import chunk_sums, hexdigest, leaves, root
from ecrl_cli.checkpoint.format.image import (
    CheckpointImage,
    CheckpointMeta,
    ImagePlan,
    PartPlace,
    TensorPlace,
    TensorSpec,
    plan_image,
)
from ecrl_cli.checkpoint.format.manifest import Components, PartEntry, TensorEntry
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    DIGEST,
    FORMAT_VERSION,
    MANIFEST,
    STAGE_PREFIX,
    TRAIN,
    TRASH_PREFIX,
    step_name,
)
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import (
    RUN_ID,
    image_components,
    synthetic_image,
    synthetic_plan,
)
from ecrl_cli.config.codec import decode
from ecrl_cli.linux.unix_socket import bind
from ecrl_cli.storage.writing import TEMPORARY, WriteMode

GUARD = IntegrityConfig(run_id=RUN_ID)
_MODES = {
    "unsafe": WriteMode(sync_files=False, atomic=False, sync_directories=False),
    "atomic_nodirsync": WriteMode(sync_directories=False),
    "atomic_dirsync": WriteMode(),
}


def write_mode(name: str) -> WriteMode:
    return _MODES[name]


def store_config(mode: str, keep: int = 2) -> StoreConfig:
    """A store in the write mode of that name, whose guard knows the run of the images here."""
    return StoreConfig(write_mode(mode), keep, GUARD)


@dataclass(frozen=True)
class Payload:
    """The content of a study's checkpoints: a function of the seed, the step, the layout (`group`
    or `single`) and these sizes.
    """

    seed: int
    model_bytes: int
    optimizer_bytes: int

    def plan(self, layout: str) -> ImagePlan:
        return synthetic_plan(self.model_bytes, self.optimizer_bytes, single=layout == "single")

    def image(self, layout: str, step: int) -> CheckpointImage:
        """The snapshot of `step`; the same object while it is cached, so never to be changed."""
        return _image(self, layout, step)

    def content(self, layout: str, step: int) -> Components:
        """The digests that a manifest of `step` must name."""
        return _content(self, layout, step)


def save_all(store: CheckpointStore, images: Iterable[CheckpointImage]) -> None:
    """Save `images` in attempt 0, as a run does."""
    store.claim(0)
    for image in images:
        store.update_pointers_and_retire(store.save(image, 0), image)


class Template:
    """Folders that `make` fills, each under its name: made once and copied for each trial."""

    def __init__(self, folder: Path, make: Callable[[str, Path], None]) -> None:
        self._folder, self._make = folder, make

    @contextmanager
    def copied(self, name: str, target: Path) -> Iterator[Path]:
        """A fresh copy at `target`, removed on exit."""
        made = self._folder / name
        if not made.exists():
            made.mkdir(parents=True)
            self._make(name, made)
        shutil.copytree(made, target, symlinks=True)
        try:
            yield target
        finally:
            shutil.rmtree(target)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@lru_cache(256)
def _image(payload: Payload, layout: str, step: int) -> CheckpointImage:
    return synthetic_image(payload.seed, step, payload.plan(layout))


@lru_cache(4096)
def _content(payload: Payload, layout: str, step: int) -> Components:
    return image_components(_image(payload, layout, step))


def image_from(
    parts: Mapping[str, Sequence[TensorSpec]],
    fill: Callable[[TensorPlace], bytes],
    stamp: CheckpointMeta,
    train: Mapping[str, Any],
) -> CheckpointImage:
    """A snapshot with these tensors, each with the bytes from `fill`, in order, and this
    train.json. One part named `all`: the layout `single`.
    """
    plan = plan_image({name: list(specs) for name, specs in parts.items()})
    memory = memoryview(mmap.mmap(-1, plan.nbytes))
    for offset, header in plan.headers:
        memory[offset : offset + len(header)] = header
    for place in plan.tensors:
        memory[place.offset : place.offset + place.spec.nbytes] = fill(place)
    places = plan.parts
    if "all" in parts:
        places = (
            PartPlace(
                step_name(stamp.global_step) + ".safetensors",
                places[0].offset,
                places[0].nbytes,
                places[0].tensors,
            ),
        )
    return CheckpointImage(stamp, memory, places, {TRAIN: canonical_json(train)})


def in_one_part(
    parts: Mapping[str, Sequence[TensorSpec]], *, single: bool
) -> Mapping[str, Sequence[TensorSpec]]:
    """`parts`, or all their tensors in the one part of the layout `single`."""
    return {"all": [spec for specs in parts.values() for spec in specs]} if single else parts


def files_of(image: CheckpointImage) -> dict[str, bytes]:
    """The exact bytes of a checkpoint's files by name, without its records; in the layout `single`
    the documents are in a record, too.
    """
    files = {
        part.name: bytes(image.memory[part.offset : part.offset + part.nbytes])
        for part in image.parts
    }
    return files if image.parts[0].name.startswith("step_") else files | image.documents


def files_under(root: Path) -> dict[str, bytes]:
    """The files below `root` by relative path, without links."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def recovered_step(store: CheckpointStore) -> int:
    """The step that recovery finds; 0 if none."""
    report = store.newest_valid().report
    return report.global_step or 0 if report else 0


def litter(names: Iterable[str]) -> list[str]:
    """The names that belong to stages, trash and temporary files."""
    return [name for name in names if name.startswith((STAGE_PREFIX, TRASH_PREFIX, TEMPORARY))]


# Forged records: what an attacker writes who knows the format and has no key.


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sealed(commit: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A commit record with `changes` and its own hash made to agree."""
    body = {key: value for key, value in (dict(commit) | changes).items() if key != "self_sha256"}
    return body | {"self_sha256": digest(body)}


def part_digest(name: str, entry: PartEntry, data: bytes) -> str:
    """The digest of a part with these bytes, in today's format version. ValueError if it cannot
    have the tensors of `entry`.
    """
    tree = leaves(name, entry, FORMAT_VERSION)
    return root(
        DIGEST, [hexdigest(DIGEST, data[leaf.start : leaf.end], leaf.prefix) for leaf in tree]
    )


def part_entry(name: str, data: bytes, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest's entry for the part `name` with these bytes, except for `tensors`, which are as
    in the manifest.
    """
    sums, entries = (
        chunk_sums(data),
        {tensor: decode(TensorEntry, entry) for tensor, entry in tensors.items()},
    )
    try:
        found = part_digest(name, PartEntry(len(data), "", sums, entries), data)
    except ValueError:  # no part with these tensors: the digest is of no consequence
        found = hexdigest(DIGEST, data)
    return {"bytes": len(data), "digest": found, "chunk_sums": list(sums)}


def put_commit(group: Path, **changes: Any) -> None:
    """Change the COMMIT of the checkpoint folder `group`, with its own hash made to agree."""
    (group / COMMIT).write_bytes(
        canonical_json(sealed(json.loads((group / COMMIT).read_bytes()), **changes))
    )


def put_manifest(group: Path, data: bytes) -> None:
    """Write these bytes as MANIFEST, and a COMMIT that names them."""
    (group / MANIFEST).write_bytes(data)
    put_commit(group, manifest_sha256=sha256(data))


def forge(
    group: Path, edit: Callable[[dict[str, Any]], object], data: Mapping[str, bytes] | None = None
) -> None:
    """Write the parts `data`, and apply `edit` to the manifest, with every record made to agree."""
    manifest = json.loads((group / MANIFEST).read_bytes())
    for name, content in (data or {}).items():
        (group / name).write_bytes(content)
    edit(manifest)
    for name, content in (data or {}).items():
        manifest["parts"][name] |= part_entry(name, content, manifest["parts"][name]["tensors"])
    put_manifest(group, canonical_json(manifest))


def put_socket(path: Path) -> None:
    bind(path).close()


def put_zero_device(path: Path) -> None:
    """A node of /dev/zero: reading it never ends. Needs root."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
