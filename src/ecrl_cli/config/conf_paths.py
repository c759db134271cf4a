"""Locates the configuration files: ECRL's own, beside the package in a wheel or at the top of the repository in a checkout, those of installed
packages, and the user's, which are checked before Hydra reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from ecrl_cli.errors import ConfigError, shown

_MAX_FILE_BYTES = 2**20
_NO_VALUE = re.compile(r":\s*\?\?\?\s*(#.*)?$")
_ALIAS, _MAX_ALIASES = re.compile(r"(?:^|[\s\[{,:-])\*[\w-]+"), 16  # aliases of aliases double with each line
_PACKAGE = Path(__file__).resolve().parents[1]
_CANDIDATES = (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf")


def conf_dir() -> Path:
    """The folder that holds train.yaml, absolute."""
    return next((path for path in _CANDIDATES if (path / "train.yaml").is_file()), _CANDIDATES[0])


def installed_dirs() -> list[Path]:
    """The configuration folders of installed packages, by entry points of the group `ecrl.configs`; ConfigError for one that cannot be found."""
    return list(dict.fromkeys(_folder_of(point) for point in sorted(entry_points(group="ecrl.configs"), key=lambda point: point.name)))


def _folder_of(point: EntryPoint) -> Path:
    """The folder that the entry point's value names as a package (`mylab.conf`); no `__init__.py` is needed in it."""
    try:
        spec = find_spec(point.value)
    except (ImportError, ValueError):  # the parent package is missing; the value is no name
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if Path(folder).is_dir():
            return Path(folder).absolute()
    fact = f"the entry point {point.name!r} names {point.value!r}, which is no package in a folder"
    raise ConfigError("ecrl.configs", fact, "mend the package that installed it, or remove it")


def user_folders(search: Sequence[str]) -> list[Path]:
    """The folders among `search`; ConfigError for one that does not exist or holds unreadable files."""
    folders = [Path(path.removeprefix("file://")).expanduser() for path in search if not path.startswith("pkg://")]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError("--config-dir", f"{folder} is not a folder", "name one that holds your YAML files")
        for file in [*folder.glob("*.y*ml"), *folder.glob("*/*.y*ml"), *folder.glob("*/*/*.y*ml")]:
            _check_file(file)
    return folders


def _check_file(file: Path) -> None:
    if not file.is_file():
        raise ConfigError(str(file), "is not a regular file", "take it out of the folder")
    size = file.stat().st_size
    if size > _MAX_FILE_BYTES:
        raise ConfigError(str(file), f"has {size} bytes, a configuration file at most {_MAX_FILE_BYTES}", "is this the right folder?")
    try:
        file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        raise ConfigError(f"{file}:{line}:{column}", f"is not UTF-8 ({shown(hex(error.object[error.start]))})", "save it as UTF-8") from error
    if (aliases := len(_ALIAS.findall(file.read_text(encoding="utf-8")))) > _MAX_ALIASES:
        raise ConfigError(str(file), f"has {aliases} aliases (*name), at most {_MAX_ALIASES} are read", "write the values themselves")
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if _NO_VALUE.search(text):
            raise ConfigError(f"{file}:{number}", "has no value (???)", "give it one or take the line out")


def groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Each configuration group of `folders` with its options, sorted."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for group in (path for path in folder.iterdir() if path.is_dir()):
            found.setdefault(group.name, set()).update(file.stem for file in group.glob("*.y*ml"))
    return {name: sorted(options) for name, options in sorted(found.items()) if options}


def summary(folders: Sequence[Path], group: str, option: str) -> str:
    """The first sentence of the leading comment of an option's file, in the first of `folders` that has it; empty where there is none."""
    file = next((file for folder in folders if (file := folder / group / f"{option}.yaml").is_file()), None)
    first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0] if file else ""
    return first.removeprefix("#").strip().partition(". ")[0].rstrip(".") if first.startswith("#") else ""
