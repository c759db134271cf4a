"""Hides programs, libraries, devices and packages from a Python and all that it starts, as on a
machine that does not have them. No root needed.

Programs: a PATH of links to all others. Packages: a virtual environment of links to all others.
Libraries and devices: each Python that starts there answers `ctypes.util.find_library`, `os.stat`
and `os.open` as if they were not there.
"""

from __future__ import annotations

import os
import re
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_BLIND = """
import ctypes.util, errno, os

LIBRARIES, DEVICES = {libraries!r}, {devices!r}


def blind(function):
    def seen(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path) in DEVICES:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return function(path, *arguments, **options)

    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in supported:
            supported.add(seen)
    return seen


def find_library(name, find=ctypes.util.find_library):
    return None if name in LIBRARIES else find(name)


ctypes.util.find_library = find_library
os.stat, os.open = blind(os.stat), blind(os.open)
"""


def path_without(patterns: Iterable[str], folder: Path) -> str:
    """A PATH, made in `folder`, with every program whose name fits none of `patterns`."""
    hidden = re.compile("|".join(patterns) or "(?!)")
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            if not hidden.search(program.name) and program.is_file():
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    return str(folder)


def python_without(
    distributions: Iterable[str], libraries: Iterable[str], devices: Iterable[str], folder: Path
) -> str:
    """A Python, made in `folder`, that has all packages of this one but `distributions`, and does
    not see the libraries and devices.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    (own,) = folder.glob("lib/python*/site-packages")
    hidden = {name for each in distributions for name in _top_levels(each)}
    paths = []
    for number, place in enumerate(map(Path, filter(None, sys.path))):
        if place.name in ("site-packages", "dist-packages"):
            mirror = folder / f"packages-{number}"
            mirror.mkdir()
            for entry in place.iterdir():
                if entry.name not in hidden and entry.suffix != ".pth":
                    (mirror / entry.name).symlink_to(entry)
            paths.append(mirror)
        elif not place.is_relative_to(sys.base_prefix) and place.is_dir():
            paths.append(place)  # of packages that are used where they are written
    (own / "paths.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    (own / "blind.py").write_text(
        _BLIND.format(libraries=tuple(libraries), devices=tuple(devices)), encoding="utf-8"
    )
    (own / "blind.pth").write_text("import blind\n", encoding="utf-8")
    return str(folder / "bin" / "python")


def _top_levels(name: str) -> set[str]:
    """What a distribution has put beside others: its packages and its metadata. Nothing where it is
    not installed.
    """
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return set()
    return {file.parts[0] for file in files if file.parts[0] != ".."}
