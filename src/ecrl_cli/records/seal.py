"""seal.json: the digest of every record file and the commits of the checkpoints, written last when
a run ends; with a key, signed.

Without a key a seal detects changes unless the run was sealed anew; with one, also then, unless the
attacker has the key. See docs/decisions/seal.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import RecordError
from ecrl_cli.records.digests import FileDigest, file_digest, most_bytes, sealed_files
from ecrl_cli.records.events import SCHEMA_VERSION
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import sync_directory, write_whole

# domain separation: a key that also signs commits cannot be made to sign a seal
_DOMAIN = b"ecrl seal 1\0"


@dataclass(frozen=True)
class Seal:
    """`files`: by path in the run directory. `checkpoints`: SHA-256 of the commit by path, of the
    checkpoints present; `final`: the newest of them.

    `seal_sha256`: over the rest in canonical form. `hmac_sha256`: over the same bytes under the
    key; empty: not signed.
    """

    schema_version: int
    run_id: str
    terminal_status: str
    files: dict[str, FileDigest]
    checkpoints: dict[str, str]
    final: str
    seal_sha256: str = ""
    hmac_sha256: str = ""

    def body(self) -> bytes:
        """The bytes that are hashed and signed."""
        document = encode(replace(self, seal_sha256="", hmac_sha256=""))
        return _DOMAIN + _canonical(document)

    def whole(self) -> bool:
        """Whether its own hash still matches its content."""
        return _same(self.seal_sha256, hashlib.sha256(self.body()).hexdigest())

    def signed_with(self, key: bytes) -> bool:
        return _same(self.hmac_sha256, _mac(self.body(), key))


def make_seal(
    layout: RunLayout,
    run_id: str,
    terminal_status: str,
    commits: Mapping[str, str],
    key: bytes = b"",
) -> Seal:
    """Seal the records as they are now. `commits`: by path, in the order of the steps. RecordError
    or OSError if one cannot be read.
    """
    files = {layout.relative(path): file_digest(path) for path in sealed_files(layout)}
    final = list(commits.values())[-1] if commits else ""
    bare = Seal(SCHEMA_VERSION, run_id, terminal_status, files, dict(commits), final)
    return replace(
        bare,
        seal_sha256=hashlib.sha256(bare.body()).hexdigest(),
        hmac_sha256=_mac(bare.body(), key) if key else "",
    )


def write_seal(layout: RunLayout, seal: Seal) -> None:
    """Write seal.json durably."""
    write_whole(layout.seal, _canonical(encode(seal)))


def read_seal(layout: RunLayout) -> Seal | None:
    """Read seal.json; None if there is none, RecordError if this version of ECRL did not write
    it.
    """
    return read_seal_file(layout.seal)


def read_seal_file(path: Path) -> Seal | None:
    """Like `read_seal`, for a seal that may be that of an earlier end."""
    if not (path.exists() or path.is_symlink()):
        return None
    try:
        seal = decode(Seal, read_json(path))
    except (KeyError, TypeError) as error:
        raise RecordError(path.name, f"not a seal ({error})", "restore the file") from error
    if seal.schema_version != SCHEMA_VERSION:
        raise RecordError(
            path.name, f"schema version {seal.schema_version}, this ECRL reads {SCHEMA_VERSION}"
        )
    return seal


def reopen(layout: RunLayout) -> None:
    """Remove the seal and metrics.json before the run continues. Under the run's lock, before any
    record changes.
    """
    gone = [path for path in (layout.seal, layout.metrics) if _removed(path)]
    if gone:
        sync_directory(layout.root)


def changed_files(
    layout: RunLayout, seal: Seal, *, beyond: bool = True
) -> tuple[list[str], list[str]]:
    """(changed, gone): record files that differ from the seal, each with the difference, and sealed
    files that are missing. `beyond`: files that are not in the seal count as changed, but for what
    Hydra composed: earlier versions did not seal it.
    """
    there, limit = (
        {layout.relative(path): path for path in sealed_files(layout)},
        most_bytes(layout),
    )
    composed = layout.relative(layout.hydra)
    changed = [
        f"{name} (was not there)"
        for name in there
        if beyond and name not in seal.files and not name.startswith(f"{composed}/")
    ]
    for name, sealed in seal.files.items():
        if name in there and (wrong := _wrong(there[name], sealed, limit)):
            changed.append(f"{name}{wrong}")
    return sorted(changed), sorted(set(seal.files) - set(there))


def _wrong(path: Path, sealed: FileDigest, limit: int) -> str | None:
    try:
        size = path.lstat().st_size
        if not path.is_symlink() and size != sealed.bytes:
            return f" ({sealed.bytes} bytes then, {size} now)"
        return None if file_digest(path, limit) == sealed else " (other content of the same length)"
    except RecordError as error:
        return f" ({error.fact})"


def _removed(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        return True
    return False


def _mac(body: bytes, key: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _same(recorded: str, due: str) -> bool:
    """In constant time; of a stranger's text too, which may hold anything."""
    return hmac.compare_digest(recorded.encode(errors="surrogatepass"), due.encode())


def _canonical(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode(errors="surrogatepass")
