"""Downloads an official archive into an unnamed temporary file, checks its MD5, then writes each member atomically."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from ecrl_cli.data.official import Archive
from ecrl_cli.errors import DatasetError
from ecrl_cli.storage.files import write_whole

CONNECT_S = 1.5  # seconds; keeps the error within two seconds on a machine without a network
CHUNK = 1 << 20


def download(archive: Archive, home: Path) -> None:
    """Puts the archive's files under `home`. DatasetError if the download fails or the MD5 differs."""
    try:
        with tempfile.TemporaryFile() as file:
            got = _fetch(archive.url, file)
            if got != archive.md5:
                raise DatasetError("dataset.download", f"{archive.url} md5 mismatch (expected {archive.md5}, got {got})", _remedy(archive, home))
            file.seek(0)
            _unpack(archive, file, home)
    except (urllib.error.URLError, OSError, tarfile.TarError) as error:
        fact = f"{home / archive.folder} lacks files, and {archive.url} cannot be downloaded ({getattr(error, 'reason', error)})"
        raise DatasetError("dataset.root", fact, _remedy(archive, home)) from error


def _remedy(archive: Archive, home: Path) -> str:
    return f"put the official archive's files into {home / archive.folder}, or set dataset.root to the folder that holds {home.name}/"


def _fetch(url: str, file: IO[bytes]) -> str:
    """Streams `url` into `file`; returns its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=CONNECT_S) as response:
        while chunk := response.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _unpack(archive: Archive, file: IO[bytes], home: Path) -> None:
    folder = home / archive.folder
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=file) as tar:
        for name in archive.files:
            member = tar.extractfile(f"{archive.folder}/{name}")
            if member is None:
                raise tarfile.TarError(f"{name} is no file")
            write_whole(folder / name, member.read(), durable=False)
