"""`compat`: checkpoints of every released format version are read bit for bit; unknown versions are
rejected by name without being read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.names import COMMIT, FORMAT_VERSION, MANIFEST, READABLE, step_name
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.config.studies import Compat
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.studies.frame.gates import all_of
from ecrl_cli.studies.frame.store_fixture import sealed, sha256
from ecrl_cli.studies.frame.study import Arm, Study, StudyContext, Trial
from ecrl_cli.studies.frame.tables import TableSpec, fact, found, value
from ecrl_cli.studies.golden.make import EXPECTED, LAYOUTS, STEP

GOLDEN = Path(__file__).parent / "golden"
T = TypeVar("T")
SUFFIX = {"group": "", "single": ".safetensors", "torch": ".pt"}

Edit = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class GoldenVariant:
    """A golden checkpoint changed by `edit` with all hashes updated: `layer` rejects it, and `says`
    is the expected reason and advice.
    """

    edit: Edit
    layer: str
    says: tuple[str, ...]


def version(value: object, *says: str) -> GoldenVariant:
    return GoldenVariant(
        lambda records: records["manifest"].update(schema_version=value),
        "manifest",
        ("format", *says),
    )


def unknown(layer: str, *path: str) -> GoldenVariant:
    """Add a key that no format has to the object at `path` ("*": its first entry)."""
    return GoldenVariant(
        lambda records: _at(records, path).update(colour="red"), layer, ("has no field 'colour'",)
    )


def lacking(layer: str, key: str, *path: str) -> GoldenVariant:
    return GoldenVariant(lambda records: _at(records, path).pop(key), layer, (f"lacks {key!r}",))


def _at(value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path:
        value = next(iter(value.values())) if key == "*" else value[key]
    return value


_TENSOR = ("manifest", "parts", "*", "tensors", "*")

READS = " and ".join(map(str, READABLE))

VARIANTS: dict[str, GoldenVariant] = {
    "the next version": version(FORMAT_VERSION + 1, str(FORMAT_VERSION + 1), "upgrade"),
    "a far version": version(999, "999", "upgrade"),
    "version 0": version(0, "format 0", f"reads {READS}"),
    "a negative version": version(-1, "format -1", f"reads {READS}"),
    "a version with a fraction": version(1.5, "format 1.5", f"reads {READS}"),
    "a whole version as a float": version(float(FORMAT_VERSION), f"format {float(FORMAT_VERSION)}"),
    "no digest": lacking("manifest", "digest", "manifest"),
    "a digest that nobody knows": GoldenVariant(
        lambda records: records["manifest"].update(digest="md5"),
        "manifest",
        ("'md5'", "blake3 and sha256"),
    ),
    "a version in quotes": version(str(FORMAT_VERSION), f"format '{FORMAT_VERSION}'"),
    "a version that is true": version(True, "format True"),
    "no version": GoldenVariant(
        lambda records: records["manifest"].pop("schema_version"), "manifest", ("format None",)
    ),
    "unknown key in MANIFEST": unknown("manifest", "manifest"),
    "unknown key in a part": unknown("manifest", "manifest", "parts", "*"),
    "unknown key in a tensor": unknown("manifest", *_TENSOR),
    "unknown key in COMMIT": unknown("commit", "commit"),
    "key missing in MANIFEST": lacking("manifest", "epoch", "manifest"),
    "key missing in a part": lacking("manifest", "chunk_sums", "manifest", "parts", "*"),
    "key missing in a tensor": lacking("manifest", "shape", *_TENSOR),
    "key missing in COMMIT": lacking("commit", "prev_commit_sha256", "commit"),
    "the next version with keys of its own": GoldenVariant(
        lambda records: records["manifest"].update(schema_version=FORMAT_VERSION + 1, colour="red"),
        "manifest",
        (str(FORMAT_VERSION + 1), "upgrade"),
    ),
}


def _golden(context: StudyContext) -> list[Trial]:
    """One trial per golden checkpoint."""
    folders = sorted(path.name for path in GOLDEN.glob("v*"))
    return [
        Trial(f"golden/{name}/{layout}", {"arm": "golden", "version": name, "layout": layout})
        for name in folders
        for layout in LAYOUTS
    ]


def _changed(context: StudyContext) -> list[Trial]:
    """Every variant of each layout of the current version."""
    return [
        Trial(
            f"refused/{layout}/{name.replace(' ', '_')}",
            {"arm": "refused", "layout": layout, "what": name},
        )
        for layout in LAYOUTS
        for name in VARIANTS
    ]


@contextmanager
def _copied(context: StudyContext, trial: Trial) -> Iterator[tuple[Path, Path]]:
    """The golden folder of the trial's version, and a copy of its checkpoint: an installer may
    hard-link package files, and files with two names are rejected.
    """
    root, layout = context.scratch / "checkpoints", str(trial.facts["layout"])
    folder = GOLDEN / str(trial.facts.get("version", f"v{FORMAT_VERSION}"))
    shutil.copytree(folder / layout, root)
    try:
        yield folder, root / (step_name(STEP) + SUFFIX[layout])
    finally:
        shutil.rmtree(root)


def _read_golden(context: StudyContext, trial: Trial) -> dict[str, Any]:
    with _copied(context, trial) as (folder, path):
        return _read(
            path,
            json.loads((folder / EXPECTED).read_text(encoding="utf-8")),
            str(trial.facts["layout"]),
        )


def _read_changed(context: StudyContext, trial: Trial) -> dict[str, Any]:
    with _copied(context, trial) as (_, path):
        return _refused(path, VARIANTS[str(trial.facts["what"])])


def _read(path: Path, expected: dict[str, Any], layout: str) -> dict[str, Any]:
    """The integrity check accepts it under its commit, and the loaded content matches what was
    saved, digest by digest.
    """
    report = verify_checkpoint(path)
    found: dict[str, Any] = {}
    wrong = report.reason
    if report.ok:
        try:
            found, train = _loaded(path)
            wrong = _difference(found, expected["tensors"]) or (
                "" if train == expected["train"] else "train.json says something else"
            )
        except StorageError as error:
            wrong = error.line()
        wrong = wrong or (
            "" if report.commit_sha256 == expected["commits"][layout] else "another commit"
        )
    return {
        "outcome": "new" if not wrong else "detected" if not report.ok else "silent_wrong",
        "tensors": len(found),
        "wrong": wrong,
    }


def _loaded(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state that `ecrl train` would restore: type, shape and digest of the bytes by tensor; and
    train.json.
    """
    import torch

    from ecrl_cli.checkpoint.capture.loading import load_checkpoint
    from ecrl_cli.checkpoint.format.hashing import tensor_digest

    loaded = load_checkpoint(path)
    found = {}
    for name, tensor in loaded.tensors.items():
        raw = (
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if tensor.numel()
            else b""
        )
        shape = tuple(tensor.shape)
        found[name] = [
            str(tensor.dtype),
            list(shape),
            tensor_digest(str(tensor.dtype), shape, raw, loaded.manifest.digest),
        ]
    return found, loaded.train


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    different = sorted(
        name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
    )
    return f"{different[0]} is not what was saved" if different else ""


