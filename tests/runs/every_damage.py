"""Checkpoints of every layout and format version, damaged in many ways, one at a time: what the
integrity check, the diagnosis and the repair say is kept as a book, as that of every_field.

    python -m tests.runs.every_damage           # look at everything again, and write the book anew:
    the diff shows what is said otherwise
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.repair.diagnose import diagnose, line
from ecrl_cli.checkpoint.repair.repair import repair
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.errors import StorageError
from ecrl_cli.studies.frame.store_fixture import forge, sealed, sha256
from tests.runs.every_field import (
    RECORDED,
    Change,
    changed_values,
    leaves,
    named,
    short,
    with_value,
    without_paths,
)

BOOK = RECORDED / "damage"
KEY = b"a key of thirty-two bytes, or so"
# its words differ between versions of Python
_PARSER = re.compile(r"(Expecting|Invalid|Unterminated|Extra|Illegal)[^|]*?\(char \d+\)")
FLIPS, FIELDS = 14, 2  # per file; changes per field of a record


@dataclass(frozen=True)
class Damage:
    """`apply` does it to the checkpoint at the path."""

    name: str
    apply: Callable[[Path], object]


@contextmanager
def checkpoints() -> Iterator[dict[str, Path]]:
    """By name, a checkpoint: a group of both format versions, a `.pt` file, and as the store of
    today writes it a single file and a group with a MAC.
    """
    from tests.unit.checkpoint_support import CONFIG, commit, store_at

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("v0.1.0", "v0.2.0"):
            with tarfile.open(RECORDED / f"{name}.tar.xz") as archive:
                archive.extractall(root / name, filter="data")
        keyed = replace(CONFIG, integrity=replace(CONFIG.integrity, hmac_key=KEY))
        found = {
            "group": root / "v0.2.0" / "sweep" / "blocking" / "checkpoints" / "step_00000018",
            "group of version 1": (
                root / "v0.1.0" / "digits-cnn-blk-s1337-07717ee1" / "checkpoints" / "step_00000024"
            ),
            "torch": root / "v0.2.0" / "sweep" / "torch_file" / "checkpoints" / "step_00000018.pt",
        }
        for name, single, config in (("single", True, CONFIG), ("group with a MAC", False, keyed)):
            (root / name).mkdir()
            store = store_at(root / name, config)
            found[name] = commit(store, 6, single=single).path
            store.close()
        yield found


def _is_group(path: Path) -> bool:
    return not path.suffix


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if _is_group(path) else [path, path.with_suffix(".json")]


def damages(path: Path) -> Iterator[Damage]:
    """All that is done to the checkpoint at `path`."""
    yield Damage("nothing", lambda path: None)
    for file in files_of(path):
        draw, size, own = (
            random.Random(f"{file.name}"),
            file.stat().st_size,
            partial(_own, file.name),
        )
        places = {0, 7, 8, 64, size // 2, size - 1, *(draw.randrange(size) for _ in range(FLIPS))}
        for place in sorted(place for place in places if place < size):
            bit = draw.randrange(8)
            yield Damage(
                f"{file.name}: byte {place} bit {bit}",
                own(partial(_edit, change=partial(_flip, flips=((place, bit),)))),
            )
        two = tuple((draw.randrange(size), draw.randrange(8)) for _ in range(2))
        yield Damage(
            f"{file.name}: bits {two}", own(partial(_edit, change=partial(_flip, flips=two)))
        )
        for count in (1, size // 2, size):
            yield Damage(
                f"{file.name}: the last {count} bytes gone",
                own(partial(_edit, change=lambda data, count=count: data[: len(data) - count])),
            )
        yield Damage(
            f"{file.name}: one byte more", own(partial(_edit, change=lambda data: data + b"x"))
        )
        yield Damage(
            f"{file.name}: 16 bytes zeroed",
            own(partial(_edit, change=partial(_zeroed, start=size * 2 // 3))),
        )
        yield Damage(
            f"{file.name}: two pieces exchanged",
            own(partial(_edit, change=lambda data: data[32:64] + data[:32] + data[64:])),
        )
        yield Damage(f"{file.name}: gone", own(Path.unlink))
        yield Damage(f"{file.name}: a link to itself elsewhere", own(_linked))
        yield Damage(f"{file.name}: a folder", own(_folder))
    if _is_group(path):
        yield Damage("a file too many", lambda path: (path / "notes.txt").write_bytes(b"x"))
        yield from _forged_group(path)
    else:
        yield from _forged_sidecar(path)
    yield Damage(
        "all under the name of another step",
        lambda path: None if not _is_group(path) else _renumbered(path),
    )


def _own(name: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    """`change` of one file of a checkpoint."""
    return lambda path: change(path / name if _is_group(path) else path.with_name(name))


def _edit(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def _flip(data: bytes, flips: tuple[tuple[int, int], ...]) -> bytes:
    made = bytearray(data)
    for place, bit in flips:
        made[place] ^= 1 << bit
    return bytes(made)


def _zeroed(data: bytes, start: int) -> bytes:
    return data[:start] + bytes(len(data[start : start + 16])) + data[start + 16 :]


def _linked(file: Path) -> None:
    elsewhere = file.parent.parent / f"elsewhere_{file.name}"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _renumbered(path: Path) -> None:
    """The records say the step before, and agree with each other."""
    forge(path, lambda manifest: manifest.update(global_step=manifest["global_step"] - 1))


def _record_changes(file: Path, content: Any) -> Iterator[tuple[str, Change]]:
    """Of each field of a record, some changes; tensors' names count as one field."""
    seen: dict[str, list[tuple[tuple[str | int, ...], Any]]] = {}
    for place, value in leaves(content):
        seen.setdefault(named(place), []).append((place, value))
    for field, found in sorted(seen.items()):
        draw = random.Random(f"{file.name} {field}")
        place, value = draw.choice(found)
        for new in changed_values(value, [other for _, other in found], draw)[:FIELDS]:
            yield (
                f"{'.'.join(map(str, place))} = {short(new)}",
                Change("", file.name, None, place, new, field),
            )


