"""Hands that change a recorded run: edits of JSON documents, of single lines, of the bytes
beneath.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]


def edit_json(path: Path, edit: Callable[[Any], Any]) -> None:
    """Replace a document by what `edit` makes of it (None: it was changed in place)."""
    value = json.loads(path.read_text())
    changed = edit(value)
    path.write_text(json.dumps(value if changed is None else changed))


def edit_lines(path: Path, edit: Edit) -> None:
    """Pass every line through `edit`; None drops it. At least one line must change."""
    before = path.read_text()
    values = [edit(json.loads(line)) for line in before.splitlines()]
    path.write_text(
        "".join(
            json.dumps(value, separators=(",", ":")) + "\n" for value in values if value is not None
        )
    )
    assert path.read_text() != before, f"nothing changed in {path}"


def at_step(step: int, **changes: Any) -> Edit:
    """An edit of the lines of one step."""
    return lambda line: line | changes if line["global_step"] == step else line


def without(**match: Any) -> Edit:
    """An edit that drops the lines whose fields match."""
    return lambda line: None if all(line[name] == value for name, value in match.items()) else line


def line_at(path: Path, step: int) -> dict[str, Any]:
    return next(
        line
        for line in map(json.loads, path.read_text().splitlines())
        if line["global_step"] == step
    )


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def tear(path: Path) -> None:
    """Cut the last line in half."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - len(data.splitlines()[-1]) // 2])
