"""A step in the format of another checkpointer: a folder with its files and ECRL's metadata about
them. Torch-free.

The metadata has what the checkpointer need not know: the run, the attempt, where training stands,
which tensors there are. What the checkpointer's own files hold only the checkpointer can read:
nothing here vouches for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse_canonical
from ecrl_cli.checkpoint.format.image import DTYPES, TensorSpec
from ecrl_cli.checkpoint.format.names import STEP_METADATA, STEP_NAME
from ecrl_cli.checkpoint.format.train_document import check_train_document
from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.safe_read import read_small_in

VERSION = 1
_MOST = 64 * 2**20
_KEYS = {"schema_version", "run_id", "attempt", "global_step", "checkpointer", "tensors", "train"}


@dataclass(frozen=True)
class StepMetadata:
    """`train`: the content of train.json, with the line chain of every rank, so that no two saves
    have the same metadata.
    """

    run_id: str
    attempt: int
    global_step: int
    checkpointer: str
    tensors: tuple[TensorSpec, ...]
    train: dict[str, Any]

    def encoded(self) -> bytes:
        document = {
            "schema_version": VERSION,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "global_step": self.global_step,
            "checkpointer": self.checkpointer,
            "tensors": [[spec.name, spec.dtype, list(spec.shape)] for spec in self.tensors],
            "train": self.train,
        }
        return canonical_json(document)

    @property
    def sha256(self) -> str:
        """Digest of the metadata's bytes. It names the checkpoint in the records, in the place of
        the commit digest of ECRL's own format.
        """
        return hashlib.sha256(self.encoded()).hexdigest()


def read_step_metadata(fs: Fs, folder: Path, *, trust_owner: bool = True) -> StepMetadata:
    """The metadata in `folder`; StorageError, RefusedFile or ValueError if it cannot be read or is
    none.
    """
    found = parse_canonical(
        read_small_in(fs, folder, STEP_METADATA, _MOST, trust_owner=trust_owner)
    )
    if not isinstance(found, dict) or found.keys() != _KEYS or found["schema_version"] != VERSION:
        raise ValueError(f"{STEP_METADATA} is no metadata of a step")
    if (
        type(found["attempt"]) is not int
        or type(found["global_step"]) is not int
        or not isinstance(found["run_id"], str)
    ):
        raise ValueError(f"{STEP_METADATA} names no run, attempt and step")
    if not isinstance(found["tensors"], list) or not all(
        _is_spec(each) for each in found["tensors"]
    ):
        raise ValueError(f"{STEP_METADATA} has no list of tensors")
    check_train_document(canonical_json(found["train"]))
    tensors = tuple(
        TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in found["tensors"]
    )
    return StepMetadata(
        found["run_id"],
        found["attempt"],
        found["global_step"],
        str(found["checkpointer"]),
        tensors,
        found["train"],
    )


def _is_spec(value: Any) -> bool:
    """Whether `value` is [name, dtype, shape]."""
    if not isinstance(value, list) or [type(each) for each in value] != [str, str, list]:
        return False
    return value[1] in DTYPES and all(type(size) is int and size >= 0 for size in value[2])


def check_step(
    fs: Fs, folder: Path, step: int, metadata: StepMetadata, kind: CheckpointerKind
) -> None:
    """ValueError, or StorageError of a file that is not there, unless the metadata is of this step
    and checkpointer and all has been written.
    """
    if metadata.global_step != step:
        raise ValueError(
            f"{STEP_METADATA} says step {metadata.global_step} under the name of step {step}"
        )
    if metadata.checkpointer != kind.name:
        raise ValueError(
            f"{STEP_METADATA} says that {metadata.checkpointer[:80]} wrote it, the run saves with"
            f" {kind.name}"
        )
    fs.stat(folder / kind.committed)


def size_of(folder: Path) -> int:
    """Bytes of all files that the checkpointer wrote into the folder of a step."""
    return sum(path.stat().st_size for path in written(folder))


def written(folder: Path) -> Iterator[Path]:
    """The checkpointer's own files in the folder of a step, in order."""
    return (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / STEP_METADATA
    )


def step_in(path: Path) -> int:
    """The step in the name of a step's folder; -1 if it is no such name."""
    match = STEP_NAME.match(path.name)
    return int(match[1]) if match and match[2] is None else -1
