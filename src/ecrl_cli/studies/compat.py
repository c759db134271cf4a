"""`compat`: checkpoints of every released format version are read bit for bit; of versions that do not exist, refused by name and unread."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.names import COMMIT, FORMAT_VERSION, MANIFEST, step_name
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.errors import StorageError
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.result import Column, Findings, Table
from ecrl_cli.studies.frame.study import Record, Skip, Study, StudyContext, Trial
from ecrl_cli.studies.golden.make import EXPECTED, LAYOUTS, STEP

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = {"group": "", "single": ".safetensors", "torch": ".pt"}

Edit = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Variant:
    """A golden checkpoint changed by `edit` and made to agree with itself: `layer` refuses it, and `says` why and what to do."""

    edit: Edit
    layer: str
    says: tuple[str, ...]


def version(value: object, *says: str) -> Variant:
    return Variant(lambda records: records["manifest"].update(schema_version=value), "manifest", ("format", *says))


def unknown(layer: str, *path: str) -> Variant:
    """A key that no format has, in the object at `path` ("*": its first entry)."""
    return Variant(lambda records: _at(records, path).update(colour="red"), layer, ("has no field 'colour'",))


def lacking(layer: str, key: str, *path: str) -> Variant:
    return Variant(lambda records: _at(records, path).pop(key), layer, (f"lacks {key!r}",))


def _at(value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path:
        value = next(iter(value.values())) if key == "*" else value[key]
    return value


_TENSOR = ("manifest", "parts", "*", "tensors", "*")

VARIANTS: dict[str, Variant] = {
    "the next version": version(FORMAT_VERSION + 1, str(FORMAT_VERSION + 1), "upgrade"),
    "a far version": version(999, "999", "upgrade"),
    "version 0": version(0, "format 0", f"reads {FORMAT_VERSION}"),
    "a negative version": version(-1, "format -1", f"reads {FORMAT_VERSION}"),
    "a version with a fraction": version(1.5, "format 1.5", f"reads {FORMAT_VERSION}"),
    "a whole version as a float": version(float(FORMAT_VERSION), f"format {float(FORMAT_VERSION)}"),
    "a version in quotes": version(str(FORMAT_VERSION), f"format '{FORMAT_VERSION}'"),
    "a version that is true": version(True, "format True"),
    "no version": Variant(lambda records: records["manifest"].pop("schema_version"), "manifest", ("format None",)),
    "unknown key in MANIFEST": unknown("manifest", "manifest"),
    "unknown key in a part": unknown("manifest", "manifest", "parts", "*"),
    "unknown key in a tensor": unknown("manifest", *_TENSOR),
    "unknown key in COMMIT": unknown("commit", "commit"),
    "key missing in MANIFEST": lacking("manifest", "epoch", "manifest"),
    "key missing in a part": lacking("manifest", "chunk_crc32", "manifest", "parts", "*"),
    "key missing in a tensor": lacking("manifest", "shape", *_TENSOR),
    "key missing in COMMIT": lacking("commit", "prev_commit_sha256", "commit"),
    "the next version with keys of its own": Variant(
        lambda records: records["manifest"].update(schema_version=FORMAT_VERSION + 1, colour="red"), "manifest", (str(FORMAT_VERSION + 1), "upgrade")
    ),
}


def make(setting: StudyContext) -> Study:
    return _Compat(setting)


class _Compat:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting

    def plan(self) -> list[Trial]:
        """Every golden checkpoint, then every variant of each layout of the current version."""
        folders = sorted(path.name for path in GOLDEN.glob("v*"))
        golden = [Trial(f"golden/{name}/{layout}", {"arm": "golden", "version": name, "layout": layout}) for name in folders for layout in LAYOUTS]
        refused = [
            Trial(f"refused/{layout}/{name.replace(' ', '_')}", {"arm": "refused", "layout": layout, "what": name})
            for layout in LAYOUTS
            for name in VARIANTS
        ]
        return golden + refused

    def skips(self) -> list[Skip]:
        return []

    def run(self, trial: Trial) -> dict[str, Any]:
        root, layout = self._setting.scratch / "checkpoints", str(trial.facts["layout"])
        folder = GOLDEN / str(trial.facts.get("version", f"v{FORMAT_VERSION}"))
        # copied, for an installer may have linked the package's files, and a file of two names is refused
        shutil.copytree(folder / layout, root)
        path = root / (step_name(STEP) + SUFFIX[layout])
        try:
            if trial.facts["arm"] == "golden":
                return _read(path, json.loads((folder / EXPECTED).read_text(encoding="utf-8")), layout)
            return _refused(path, VARIANTS[str(trial.facts["what"])])
        finally:
            shutil.rmtree(root)

    def findings(self, records: Sequence[Record]) -> Findings:
        return _findings(records)

    def close(self) -> None:
        """Nothing is kept between trials."""


def _read(path: Path, expected: dict[str, Any], layout: str) -> dict[str, Any]:
    """The guard accepts it under its commit, and what the loader makes of it is what was saved, digest by digest."""
    report = verify_checkpoint(path)
    found: dict[str, Any] = {}
    wrong = report.reason
    if report.ok:
        try:
            found, train = _loaded(path)
            wrong = _difference(found, expected["tensors"]) or ("" if train == expected["train"] else "train.json says something else")
        except StorageError as error:
            wrong = error.line()
        wrong = wrong or ("" if report.commit_sha256 == expected["commits"][layout] else "another commit")
    return {"outcome": "new" if not wrong else "detected" if not report.ok else "silent_wrong", "tensors": len(found), "wrong": wrong}


def _loaded(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `ecrl train` would restore from: by tensor its type, shape and digest of its bytes; and train.json."""
    import torch

    from ecrl_cli.checkpoint.capture.loading import load_checkpoint
    from ecrl_cli.checkpoint.format.hashing import tensor_sha256

    loaded = load_checkpoint(path)
    found = {}
    for name, tensor in loaded.tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        shape = tuple(tensor.shape)
        found[name] = [str(tensor.dtype), list(shape), tensor_sha256(str(tensor.dtype), shape, raw)]
    return found, loaded.train


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    different = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return f"{different[0]} is not what was saved" if different else ""