def _forged_group(path: Path) -> Iterator[Damage]:
    """Fields of the records changed, with every hash above them made right again; parts exchanged
    and filled with other values.
    """
    version = json.loads((path / MANIFEST).read_bytes())["schema_version"]
    for text, change in _record_changes(path / COMMIT, json.loads((path / COMMIT).read_bytes())):
        yield Damage(f"forged COMMIT {text}", partial(_forge_commit, change=change))
    if version == 1:
        return
    for text, change in _record_changes(
        path / MANIFEST, json.loads((path / MANIFEST).read_bytes())
    ):
        yield Damage(
            f"forged MANIFEST {text}",
            lambda path, change=change: forge(path, lambda manifest: with_value(manifest, change)),
        )
    for text, change in _record_changes(path / TRAIN, json.loads((path / TRAIN).read_bytes())):
        yield Damage(
            f"forged train.json {text}",
            lambda path, change=change: forge(
                path,
                lambda manifest: None,
                {
                    TRAIN: canonical_json(
                        with_value(json.loads((path / TRAIN).read_bytes()), change)
                    )
                },
            ),
        )
    for name in (MODEL, OPTIMIZER, RNG):
        yield Damage(
            f"forged {name}: NaN at its end",
            lambda path, name=name: forge(path, _nothing, {name: _nan((path / name).read_bytes())}),
        )
        yield Damage(
            f"forged {name}: a byte less",
            lambda path, name=name: forge(path, _nothing, {name: (path / name).read_bytes()[:-1]}),
        )
        for header in (b"{}", b"[]", b'{"x":1}', b"\xff", b'{"__metadata__":{"a":"b"}}'):
            data = len(header).to_bytes(8, "little") + header
            yield Damage(
                f"forged {name}: the header {header!r}",
                lambda path, name=name, data=data: forge(path, _nothing, {name: data}),
            )


def _nothing(manifest: dict[str, Any]) -> None:
    """The parts alone are others."""


