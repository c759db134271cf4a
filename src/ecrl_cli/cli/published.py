"""`ecrl published exp4 DIR`: what the raw runs of a published work show, read where their authors
keep them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.cli.console import Parser, out
from ecrl_cli.config.registry import Registry
from ecrl_cli.errors import ConfigError, shown

# A function of the folder, that gives the text, the document and the exit code.
WORKS = Registry(
    "published work",
    "ecrl.published",
    {"exp4": "ecrl_cli.replication.published_runs.exp4:exp4"},
)


def published(argv: Sequence[str]) -> int:
    """0, or 3 where the folder lacks what a finding needs."""
    flags = parser().parse_args(list(argv))
    read = WORKS.load(flags.work)
    if not flags.folder.is_dir():
        raise ConfigError(
            shown(str(flags.folder)), "is no folder", "name the folder of the published runs"
        )
    text, document, code = read(flags.folder)
    if flags.json:
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        out(text)
    return int(code)


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl published", add_help=False, allow_abbrev=False)
    made.add_argument("work")
    made.add_argument("folder", type=Path)
    made.add_argument("--json", action="store_true")
    return made
