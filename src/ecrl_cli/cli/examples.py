"""`ecrl examples [DIR]`: writes what the documentation's commands use: jobs to audit, a suite, the
notebook.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.cli.console import Parser, out, restrict
from ecrl_cli.errors import ConfigError, RunDirectoryError, plural

_PACKAGE = Path(__file__).resolve().parents[1]
_CANDIDATES = (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples")  # in a wheel, in a checkout


def examples(argv: Sequence[str]) -> int:
    """Writes the examples into DIR (default: examples). RunDirectoryError, with nothing written,
    where a file there differs.
    """
    target: Path = parser().parse_args(list(argv)).folder
    source = next((path for path in _CANDIDATES if (path / "jobs").is_dir()), None)
    if source is None:
        raise ConfigError("ecrl examples", f"no examples at {_CANDIDATES[0]}", "install ECRL again")
    names = sorted(
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    due = [name for name in names if not (target / name).exists()]
    for name in set(names) - set(due):
        if (
            not (target / name).is_file()
            or (target / name).read_bytes() != (source / name).read_bytes()
        ):
            raise RunDirectoryError(
                str(target), f"holds another {name}", "name a new folder: ecrl examples DIR"
            )
    restrict(private=False)
    for name in due:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    out(f"{target}: {plural(len(due), 'file')} written, {len(names) - len(due)} already there")
    out(f"try: ecrl audit -- python {target / 'jobs' / 'plain.py'} --out {{dir}}")
    out(f"     ecrl -m --config-dir {target / 'conf'} +suite=tiny variant=ref,blk,ovl")
    return 0


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl examples", add_help=False, allow_abbrev=False)
    made.add_argument("folder", nargs="?", type=Path, default=Path("examples"))
    return made