def _nan(data: bytes) -> bytes:
    return data[:-4] + b"\x00\x00\xc0\x7f"


def _forge_commit(path: Path, change: Change) -> None:
    changed = with_value(json.loads((path / COMMIT).read_bytes()), change)
    (path / COMMIT).write_bytes(
        canonical_json(changed if change.place == ("self_sha256",) else sealed(changed))
    )


def _forged_sidecar(path: Path) -> Iterator[Damage]:
    """The same of a single file's sidecar."""
    sidecar = path.with_suffix(".json")
    for text, change in _record_changes(sidecar, json.loads(sidecar.read_bytes())):
        yield Damage(f"forged sidecar {text}", partial(_forge_sidecar, change=change))


def _forge_sidecar(path: Path, change: Change) -> None:
    sidecar = path.with_suffix(".json")
    document = with_value(json.loads(sidecar.read_bytes()), change)
    with suppress(KeyError, TypeError):
        document["commit"] = sealed(
            document["commit"], manifest_sha256=sha256(canonical_json(document["manifest"]))
        )
    sidecar.write_bytes(canonical_json(document))


@contextmanager
def applied(path: Path, damage: Damage) -> Iterator[None]:
    """The checkpoint with the damage; after it, it is as it was."""
    kept = Path(tempfile.mkdtemp(dir=path.parent.parent))
    names = files_of(path)
    for file in names:
        shutil.copy2(file, kept / file.name)
    try:
        damage.apply(path)
        yield
    finally:
        for file in path.iterdir() if _is_group(path) else names:
            (
                shutil.rmtree(file)
                if file.is_dir() and not file.is_symlink()
                else file.unlink(missing_ok=True)
            )
        for file in kept.iterdir():
            shutil.move(file, path / file.name if _is_group(path) else path.with_name(file.name))
        for left in path.parent.parent.glob("elsewhere_*"):
            left.unlink()
        kept.rmdir()


def said(kind: str, path: Path, damage: Damage) -> str:
    """One line: what the check says, with every byte hashed twice and once; what the diagnosis
    names; whether the repair gives the original back.
    """
    config = IntegrityConfig(
        trust_owner=True,
        hmac_key=KEY if kind.endswith("MAC") else b"",
        restorable=kind in ("group", "torch"),
    )
    whole = {file.name: file.read_bytes() for file in files_of(path)}
    with applied(path, damage):
        report = verify_checkpoint(path, config)
        once = verify_checkpoint(path, config, once=True)
        words = [f"{report.layer}: {report.reason}" if not report.ok else "ok"]
        if (once.ok, once.layer, once.reason) != (report.ok, report.layer, report.reason):
            words.append(f"once: {once.layer}: {once.reason}" if not once.ok else "once: ok")
        if not report.ok:
            found = diagnose(path, config)
            words.append(
                line(report, found)
                .removeprefix(f"{path.name}: refused by {words[0]}")
                .removeprefix("; ")
                or "no more is known"
            )
            words.append(
                _repaired(path, found, config, whole) if found.repairable else "beyond repair"
            )
    return _PARSER.sub(
        "(what the JSON parser says)", without_paths(" || ".join(words), path.parent)
    )


def _repaired(path: Path, found: Any, config: IntegrityConfig, whole: dict[str, bytes]) -> str:
    with tempfile.TemporaryDirectory() as out:
        try:
            copy = repair(path, found, Path(out) / "out", config)
        except StorageError as error:
            return f"not repaired: {without_paths(error.fact, Path(out))}"
        same = {file.name: file.read_bytes() for file in files_of(copy)} == whole
        return "repaired" if same else "repaired to something else"


def main() -> None:
    shutil.rmtree(BOOK, ignore_errors=True)
    BOOK.mkdir()
    os.umask(0o022)
    with checkpoints() as found:
        for kind, path in found.items():
            lines = [f"{damage.name} || {said(kind, path, damage)}\n" for damage in damages(path)]
            (BOOK / f"{kind}.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
