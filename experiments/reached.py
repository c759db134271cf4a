"""Which files of the package a study reaches: what its result depends on, and so what can make it
stale.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from experiments.registry import ROOT

from ecrl_cli.studies.frame.registry import module_of

SOURCE = ROOT / "src"
# a study that reaches this room trains as runs do, with whatever strategy, recovery, launcher or
# failure its configurations name
TRAINS = "training"
STUDIES = "ecrl_cli.studies."
# name all variants and studies there are; a study names in its code what it uses
TABLES = ("ecrl_cli.config", "ecrl_cli.studies.frame.registry")

DOOR = "ecrl"  # `ecrl.load` opens results for a reader: nothing that runs calls it


@cache
def reached(study: str) -> frozenset[Path]:
    """The files that `study` imports or starts as processes, directly or not; where it trains as
    runs do, the whole package but other studies.
    """
    modules = {_dotted(path): path for path in SOURCE.rglob("*.py")}
    package = module_of(study).removesuffix(".study")
    due, found = (
        [name for name in modules if name == package or name.startswith(f"{package}.")],
        set[str](),
    )
    while due:
        name = due.pop()
        if name not in found:
            found.add(name)
            due += [each for each in _named(name, modules[name].read_bytes()) if each in modules]
    if any(name.startswith(f"ecrl_cli.{TRAINS}.") for name in found):
        return frozenset(
            path for name, path in modules.items() if name in found or not name.startswith(STUDIES)
        )
    return frozenset(modules[name] for name in found)


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache  # many studies reach the same files
def _named(name: str, source: bytes) -> frozenset[str]:
    """What the module may use: modules that it imports, with the packages around them, and those
    whose names are in it as text.
    """
    found = {name.rpartition(".")[0]}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not name.startswith(TABLES)
        ):
            found.add(node.value.partition(":")[0])  # `python -m MODULE`, or MODULE:ATTRIBUTE
    return frozenset(each for each in found if name != DOOR or not each.startswith("ecrl_cli"))
