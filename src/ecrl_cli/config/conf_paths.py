"""Locates the configuration files: ECRL's own, beside the package in a wheel or at the top of the
repository in a checkout, those of installed packages, and the user's, which are checked before
Hydra reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from ecrl_cli.errors import ConfigError, shown

_MAX_FILE_BYTES = 2**20
_NO_VALUE = re.compile(r":\s*\?\?\?\s*(#.*)?$")
# aliases of aliases double with each line
_ALIAS, _MAX_ALIASES = re.compile(r"(?:^|[\s\[{,:-])\*[\w-]+"), 16
_PACKAGE = Path(__file__).resolve().parents[1]
_CANDIDATES = (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf")


def conf_dir() -> Path:
    """The folder that holds train.yaml, absolute."""
    return next((path for path in _CANDIDATES if (path / "train.yaml").is_file()), _CANDIDATES[0])


def installed_dirs() -> list[Path]:
    """The configuration folders of installed packages, by entry points of the group `ecrl.configs`;
    ConfigError for one that cannot be found.
    """
    return list(
        dict.fromkeys(
            _folder_of(point)
            for point in sorted(entry_points(group="ecrl.configs"), key=lambda point: point.name)
        )
    )


def _folder_of(point: EntryPoint) -> Path:
    """The folder that the entry point's value names as a package (`mylab.conf`); no `__init__.py`
    is needed in it.
    """
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
    """The folders among `search`; ConfigError for one that does not exist."""
    folders = [
        Path(path.removeprefix("file://")).expanduser()
        for path in search
        if not path.startswith("pkg://")
    ]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                "--config-dir", f"{folder} is not a folder", "name one that holds your YAML files"
            )
    return folders


def check_files(folders: Sequence[Path], names: Iterable[str]) -> None:
    """ConfigError for a file that takes part and cannot be used: those called `names`
    ("suite/mine"), and those that these name in turn.

    Others may be what they like: the folder may be that of another project.
    """
    due, checked = list(names), set[Path]()
    while due:
        name = due.pop()
        for file in (
            folder / f"{name}{suffix}" for folder in folders for suffix in (".yaml", ".yml")
        ):
            if (file.exists() or file.is_symlink()) and file not in checked:
                checked.add(file)
                _check_file(file)
                due += _named_in(file, name.rpartition("/")[0])


def _named_in(file: Path, group: str) -> Iterator[str]:
    """The files that `file`, of `group`, has composed: its defaults, and what a sweep of its own
    chooses.
    """
    import yaml  # not needed where nobody has files of their own

    try:
        content = yaml.safe_load(file.read_bytes())
    except yaml.YAMLError:  # Hydra says so, with line and column
        return
    if not isinstance(content, dict):
        return
    for entry in content.get("defaults") or ():
        pairs = entry.items() if isinstance(entry, dict) else [("", entry)]
        for key, options in pairs:
            # without `override` and `optional`
            inner = str(key).rpartition(" ")[2].partition("@")[0]
            folder = inner[1:] if inner.startswith("/") else "/".join(filter(None, (group, inner)))
            for option in options if isinstance(options, list) else [options]:
                named = str(option).partition("@")[0]
                yield (
                    named[1:] if named.startswith("/") else "/".join(filter(None, (folder, named)))
                )
    engine = content.get("hydra")
    sweeper = engine.get("sweeper") if isinstance(engine, dict) else None
    params = sweeper.get("params") if isinstance(sweeper, dict) else None
    for key, options in params.items() if isinstance(params, dict) else ():
        yield from (
            f"{str(key).lstrip('+')}/{option.strip()}" for option in str(options).split(",")
        )


def _check_file(file: Path) -> None:
    if not file.is_file():
        raise ConfigError(str(file), "is not a regular file", "take it out of the folder")
    size = file.stat().st_size
    if size > _MAX_FILE_BYTES:
        raise ConfigError(
            str(file),
            f"has {size} bytes, a configuration file at most {_MAX_FILE_BYTES}",
            "is this the right folder?",
        )
    try:
        file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        raise ConfigError(
            f"{file}:{line}:{column}",
            f"is not UTF-8 ({shown(hex(error.object[error.start]))})",
            "save it as UTF-8",
        ) from error
    if (aliases := len(_ALIAS.findall(file.read_text(encoding="utf-8")))) > _MAX_ALIASES:
        raise ConfigError(
            str(file),
            f"has {aliases} aliases (*name), at most {_MAX_ALIASES} are read",
            "write the values themselves",
        )
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if _NO_VALUE.search(text):
            raise ConfigError(
                f"{file}:{number}", "has no value (???)", "give it one or take the line out"
            )


def groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Each configuration group of `folders` with its options, sorted."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for group in (path for path in folder.iterdir() if path.is_dir()):
            found.setdefault(group.name, set()).update(file.stem for file in group.glob("*.y*ml"))
    return {name: sorted(options) for name, options in sorted(found.items()) if options}


def summary(folders: Sequence[Path], group: str, option: str) -> str:
    """The first sentence of the leading comment of an option's file, in the first of `folders` that
    has it; empty where there is none.
    """
    file = next(
        (file for folder in folders if (file := folder / group / f"{option}.yaml").is_file()), None
    )
    first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0] if file else ""
    return (
        first.removeprefix("#").strip().partition(". ")[0].rstrip(".")
        if first.startswith("#")
        else ""
    )
