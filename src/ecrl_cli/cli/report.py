"""`ecrl report`: a page, tables and figures of runs and studies, and the main tables on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.cli.console import Parser, out
from ecrl_cli.cli.targets import checked
from ecrl_cli.report.build import report as build_report
from ecrl_cli.report.formats import printable


def report(argv: Sequence[str]) -> int:
    """Writes the report beside its inputs (or to --out) and prints the page's path. Exit code 1: a gate failed; 3: a verdict or result is missing."""
    flags = parser().parse_args(list(argv))
    other = checked(flags.against) if flags.against else None
    made = build_report([checked(folder) for folder in flags.folders], flags.out, other, flags.judge)
    for note in made.notes:
        sys.stderr.write(f"ecrl: {printable(note)}\n")
    page = str(made.page)
    if flags.json:
        document = json.loads(made.page.with_name("report.json").read_text(encoding="utf-8"))
        sys.stdout.write(json.dumps({"page": page, "exit_code": made.exit_code, "text": made.text, **document}, indent=2) + "\n")
    else:
        out(made.text.rstrip() + ("" if page in made.text else f"\n{page}"))
    return made.exit_code


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl report", add_help=False, allow_abbrev=False)
    made.add_argument("folders", nargs="+", type=Path)
    made.add_argument("--out", type=Path)
    made.add_argument("--against", type=Path)
    made.add_argument("--judge", action="store_true")
    made.add_argument("--json", action="store_true")
    return made
