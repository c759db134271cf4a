"""Checks by source analysis that no decision depends on a clock or an mtime."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

DECIDES = (
    *(f"ecrl_cli.checkpoint.store.{name}" for name in ("catalog", "store", "atomic_install", "integrity", "fencing", "save_and_log")),
    *(f"ecrl_cli.supervision.attempts.{name}" for name in ("restart_policy", "checkpoint_reconciliation", "supervisor_record")),
    *(f"ecrl_cli.{name}" for name in ("checkpoint.format.manifest", "supervision.resume", "history.lineage")),
    *("ecrl_cli.failures.plan", "ecrl_cli.failures.fault_log", "ecrl_cli.recovery"),
)
_NEVER = {"getmtime", "getctime", "getatime", "utcnow", "now", "today"} | {f"st_{kind}time{unit}" for kind in "mca" for unit in ("", "_ns")}
_CLOCKS = {"wall", "monotonic", "time", "time_ns", "clock_gettime"}
_DECIDES = (ast.Compare, ast.BoolOp)


def offences(source: str) -> list[str]:
    """Places where `source` reads a file's times, or uses a clock value in a comparison or a condition."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _NEVER:
            found.append(f"line {node.lineno}: {node.attr}")
        tested = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node if isinstance(node, _DECIDES) else None
        for part in ast.walk(tested) if tested is not None else ():
            if isinstance(part, ast.Call) and _name(part.func) in _CLOCKS:
                found.append(f"line {part.lineno}: {_name(part.func)}() decides")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) == ("time", "time"):
            found.append(f"line {node.lineno}: time.time")
    return sorted(set(found))


def source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _name(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