class _Watching(FsWrapper):
    """Records which files are opened inside a folder."""

    def __init__(self) -> None:
        super().__init__(PosixFs())
        self.opened: set[str] = set()

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        if call == "open_at":
            self.opened.add(path.name)
        return act()


def _refused(path: Path, variant: GoldenVariant) -> dict[str, Any]:
    """The changed checkpoint must be rejected by integrity check and loader, from its records
    alone.
    """
    _rewrite(path, variant.edit)
    fs = _Watching()
    try:
        report = verify_checkpoint(path, fs=fs)
    except Exception as error:  # the integrity check promises never to raise
        return {
            "outcome": "untyped",
            "as_expected": False,
            "layer": "",
            "reason": f"{type(error).__name__}: {error}",
            "opened": sorted(fs.opened),
        }
    read = sorted(fs.opened - {COMMIT, MANIFEST, path.with_suffix(".json").name})
    as_expected = report.layer == variant.layer and all(
        text in report.reason for text in variant.says
    )
    found = {"layer": report.layer, "reason": report.reason, "opened": read}
    return {
        "outcome": "silent_wrong" if report.ok else "detected",
        "as_expected": as_expected and not read and _loader_refuses(path, report),
        **found,
    }


def _loader_refuses(path: Path, report: IntegrityReport) -> bool:
    from ecrl_cli.checkpoint.capture.loading import load_checkpoint

    try:
        load_checkpoint(path)
    except StorageError as error:
        return report.reason in error.fact
    return False


def _rewrite(path: Path, edit: Edit) -> None:
    """Edit the records of the checkpoint at `path` and update the hashes."""
    if path.suffix:
        sidecar = path.with_suffix(".json")
        records = _edited(json.loads(sidecar.read_bytes()), edit)
        sidecar.write_bytes(canonical_json(records))
        return
    names = {"manifest": MANIFEST, "commit": COMMIT}
    records = _edited(
        {key: json.loads((path / name).read_bytes()) for key, name in names.items()}, edit
    )
    for key, name in names.items():
        (path / name).write_bytes(canonical_json(records[key]))


def _edited(records: dict[str, Any], edit: Edit) -> dict[str, Any]:
    edit(records)
    return records | {
        "commit": sealed(
            records["commit"], manifest_sha256=sha256(canonical_json(records["manifest"]))
        )
    }


STUDY = Study(
    keys=Compat,
    description=(
        "Checkpoints of every released format version are read bit for bit; versions that do not"
        " exist are refused by name."
    ),
    arms=(Arm("golden", _golden, _read_golden), Arm("refused", _changed, _read_changed)),
    tables=(
        TableSpec(
            "golden",
            "Checkpoints of released formats",
            ("golden",),
            columns=(
                fact("version", "format"),
                fact("layout", "layout"),
                value("tensors", "tensors, bit for bit", lambda r: r.found["tensors"], "count"),
                value("wrong", "wrong", lambda r: r.found["wrong"] or None),
            ),
        ),
        TableSpec(
            "refused",
            "Checkpoints of formats that this ECRL does not know",
            ("refused",),
            columns=(
                fact("layout", "layout"),
                fact("what", "changed"),
                found("layer", "refused by"),
                found("reason", "in these words"),
            ),
        ),
    ),
    gates=(
        all_of("golden", "golden", lambda r: r.found["outcome"] == "new", "are read bit for bit"),
        all_of(
            "refused",
            "refused",
            lambda r: r.found["as_expected"],
            "are refused in words that help, from their records alone",
        ),
    ),
)
