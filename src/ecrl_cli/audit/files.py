"""The files that a job leaves in its folder: an inventory of every file by its content
(ARM/files.json), written when an arm has ended and judged later.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.audit.dcp_folder import (
    METADATA,
    chunk_file,
    entries_of,
    is_dcp_folder,
    path_text,
    tensor_bytes,
)
from ecrl_cli.audit.file_contents import (
    DIGEST_LENGTH,
    Content,
    Flattener,
    content_of,
    of_entries,
    shortened,
)
from ecrl_cli.checkpoint.format.hashing import streamed, tensor_prefix
from ecrl_cli.checkpoint.format.names import DIGEST
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import EcrlError, RecordError, first_line
from ecrl_cli.records.safe_read import parsed, read_whole
from ecrl_cli.storage.files import write_json

FILES = "files.json"
SCHEMA_VERSION = 1
KINDS = ("values", "lines", "bytes", "picture", "link", "unreadable")
MAX_FILES = 10_000
MAX_DEEP = 16  # levels of folders
MAX_READ = 2**37  # bytes of all files of an arm
MAX_DOCUMENT = 64 * 2**20  # bytes of files.json
MAX_TEXTS = 24 * 2**20  # characters of all keys, values and lines in it
_MAX_STRING = 4096


@dataclass(frozen=True)
class Inventory:
    """The files below an arm's folder by their paths; `left_out`: what was not looked at, in
    words.
    """

    files: dict[str, Content]
    left_out: tuple[str, ...] = ()


def inventory(folder: Path) -> dict[str, Any]:
    """The inventory of `folder` as files.json has it. Links are not followed; nothing that a file
    holds is executed.
    """
    files: dict[str, Content] = {}
    left_out: list[str] = []
    room, left = MAX_TEXTS, MAX_READ
    for name, path in _listed(folder, left_out):
        content = _content(path, str(folder), left)
        if content is None:
            left_out.append(f"{shortened(name)}: gone while it was read")
            continue
        left -= content.bytes
        room -= (
            sum(len(key) + len(text) for key, text in content.entries.items())
            + sum(map(len, content.lines))
            + len(name)
        )
        if room < 0 and content.kind in ("values", "lines"):
            content = Content(
                "unreadable",
                content.bytes,
                content.digest,
                problem="too many values to keep them one by one",
            )
        files[name] = content
    return {
        "schema_version": SCHEMA_VERSION,
        "digest": DIGEST,
        "left_out": left_out,
        "files": {name: encode(files[name]) for name in sorted(files)},
    }


def write_inventory(arm: Path) -> None:
    """Write `arm`/files.json about `arm`/work."""
    write_json(arm / FILES, inventory(arm / "work"), durable=False)


def _listed(folder: Path, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """Files, links and DCP folders below `folder`, those near the top first; `left_out` grows by
    what is not listed.
    """
    level = [("", folder)]
    count = 0
    for deep in range(MAX_DEEP + 1):
        below: list[tuple[str, Path]] = []
        for prefix, here in level:
            try:
                children = sorted(here.iterdir())
            except OSError as error:
                left_out.append(f"{shortened(prefix)}: {first_line(error, 100)}")
                continue
            dcp = deep > 0 and _is_dcp(here)
            if dcp:
                count += 1
                yield prefix.removesuffix("/"), here
            for child in children:
                if dcp and (child.name == METADATA or child.suffix == ".distcp"):
                    continue
                if child.is_dir() and not child.is_symlink():
                    below.append((f"{prefix}{child.name}/", child))
                elif child.is_symlink() or stat.S_ISREG(child.lstat().st_mode):
                    count += 1
                    yield f"{prefix}{child.name}", child
                if count >= MAX_FILES:
                    left_out.append(f"files beyond the first {MAX_FILES}")
                    return
        level = below
    left_out.extend(
        f"{shortened(prefix)}: more than {MAX_DEEP} levels of folders" for prefix, _ in level[:8]
    )


def _is_dcp(folder: Path) -> bool:
    try:
        return is_dcp_folder(folder)
    except OSError:
        return False


def _content(path: Path, folder: str, left: int) -> Content | None:
    """None where it has gone."""
    try:
        if path.is_symlink():
            target = str(path.readlink()).replace(folder, "{dir}")
            return Content("link", 0, shortened(target))
        if path.is_dir():
            return _of_dcp(path, folder)
        if path.lstat().st_size > left:
            return Content(
                "unreadable",
                path.lstat().st_size,
                "",
                problem=f"the arm's files have more than {MAX_READ} bytes",
            )
        return content_of(path, folder)
    except FileNotFoundError:
        return None
    except (OSError, EcrlError) as error:
        return Content("unreadable", 0, "", problem=first_line(error, 160))


def _of_dcp(folder: Path, base: str) -> Content:
    """A DCP folder as one file of values: tensors put together from their parts, byte entries read
    inertly.
    """
    size = sum(child.lstat().st_size for child in folder.iterdir() if child.suffix == ".distcp")
    entries: dict[str, str] = {}
    try:
        for entry in entries_of(folder):
            key = path_text(entry.path)
            if entry.dtype:
                digest = streamed(
                    DIGEST, tensor_prefix(entry.dtype, entry.shape), tensor_bytes(folder, entry)
                )
                entries[shortened(key)] = f"{entry.dtype} {entry.shape} {digest[:DIGEST_LENGTH]}"
            else:
                with chunk_file(folder, entry.chunks[0]) as file:
                    entries |= Flattener(file, base).entries(key=key)
    except Exception as error:  # zipfile and numpy raise many types for damaged files
        return Content("unreadable", size, "", problem=first_line(error, 160))
    return of_entries(entries, size)


def read_inventory(arm: Path) -> Inventory | None:
    """`arm`/files.json; None if there is none. RecordError for what is no inventory of this
    version: the file may be a stranger's.
    """
    path = arm / FILES
    if not os.path.lexists(path):
        return None
    where = f"{arm.name}/{FILES}"
    try:
        document = parsed(read_whole(path, MAX_DOCUMENT))
        if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"not of schema version {SCHEMA_VERSION}")
        files, left_out = document["files"], document.get("left_out", [])
        if (
            not isinstance(files, dict)
            or len(files) > 2 * MAX_FILES
            or not isinstance(left_out, list)
        ):
            raise ValueError("files are no object")
        return Inventory(
            {_text(name): _checked(content) for name, content in files.items()},
            tuple(map(_text, left_out)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            where, f"is no inventory of files ({str(error)[:160]})", "remove it to judge without it"
        ) from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_STRING:
        raise ValueError("a text that is none, or too long")
    return value


def _checked(value: dict[str, Any]) -> Content:
    kind, nbytes, entries, lines = (
        value["kind"],
        value["bytes"],
        value.get("entries", {}),
        value.get("lines", []),
    )
    if kind not in KINDS or type(nbytes) is not int or not 0 <= nbytes < 2**62:
        raise ValueError("kind or bytes of a file")
    if not isinstance(entries, dict) or not isinstance(lines, list):
        raise ValueError("entries or lines of a file")
    checked = {_text(key): _text(text) for key, text in entries.items()}
    return Content(
        kind,
        nbytes,
        _text(value["digest"]),
        checked,
        tuple(map(_text, lines)),
        _text(value.get("problem", "")),
    )
