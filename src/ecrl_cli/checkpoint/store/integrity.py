"""The integrity check: whether a checkpoint may be loaded. Torch-free; never follows a link, never
unpickles, never raises.

It checks the layers in the order of `names.LAYERS` and parses nothing before its hash matches,
except the commit record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse, parse_canonical
from ecrl_cli.checkpoint.format.hashing import (
    TITLES,
    TREE_FILES,
    Leaf,
    batches,
    hexdigest,
    leaves,
    new_hash,
    root,
    tensor_prefix,
    workers,
)
from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import (
    MAX_COMMIT,
    MAX_MANIFEST,
    Commit,
    Manifest,
    PartEntry,
    read_commit,
    read_manifest,
)
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STEP_NAME,
    TRAIN,
    must_be_finite,
)
from ecrl_cli.checkpoint.format.tensor_table import TENSOR_FILES, all_finite, tensor_table
from ecrl_cli.checkpoint.format.train_document import check_place, check_train_document
from ecrl_cli.checkpoint.store.step_metadata import (
    StepMetadata,
    check_step,
    read_step_metadata,
    step_in,
)
from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import FOLDER, Fs, PosixFs
from ecrl_cli.storage.safe_read import RefusedFile, fill, open_regular, pieces, read_small

T = TypeVar("T")

MAX_TRAIN = 16 * 2**20
_WORTH_THREADS = 2**20  # bytes; below that, starting threads takes longer than hashing
MAX_SIDECAR = MAX_COMMIT + MAX_MANIFEST + 2 * MAX_TRAIN


@dataclass(frozen=True)
class IntegrityConfig:
    """`run_id`: the run that it must belong to (empty: any). `contents` False: check names, sizes
    and records only.

    `hmac_key`: the key of the commit record's required MAC (empty: a MAC is ignored). `finite`:
    checkpoint.finite, which tensors may hold neither NaN nor infinity. `restorable`: train.json
    must have all fields that a rank restores from, of the manifest's step and window.
    `checkpointer`: whose format it has, if not ECRL's: then only the metadata beside its files is
    checked, and that they are complete by name.
    """

    run_id: str = ""
    max_bytes: int = 64 * 2**30
    trust_owner: bool = False
    contents: bool = True
    hmac_key: bytes = field(default=b"", repr=False)
    finite: str = "all"
    restorable: bool = False
    checkpointer: CheckpointerKind | None = None


@dataclass(frozen=True)
class IntegrityReport:
    """`layer` and `reason`: why a checkpoint was rejected; the other fields are set as far as they
    are known.

    `unread`: the file system's error if it rejected the checkpoint, which need not mean damage.
    `train`: train.json. `commit`: the commit record of one of ECRL's own.
    """

    path: Path
    ok: bool
    layer: str = ""
    reason: str = ""
    global_step: int | None = None
    attempt: int | None = None
    run_id: str | None = None
    commit_sha256: str | None = None
    manifest: Manifest | None = None
    unread: StorageError | None = field(default=None, compare=False)
    train: bytes = field(default=b"", repr=False)
    commit: Commit | None = field(default=None, repr=False)


class CheckpointRejected(Exception):
    """The checkpoint fails at `layer`, for `reason`."""

    def __init__(self, layer: str, reason: str) -> None:
        self.layer, self.reason = layer, reason
        super().__init__(f"{layer}: {reason}")


@dataclass
class OpenCheckpoint:
    """A checkpoint whose records have been read and checked; `files`: descriptors of its parts,
    closed by `opened`.
    """

    commit: Commit | None = None
    manifest: Manifest | None = None
    files: dict[str, int] = field(default_factory=dict)
    train: bytes = b""


def verify_checkpoint(
    path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None, *, once: bool = False
) -> IntegrityReport:
    """Check the checkpoint at `path` (a group's folder or a single file) layer by layer, including
    every tensor's digest.

    `once`: hash no byte twice, for scrubs of many checkpoints and for restarts. A part that is one
    leaf (`hashing`: a `.pt` file, format version 1) then vouches for its tensors: bytes that match
    a MANIFEST that matches its COMMIT are those that the writer hashed tensor by tensor. (Only
    without `once` is a writer detected whose memory changed between the two.)
    """
    found = OpenCheckpoint()
    config, fs = config or IntegrityConfig(), fs or PosixFs()
    if config.checkpointer:
        return examine_step(path, step_in(path), config, fs)
    try:
        with opened(path, config, fs, found):
            if config.contents:
                _check_contents(fs, found, config, once)
    except CheckpointRejected as refused:
        return report_of(path, found, refused)
    return report_of(path, found)


def examine_step(path: Path, step: int, config: IntegrityConfig, fs: Fs) -> IntegrityReport:
    """Check the folder `path` of a `step` in the format of `config.checkpointer`: the metadata, and
    that the last file is there.
    """
    assert config.checkpointer is not None
    metadata: StepMetadata | None = None
    refused: CheckpointRejected | None = None
    try:
        with layer("commit"):
            metadata = read_step_metadata(fs, path, trust_owner=config.trust_owner)
            if config.run_id and metadata.run_id != config.run_id:
                raise ValueError(f"belongs to run {metadata.run_id[:8]}")
        with layer("parts"):
            check_step(fs, path, step, metadata, config.checkpointer)
    except CheckpointRejected as error:
        refused = error
    if metadata is None:
        return report_of(path, OpenCheckpoint(), refused)
    report = report_of(path, OpenCheckpoint(train=canonical_json(metadata.train)), refused)
    return replace(
        report,
        global_step=metadata.global_step,
        attempt=metadata.attempt,
        run_id=metadata.run_id,
        commit_sha256=metadata.sha256,
    )


@contextmanager
def opened(
    path: Path, config: IntegrityConfig, fs: Fs, found: OpenCheckpoint
) -> Iterator[OpenCheckpoint]:
    """Open the files of a checkpoint and check records and sizes; CheckpointRejected, also for
    errors of the file system.
    """
    with ExitStack() as stack, layer("file"):
        match = STEP_NAME.match(path.name)
        if match is None:
            raise CheckpointRejected("file", "not the name of a checkpoint")
        single = match[2] is not None
        folder = fs.open(path.parent if single else path, FOLDER)
        stack.callback(fs.close, folder)
        reader = _Reader(fs, folder, config, found, stack)
        if single:
            reader.read_single(path.name)
        else:
            reader.read_group(fs.listdir(path))
        reader.expect_step(int(match[1]), path.name)
        yield found


@contextmanager
def layer(name: str) -> Iterator[None]:
    """Turn errors inside into CheckpointRejected by layer `name`: a damaged checkpoint must never
    crash the check.
    """
    try:
        yield
    except CheckpointRejected:
        raise
    except StorageError as error:
        raise CheckpointRejected(name, error.fact) from error
    except (RefusedFile, ValueError, RecursionError, OverflowError) as error:
        raise CheckpointRejected(name, str(error)[:200] or type(error).__name__) from error
    except MemoryError as error:
        raise CheckpointRejected(name, "does not fit into memory") from error


class _Reader:
    """Reads the records of one checkpoint and opens its parts."""

    def __init__(
        self, fs: Fs, folder: int, config: IntegrityConfig, found: OpenCheckpoint, stack: ExitStack
    ) -> None:
        self.fs, self.folder, self.config, self.found, self.stack = fs, folder, config, found, stack

    def read_group(self, names: list[str]) -> None:
        """Read COMMIT and MANIFEST, then open the parts of a group: exactly the four of the format,
        and no other file.
        """
        with layer("commit"):
            self.take_commit(self.small(COMMIT, MAX_COMMIT))
        with layer("manifest"):
            self.take_manifest(self.small(MANIFEST, MAX_MANIFEST))
        with layer("parts"):
            expected = {MODEL, OPTIMIZER, RNG, TRAIN}
            self.expect(set(self.manifest.parts), expected, "the manifest")
            self.expect(set(names) - {COMMIT, MANIFEST}, expected, "the folder")
            self.open_parts(sorted(expected))
        with layer("hash"):
            self.found.train = self.hashed_small(TRAIN)

    def read_single(self, name: str) -> None:
        """Read the sidecar (commit, manifest and the text of train.json in one canonical document),
        then open the data file.
        """
        with layer("commit"):
            value = parse_canonical(self.small(name.partition(".")[0] + ".json", MAX_SIDECAR))
            if (
                not isinstance(value, dict)
                or value.keys() != {"commit", "manifest", "train"}
                or not isinstance(value["train"], str)
            ):
                raise ValueError("the sidecar does not hold commit, manifest and train")
            self.take_commit(canonical_json(value["commit"]))
        with layer("manifest"):
            self.take_manifest(canonical_json(value["manifest"]))
        with layer("parts"):
            self.expect(set(self.manifest.parts), {name, TRAIN}, "the manifest")
            self.open_parts([name])
        with layer("hash"):
            self.found.train = value["train"].encode()
            expect_digest(TRAIN, hexdigest(self.manifest.digest, self.found.train), self.manifest)

    @property
    def manifest(self) -> Manifest:
        assert self.found.manifest is not None
        return self.found.manifest

    def small(self, name: str, limit: int) -> bytes:
        fd, size = open_regular(self.fs, self.folder, name, trust_owner=self.config.trust_owner)
        try:
            return read_small(self.fs, fd, size, limit)
        finally:
            self.fs.close(fd)

    def hashed_small(self, name: str) -> bytes:
        data = read_small(
            self.fs, self.found.files[name], self.manifest.parts[name].bytes, MAX_TRAIN
        )
        expect_digest(name, hexdigest(self.manifest.digest, data), self.manifest)
        return data

    def take_commit(self, data: bytes) -> None:
        self.found.commit = commit = read_commit(data, self.config.hmac_key)
        if self.config.run_id and commit.run_id != self.config.run_id:
            raise ValueError(f"belongs to run {commit.run_id[:8]}")

    def take_manifest(self, data: bytes) -> None:
        commit = self.found.commit
        assert commit is not None
        if hashlib.sha256(data).hexdigest() != commit.manifest_sha256:
            raise ValueError("does not match the commit")
        manifest = read_manifest(data)
        if (manifest.run_id, manifest.attempt, manifest.global_step) != (
            commit.run_id,
            commit.attempt,
            commit.global_step,
        ):
            raise ValueError("says another run, attempt or step than the commit")
        self.found.manifest = manifest

    def expect(self, found: set[str], expected: set[str], where: str) -> None:
        if missing := sorted(expected - found):
            raise ValueError(f"{where} lacks {missing[0]}")
        if extra := sorted(found - expected):
            raise ValueError(f"{where} has {extra[0][:80]!r}, which does not belong")

    def expect_step(self, step: int, name: str) -> None:
        commit = self.found.commit
        assert commit is not None
        if commit.global_step != step:
            raise CheckpointRejected(
                "commit", f"says step {commit.global_step} under the name {name}"
            )

    def open_parts(self, names: list[str]) -> None:
        total = sum(part.bytes for part in self.manifest.parts.values())
        if total > self.config.max_bytes:
            raise ValueError(f"{total} bytes, at most {self.config.max_bytes} are read")
        for name in names:
            fd, size = open_regular(self.fs, self.folder, name, trust_owner=self.config.trust_owner)
            self.stack.callback(self.fs.close, fd)
            if size != self.manifest.parts[name].bytes:
                raise ValueError(
                    f"{name} has {size} bytes, the manifest says {self.manifest.parts[name].bytes}"
                )
            self.found.files[name] = fd


def _check_contents(fs: Fs, found: OpenCheckpoint, config: IntegrityConfig, once: bool) -> None:
    """Hash every part, then check headers and tensors, in parallel threads unless the checkpoint is
    small.
    """
    manifest = found.manifest
    assert manifest is not None
    small = sum(entry.bytes for entry in manifest.parts.values()) < _WORTH_THREADS
    with nullcontext() if small else ThreadPoolExecutor(workers()) as pool:
        hashed = _hash_parts(fs, found, manifest, config.finite, pool)
        with layer("schema"):
            if config.restorable:
                check_place(check_train_document(found.train), manifest)
            else:
                parse(found.train)
        whole: list[tuple[int, PartEntry, TensorPlace]] = []
        for name, fd in found.files.items():
            if name.endswith(TENSOR_FILES):
                entry, known = manifest.parts[name], hashed[name]
                places = tensor_places(fs, name, fd, entry, found.train)
                if known is None:
                    whole += [(fd, entry, place) for place in places]
                else:
                    expect_places(name, places, known)
                    _check_leaves(entry, known)
        groups = batches(whole, [place.spec.nbytes for _, _, place in whole])
        _all(
            pool,
            [
                partial(_check_tensors, fs, group, manifest.digest, config.finite, once)
                for group in groups
            ],
        )


# the digest of each tensor's bytes, and whether they are finite where they must be
Hashed = dict[TensorPlace, tuple[str, bool]]


def _hash_parts(
    fs: Fs, found: OpenCheckpoint, manifest: Manifest, finite: str, pool: ThreadPoolExecutor | None
) -> dict[str, Hashed | None]:
    """Check the digest of each part. Returns what is known of its tensors by then; None for a part
    that is one leaf.
    """
    trees: dict[str, tuple[Leaf, ...]] = {}
    # train.json was hashed as it was read
    for name in (part for part in found.files if part != TRAIN):
        with layer("schema"):
            trees[name] = leaves(name, manifest.parts[name], manifest.schema_version)
    jobs = [
        (name, batch)
        for name, tree in trees.items()
        for batch in batches(tree, [leaf.nbytes for leaf in tree])
    ]
    results = _all(
        pool,
        [
            partial(_hash_leaves, fs, found.files[name], batch, manifest.digest, finite)
            for name, batch in jobs
        ],
    )
    known: dict[str, Hashed | None] = {}
    for name, tree in trees.items():
        digests = [
            each
            for (part, _), result in zip(jobs, results, strict=True)
            if part == name
            for each in result
        ]
        _expect_root(name, manifest, [digest for digest, _ in digests])
        tensors = {leaf.place: each for leaf, each in zip(tree, digests, strict=True) if leaf.place}
        known[name] = tensors if manifest.schema_version > 1 and name.endswith(TREE_FILES) else None
    return known


def _hash_leaves(
    fs: Fs, fd: int, batch: list[Leaf], digest: str, finite: str
) -> list[tuple[str, bool]]:
    found = []
    with layer("hash"):
        for leaf in batch:
            state, sound = new_hash(digest), True
            state.update(leaf.prefix)
            looked_at = leaf.place is not None and must_be_finite(leaf.place.spec.name, finite)
            for piece in pieces(fs, fd, leaf.start, leaf.end):
                state.update(piece)
                sound = sound and (
                    not looked_at or leaf.place is None or all_finite(leaf.place.spec.dtype, piece)
                )
            found.append((state.hexdigest(), sound))
    return found


def _expect_root(name: str, manifest: Manifest, found: list[str]) -> None:
    with layer("hash"):
        expect_digest(name, root(manifest.digest, found), manifest)


def expect_places(name: str, places: Iterable[TensorPlace], hashed: Iterable[TensorPlace]) -> None:
    """The header, which agrees with the manifest, must also put each tensor where it was hashed:
    CheckpointRejected otherwise.
    """
    with layer("schema"):
        if set(places) != set(hashed):  # sets: two empty tensors lie at one place, in either order
            raise ValueError(f"{name}: the tensors do not lie in the order of the format")


def _check_leaves(entry: PartEntry, known: Hashed) -> None:
    for place, (digest, _) in known.items():
        expect_tensor(place, digest, entry)
    for place, (_, sound) in known.items():
        _expect_finite(place, sound)


def _all(pool: ThreadPoolExecutor | None, jobs: Sequence[Callable[[], T]]) -> list[T]:
    return (
        [result() for result in [pool.submit(job).result for job in jobs]]
        if pool
        else [job() for job in jobs]
    )


def tensor_places(fs: Fs, name: str, fd: int, entry: PartEntry, train: bytes) -> list[TensorPlace]:
    """The tensors' places in a part whose hash has been checked; CheckpointRejected if the file's
    own table disagrees with the manifest.
    """
    with layer("schema"):
        return tensor_table(
            lambda offset, count: bytes(fill(fs, fd, memoryview(bytearray(count)), offset)),
            name,
            entry,
            train,
        )


def _check_tensors(
    fs: Fs, batch: list[tuple[int, PartEntry, TensorPlace]], digest: str, finite: str, once: bool
) -> None:
    """The tensors of parts that are one leaf."""
    for fd, entry, place in batch:
        spec = place.spec
        state, sound = new_hash(digest), True
        looked_at = must_be_finite(spec.name, finite)
        if once and not looked_at:
            continue
        state.update(tensor_prefix(spec.dtype, spec.shape))
        with layer("tensors"):
            for piece in pieces(fs, fd, place.offset, place.offset + spec.nbytes):
                if not once:
                    state.update(piece)
                sound = sound and (not looked_at or all_finite(spec.dtype, piece))
        if not once:
            expect_tensor(place, state.hexdigest(), entry)
        _expect_finite(place, sound)


def expect_tensor(place: TensorPlace, digest: str, entry: PartEntry) -> None:
    """CheckpointRejected unless `digest` is that of the tensor at `place`."""
    if digest != entry.tensors[place.spec.name].digest:
        raise CheckpointRejected("tensors", f"{place.spec.name[:80]} does not match its digest")


def _expect_finite(place: TensorPlace, sound: bool) -> None:
    if not sound:
        raise CheckpointRejected("finite", f"{place.spec.name[:80]} holds NaN or infinity")


def expect_digest(name: str, found: str, manifest: Manifest) -> None:
    """CheckpointRejected unless `found` is the digest of the part `name`."""
    if found != manifest.parts[name].digest:
        raise CheckpointRejected("hash", f"{name} does not match its {TITLES[manifest.digest]}")


def report_of(
    path: Path, found: OpenCheckpoint, refused: CheckpointRejected | None = None
) -> IntegrityReport:
    """The report on a checkpoint; `refused`: why it was rejected, None if it passed."""
    commit = found.commit
    return IntegrityReport(
        path=path,
        ok=refused is None,
        layer=refused.layer if refused else "",
        reason=refused.reason if refused else "",
        global_step=commit.global_step if commit else None,
        attempt=commit.attempt if commit else None,
        run_id=commit.run_id if commit else None,
        commit_sha256=commit.self_sha256 if commit else None,
        manifest=found.manifest,
        unread=(
            refused.__cause__ if refused and isinstance(refused.__cause__, StorageError) else None
        ),
        train=found.train,
        commit=commit,
    )
