"""`ecrl verify FOLDER --manifest`: folders of files that ECRL did not write; the first time digests
are written, from then on held against.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST
from ecrl_cli.checkpoint.repair.folder_manifest import (
    FOLDER_MANIFEST,
    NEW,
    SAME,
    FileChange,
    FolderManifest,
    changes,
    folder_manifest,
    read_manifest,
    write_manifest,
)
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.cli.console import out, say
from ecrl_cli.cli.targets import checked
from ecrl_cli.errors import ConfigError, EcrlError, plural, shown, visible

_WORST_FIRST = (5, 1, 3, 2, 0)


def verify_manifests(folders: Sequence[Path], max_bytes: int, as_json: bool) -> int:
    """0 where all is as in the manifests, or one was written; 1 where a file changed, is damaged or
    gone; 3 where files are in no manifest, or it is damaged; 5 where the storage refused.
    """
    places = [_place(folder) for folder in dict.fromkeys(folders)]
    documents: dict[str, Any] = {}
    codes = [0]
    for folder in places:
        try:
            lines, documents[str(folder)], code = _one(
                folder, max_bytes or IntegrityConfig.max_bytes
            )
        except EcrlError as error:
            documents[str(folder)], code = (
                {
                    "status": "unknown",
                    "error": error.line(),
                },
                error.exit_code,
            )
            say(f"ecrl: error: {visible(folder)}: {error.line()}")
        else:
            if not as_json:
                out("\n".join(visible(line) for line in lines))
        codes.append(code)
    if as_json:
        sys.stdout.write(json.dumps(documents, indent=2) + "\n")
    return next(code for code in _WORST_FIRST if code in codes)


def _place(folder: Path) -> Path:
    checked(folder)
    if any(folder.glob(f"step_*/{COMMIT}")) or (folder / LATEST).exists():
        raise ConfigError(
            shown(str(folder)),
            "holds checkpoints of ECRL, each of which has its own manifest",
            "leave --manifest out",
        )
    return folder


def _one(folder: Path, max_bytes: int) -> tuple[list[str], dict[str, Any], int]:
    """Lines for people, a document for programs, an exit code."""
    before = read_manifest(folder)
    if before is None:
        made = folder_manifest(folder, max_bytes)
        if not made.files:
            raise ConfigError(shown(str(folder)), "holds no file", "name a folder of files")
        path = write_manifest(folder, made)
        said = f"{folder}: {_counted(made)}; digests written to {path.name}"
        return (
            [said, *_notes(made)],
            {"status": "written", "files": len(made.files), "notes": _notes(made)},
            0,
        )
    now = folder_manifest(folder, max_bytes, before.digest)
    found = [change for change in changes(before, now) if change.status != SAME]
    wrong, new = (
        [each for each in found if each.status != NEW],
        [each for each in found if each.status == NEW],
    )
    status, code = ("invalid", 1) if wrong else ("unknown", 3) if new else ("valid", 0)
    return (
        _lines(folder, before, now, found),
        {"status": status, "files": len(now.files), "changes": [vars(each) for each in found]},
        code,
    )


def _lines(
    folder: Path, before: FolderManifest, now: FolderManifest, found: list[FileChange]
) -> list[str]:
    if not found:
        return [f"{folder}: {_counted(now)}, as in {FOLDER_MANIFEST}"]
    same = len(before.files) - sum(each.status != NEW for each in found)
    lines = [f"{folder}: {same} of {plural(len(before.files), 'file')} as in {FOLDER_MANIFEST}"]
    lines += [
        f"  {each.path}:"
        f" {each.status}{f': {each.said}' if each.status != NEW else f', {each.said}'}"
        for each in found
    ]
    return [
        *lines,
        f"  if that is right: remove {FOLDER_MANIFEST}, and the same command writes it anew",
    ]


def _counted(made: FolderManifest) -> str:
    return (
        f"{plural(len(made.files), 'file')},"
        f" {plural(sum(len(file.tensors) for file in made.files.values()), 'tensor')}"
    )


def _notes(made: FolderManifest) -> list[str]:
    """Findings of a first look: files that cannot be read as their name says, tensors that are not
    finite.
    """
    notes = [
        f"  {path}: its tensors cannot be read ({file.problem}): digested as a file"
        for path, file in made.files.items()
        if file.problem
    ]
    for path, file in made.files.items():
        strange = [name for name, tensor in file.tensors.items() if not tensor.finite]
        notes += (
            [
                f"  {path}: NaN or infinity in {plural(len(strange), 'tensor')}, first in"
                f" {strange[0][:80]!r}"
            ]
            if strange
            else []
        )
    return notes