class _Watching(PosixFs):
    """Notes the files that are opened inside a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[str] = set()

    def open_at(self, folder: int, name: str, flags: int) -> int:
        self.opened.add(name)
        return super().open_at(folder, name, flags)


def _refused(path: Path, variant: Variant) -> dict[str, Any]:
    """Changed and made to agree; then by guard and loader, which must refuse it from its records alone."""
    _rewrite(path, variant.edit)
    fs = _Watching()
    try:
        report = verify_checkpoint(path, fs=fs)
    except Exception as error:  # the guard promises that none comes out
        return {"outcome": "untyped", "as_expected": False, "layer": "", "reason": f"{type(error).__name__}: {error}", "opened": sorted(fs.opened)}
    read = sorted(fs.opened - {COMMIT, MANIFEST, path.with_suffix(".json").name})
    said = report.layer == variant.layer and all(text in report.reason for text in variant.says)
    found = {"layer": report.layer, "reason": report.reason, "opened": read}
    return {"outcome": "silent_wrong" if report.ok else "detected", "as_expected": said and not read and _loader_refuses(path, report), **found}


def _loader_refuses(path: Path, report: IntegrityReport) -> bool:
    from ecrl_cli.checkpoint.capture.loading import load_checkpoint

    try:
        load_checkpoint(path)
    except StorageError as error:
        return report.reason in error.fact
    return False


def _rewrite(path: Path, edit: Edit) -> None:
    """Edit the records of the checkpoint at `path`, and put in the hashes that then are right."""
    if path.suffix:
        sidecar = path.with_suffix(".json")
        records = _edited(json.loads(sidecar.read_bytes()), edit)
        sidecar.write_bytes(canonical_json(records))
        return
    names = {"manifest": MANIFEST, "commit": COMMIT}
    records = _edited({key: json.loads((path / name).read_bytes()) for key, name in names.items()}, edit)
    for key, name in names.items():
        (path / name).write_bytes(canonical_json(records[key]))


def _edited(records: dict[str, Any], edit: Edit) -> dict[str, Any]:
    edit(records)
    records["commit"]["manifest_sha256"] = hashlib.sha256(canonical_json(records["manifest"])).hexdigest()
    body = {key: value for key, value in records["commit"].items() if key != "self_sha256"}
    records["commit"] = body | {"self_sha256": digest(body)}
    return records


def _findings(records: Sequence[Record]) -> Findings:
    golden = [r for r in records if r.facts["arm"] == "golden"]
    refused = [r for r in records if r.facts["arm"] == "refused"]
    read = [
        {"version": r.facts["version"], "layout": r.facts["layout"], "tensors": r.found["tensors"], "wrong": r.found["wrong"] or None} for r in golden
    ]
    columns = (Column("version", "format"), Column("layout", "layout"), Column("tensors", "tensors, bit for bit", "count"), Column("wrong", "wrong"))
    shown = [{"layout": r.facts["layout"], "what": r.facts["what"], **{key: r.found[key] for key in ("layer", "reason")}} for r in refused]
    said = (Column("layout", "layout"), Column("what", "changed"), Column("layer", "refused by"), Column("reason", "in these words"))
    tables = (
        Table("golden", "Checkpoints of released formats", columns, tuple(read)),
        Table("refused", "Checkpoints of formats that this ECRL does not know", said, tuple(shown)),
    )
    gates = (
        _gate("golden", [r.key for r in golden if r.found["outcome"] != "new"], golden, "are read bit for bit"),
        _gate("refused", [r.key for r in refused if not r.found["as_expected"]], refused, "are refused in words that help, from their records alone"),
    )
    return Findings(tables, (), gates)


def _gate(name: str, failures: list[str], tried: Sequence[Record], kept: str) -> Gate:
    passed = bool(tried) and not failures
    return Gate(name, passed, f"{len(tried)} of {len(tried)} {kept}" if passed else f"{len(failures)} of {len(tried)} not: {', '.join(failures[:3])}")
