"""What every bench does as a program: a folder of its own, its document as JSON, its exit code."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.goals import figures


def add_folder_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where to write the checkpoints (default: a temporary folder here)",
    )


def installed() -> dict[str, str]:
    """This environment, but that Python keeps what it compiled, as it has of an installed ecrl."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def bench_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """An empty folder below `parent` (default: the working directory), removed on exit."""
    root = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=parent or Path.cwd()))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def show(name: str, document: Mapping[str, Any]) -> int:
    """Print the bench's document as JSON; 1 where it missed a goal and that means something."""
    print(json.dumps({"bench": name, **document}, indent=2))
    return int(any(figure.verdict == "missed" for figure in figures(name, document)))
