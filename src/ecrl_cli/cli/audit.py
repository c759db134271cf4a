"""`ecrl audit`: judges a job that ECRL did not write. Runs a command as several arms, or judges an
existing recording.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from ecrl_cli.audit.records import Arm
from ecrl_cli.audit.verdict import AuditVerdict, render
from ecrl_cli.cli.ci import FAILED, PASSED, SKIPPED, CiCase, Suite, check_report, tell
from ecrl_cli.cli.console import Parser, out, restrict, say
from ecrl_cli.errors import ConfigError, shown
from ecrl_cli.verify.verdict import EXIT_CODES

PRIMARY = "audit"
_TEXTS = ("audit.resume", "audit.elastic", "run_dir")


def audit(argv: Sequence[str], *, say: Callable[[str], None] = say) -> int:
    """Exit code: 0 every promise kept, 1 one broken, 2 bad input, 3 unknown, or not checked where
    it matters.
    """
    words = list(argv)
    if not words:
        way = (
            "type `ecrl audit -- torchrun train.py --out {dir}`, or the folder of a recording: ecrl"
            " audit DIR"
        )
        raise ConfigError("ecrl audit", "needs the command of a job", way)
    if "--" in words:
        cut = words.index("--")
        return _run(words[:cut], tuple(words[cut + 1 :]), say)
    return _judge(words)


def _run(keys: list[str], command: tuple[str, ...], say: Callable[[str], None]) -> int:
    from ecrl_cli.audit.audit import run_audit
    from ecrl_cli.cli.arguments import parse
    from ecrl_cli.cli.compose import compose, initialized
    from ecrl_cli.cli.hydra_habits import refuse_commas
    from ecrl_cli.config.audit import build_audit, check_key

    if not command:
        raise ConfigError(
            "COMMAND", "is missing", "write it after --: ecrl audit -- python train.py --out {dir}"
        )
    flags, keys = reporting().parse_known_args(keys)
    check_report(flags.junit)
    arguments = parse([quoted(key) for key in keys], PRIMARY)
    if arguments.show or arguments.multirun:
        raise ConfigError(
            "ecrl audit",
            "takes neither --cfg nor -m",
            "conf/audit.yaml holds every key and its default",
        )
    # one audit is one command: Hydra refuses what is no list
    refuse_commas(arguments.overrides, "ecrl audit", multirun=True)
    for override in arguments.overrides:
        if override.key_or_group != "failure":  # the one group
            check_key(override.key_or_group)  # Hydra's own refusal does not say what is near
    with initialized(PRIMARY):
        config = build_audit(
            compose(PRIMARY, [override.input_line or "" for override in arguments.overrides])
        )
    restrict(private=False)
    folder, verdict = run_audit(config, command, say)
    _answer(verdict, folder, flags)
    if flags.repro and verdict.status == "invalid":
        _repro(folder, verdict, say)
    say(f"page: {folder / 'report' / 'index.html'}")
    return EXIT_CODES[verdict.status]


def reporting() -> Parser:
    """The flags that say how to answer, of an audit that is run and of one that is judged."""
    made = Parser(prog="ecrl audit", add_help=False, allow_abbrev=False)
    made.add_argument("--junit", type=Path)
    made.add_argument("--github", action="store_true")
    made.add_argument("--json", action="store_true")
    made.add_argument("--repro", action="store_true")
    return made


def _repro(folder: Path, verdict: AuditVerdict, say: Callable[[str], None]) -> None:
    from ecrl_cli.audit.audit import asked_of
    from ecrl_cli.audit.repro import write_repro

    for written in write_repro(folder, verdict, asked_of(folder)):
        say(
            f"to show it again: {written / 'again.sh'}; a draft of a report: {written / 'issue.md'}"
        )


def quoted(text: str) -> str:
    """Quotes the values that hold words of a command: Hydra's grammar would parse their dashes,
    braces and spaces.
    """
    from ecrl_cli.config.keys import quote

    key, _, value = text.partition("=")
    return f"{key}={quote(value)}" if key in _TEXTS and value[:1] not in ("'", '"', "") else text


def _judge(words: list[str]) -> int:
    from ecrl_cli.audit.audit import (
        anew_of,
        asked_of,
        judge_folder,
        order_of,
        planned_of,
        write_result,
    )

    flags = parser().parse_args(words)
    if flags.state:
        return _compare_states(flags.folders)
    if len(flags.folders) != 1 or not flags.folders[0].is_dir():
        raise ConfigError(
            "ecrl audit",
            f"needs the folder of a recording, got {shown(' '.join(map(str, flags.folders)))}",
            "or a command after --",
        )
    check_report(flags.junit)
    folder = flags.folders[0].absolute()
    asked = asked_of(folder)
    verdict = judge_folder(
        folder, flags.reference, flags.order or order_of(asked), planned_of(asked), anew_of(asked)
    )
    write_result(folder, verdict, asked)
    _answer(verdict, folder, flags)
    if flags.repro:
        _repro(folder, verdict, say)
    return EXIT_CODES[verdict.status]


def parser() -> Parser:
    """The argument parser for `ecrl audit DIR` and `--state`, where no command is run."""
    made = Parser(prog="ecrl audit", add_help=False, allow_abbrev=False, parents=[reporting()])
    made.add_argument("folders", nargs="+", type=Path)
    made.add_argument("--state", action="store_true")
    made.add_argument("--reference", type=Path)
    made.add_argument("--order", choices=("auto", "declared", "free"), default="")
    return made


def _answer(verdict: AuditVerdict, folder: Path, flags: Namespace) -> None:
    if flags.json:
        sys.stdout.write(json.dumps(verdict.to_json(), indent=2) + "\n")
    else:
        out(render(verdict, folder.name))
    tell(suite_of(verdict, folder), cases(verdict), flags.junit, annotate=flags.github)


def _compare_states(paths: list[Path]) -> int:
    from ecrl_cli.audit.states import compare_states
    from ecrl_cli.config.machine import check_torch

    if len(paths) != 2:
        raise ConfigError(
            "--state", f"compares two states, got {len(paths)}", "ecrl audit --state A.pt B.pt"
        )
    check_torch()
    lines, equal = compare_states(*paths)
    out("\n".join(lines))
    return 0 if equal else 1


def suite_of(verdict: AuditVerdict, folder: Path) -> Suite:
    """The verdict on the job, the seconds that all its arms took, and what it was."""
    from ecrl_cli.audit.audit import asked_of

    command = " ".join(map(str, asked_of(folder).get("command") or ()))
    seconds = sum(_seconds(judged.arm) for judged in (*verdict.references, *verdict.arms))
    more = {"command": command, "page": str(folder / "report" / "index.html")}
    return Suite(folder.name, verdict.status, verdict.diagnosis, seconds, more)


def _seconds(arm: Arm) -> float:
    return sum(launch.seconds for launch in arm.launches)


def cases(verdict: AuditVerdict) -> list[CiCase]:
    """A case for each promise of each arm; the first of an arm has the seconds that the arm
    took.
    """
    states = {"kept": PASSED, "broken": FAILED}
    took = {
        judged.arm.name: _seconds(judged.arm) for judged in (*verdict.references, *verdict.arms)
    }
    return [
        CiCase(
            each.arm or "job",
            each.promise,
            states.get(each.status, SKIPPED),
            each.message if each.status in states else f"{each.status}: {each.message}",
            each.evidence,
            took.pop(each.arm, 0.0),
        )
        for each in verdict.findings
    ]
