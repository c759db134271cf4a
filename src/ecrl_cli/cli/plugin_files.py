"""`--plugin FILE.py`: what one file adds to ECRL, as if a package of its name were installed for
the length of the command.

The file is copied, so that every attempt of a run has the code that it began with, and is imported
only where what it adds is used: models and data sets by the ranks alone.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from ecrl_cli.config.codec import hints_of
from ecrl_cli.config.conf_paths import conf_dir
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, shown

FLAG = "--plugin"
_EXAMPLE = 'write ECRL = {"models": {"NAME": "FUNCTION"}} at its top (docs/extend.md)'
_MOST_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of things that can be added. `group`: of entry points; `section` and `key`: of the
    configuration, by which an option is chosen.
    """

    group: str
    section: str
    key: str


def families() -> dict[str, Family]:
    """By the last word of the entry-point group: `models`, `datasets`, `tasks`, ..."""
    found = {}
    for section, hint in hints_of(RunConfig).items():
        for each in dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ():
            group = each.metadata.get("group")
            if group:
                found[group.partition(".")[2]] = Family(group, section, each.name)
    return found


def take_flags(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """`words` without `--plugin FILE` and `--plugin=FILE`, and the files. ConfigError for one
    without a file.
    """
    rest: list[str] = []
    files: list[Path] = []
    waiting = iter(words)
    for word in waiting:
        flag, equals, value = word.partition("=")
        if flag != FLAG:
            rest.append(word)
            continue
        name = value if equals else next(waiting, "")
        if not name:
            raise ConfigError(FLAG, "names no file", f"write {FLAG} FILE.py")
        files.append(Path(name))
    return rest, files


@contextmanager
def plugged(files: Sequence[Path]) -> Iterator[None]:
    """Additions of `files` that can be chosen and imported here and in processes that are started
    here. ConfigError for a file that cannot be used; nothing of it was executed then.
    """
    if not files:
        yield
        return
    before, python_path = list(sys.path), os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="ecrl-plugin-") as folder:
        for file in files:
            _install(file, Path(folder))
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, python_path)))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = before
            if python_path is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = python_path


def _install(file: Path, folder: Path) -> None:
    """Writes `file` into `folder` with entry points, and a YAML file for each option."""
    declared = _declared(file)
    module = file.stem
    shutil.copyfile(file, folder / f"{module}.py")
    conf = f"ecrl_plugin_conf_{module}"
    points = {"ecrl.configs": {module: conf}}
    (folder / conf).mkdir()
    for family, names in declared.items():
        points[family.group] = {name: f"{module}:{path}" for name, path in names.items()}
        section = folder / conf / family.section
        section.mkdir(exist_ok=True)
        for name in names:
            (section / f"{name}.yaml").write_text(
                f"# {name}, of {file.name}\n{family.key}: {name}\n", encoding="utf-8"
            )
    info = folder / f"{module}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {module}\nVersion: 0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {path}\n" for name, path in names.items())
            for group, names in points.items()
        ),
        encoding="utf-8",
    )


def _declared(file: Path) -> dict[Family, dict[str, str]]:
    """The content of the file's `ECRL`, read without running it."""
    tree = _parsed(file)
    declared = next(
        (
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(name, ast.Name) and name.id == "ECRL" for name in node.targets)
        ),
        None,
    )
    if declared is None:
        raise ConfigError(FLAG, f"{shown(str(file))} does not say what it adds", _EXAMPLE)
    try:
        value = ast.literal_eval(declared)
    except ValueError as error:
        fact = f"ECRL in {shown(str(file))} holds more than names in quotes"
        raise ConfigError(FLAG, fact, _EXAMPLE) from error
    known = families()
    result: dict[Family, dict[str, str]] = {}
    if not isinstance(value, dict) or not value:
        raise ConfigError(FLAG, f"ECRL in {shown(str(file))} is no mapping", _EXAMPLE)
    for word, names in value.items():
        if word not in known:
            fact = f"{shown(str(file))} adds {shown(word)}, which is none of {', '.join(known)}"
            raise ConfigError(FLAG, fact, did_you_mean(str(word), known) or _EXAMPLE)
        result[known[word]] = _checked(file, tree, known[word], names)
    return result


def _parsed(file: Path) -> ast.Module:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(FLAG, f"{shown(str(file))} is no script", "name a Python file")
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        fact = f"{shown(str(file))} cannot be read ({error.strerror})"
        raise ConfigError(FLAG, fact, "name a Python file") from error
    except (SyntaxError, ValueError) as error:
        raise ConfigError(FLAG, f"{shown(str(file))} is no Python ({error})", "mend it") from error
    if file.suffix != ".py" or not file.stem.isidentifier():
        fact = f"{shown(file.name)} cannot be imported by its name"
        raise ConfigError(FLAG, fact, "rename it like a module: mine.py")
    there = find_spec(file.stem)
    # the file itself, where the folder that it is in is searched for modules
    if there is not None and not _is_file(there.origin, file):
        fact = f"a module {shown(file.stem)} is there already"
        raise ConfigError(FLAG, fact, f"give {shown(file.name)} another name")
    return tree


def _is_file(origin: str | None, file: Path) -> bool:
    return origin is not None and Path(origin).exists() and file.samefile(origin)


def _checked(file: Path, tree: ast.Module, family: Family, names: object) -> dict[str, str]:
    """`names`, each with what it stands for. ConfigError for one that is taken, cannot be typed, or
    that the file does not define.
    """
    if not isinstance(names, dict) or not names:
        raise ConfigError(FLAG, f"{family.group} in {shown(str(file))} names nothing", _EXAMPLE)
    defined = set(_defined(tree))
    for name, path in names.items():
        if not isinstance(name, str) or not name.isidentifier():
            fact = f"{shown(name)} in {shown(str(file))} cannot be typed"
            raise ConfigError(FLAG, fact, "use letters, digits and _")
        if (
            entry_points(group=family.group, name=name)
            or (conf_dir() / family.section / f"{name}.yaml").exists()
        ):
            fact = f"{family.section}={name} is there already"
            raise ConfigError(FLAG, fact, f"give it another name in {shown(str(file))}")
        if path not in defined:
            fact = f"{shown(str(file))} does not define {shown(path)}, which {name} stands for"
            raise ConfigError(FLAG, fact, did_you_mean(str(path), defined) or _EXAMPLE)
    return dict(names)


def _defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module has at its top."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name) for alias in node.names)
