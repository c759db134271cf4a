"""`ecrl report`: a page, tables and figures of runs and studies, or of builds over time, and the
main tables on standard output.

What has no verdict is verified first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ecrl_cli.cli.ci import FAILED, PASSED, SKIPPED, CiCase, Suite, check_report, tell
from ecrl_cli.cli.console import Parser, out, restrict, say
from ecrl_cli.cli.judged_elsewhere import judged, set_apart
from ecrl_cli.cli.scrub import VerifyOutput
from ecrl_cli.cli.targets import checked
from ecrl_cli.cli.verify import WORST_FIRST, judge, promise_cases, side_by_side
from ecrl_cli.errors import ConfigError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.report.build import report as build_report
from ecrl_cli.report.formats import plural, printable
from ecrl_cli.report.history import history_folder, history_report
from ecrl_cli.report.model.run_record import Judging
from ecrl_cli.verify.reference import References


def report(argv: Sequence[str]) -> int:
    """Writes the report beside its inputs (or to --out) and prints the page's path. Exit code 1: a
    gate failed; 3: a verdict or result is missing.
    """
    began, flags = monotonic(), parser().parse_args(list(argv))
    restrict(private=False)
    check_report(flags.junit)
    other = checked(flags.against) if flags.against else None
    if flags.history and other:
        raise ConfigError(
            "--against",
            "holds two sweeps against each other; --history all builds over time",
            "leave one of them out",
        )
    given, audits = set_apart([checked(folder) for folder in flags.folders], studies=False)
    answers = {folder: judged(folder) for folder in audits}
    if answers and not given:
        return _audits_alone(answers, flags, monotonic() - began)
    folders = given
    if flags.history:
        history_folder(folders, flags.out)  # refused before anything is verified
    judging = Judging(flags.judge, verify_all if flags.verify else None)
    made = (
        history_report(folders, flags.out, judging)
        if flags.history
        else build_report(folders, flags.out, other, judging, every_run=flags.runs)
    )
    for note in made.notes:
        sys.stderr.write(f"ecrl: {printable(note)}\n")
    page = str(made.page)
    written = made.page.with_name("history.json" if flags.history else "report.json")
    document = (
        json.loads(written.read_text(encoding="utf-8"))
        if flags.junit or flags.github or flags.json
        else {}
    )
    if flags.junit or flags.github:
        cases = history_cases(document) if flags.history else gate_cases(document)
        verdict = {0: "valid", 3: "unknown"}.get(made.exit_code, "invalid")
        suite = Suite(
            "ecrl report", verdict, str(document.get("headline", "")), monotonic() - began
        )
        tell(
            suite,
            [*cases, *_cases_of(answers)],
            flags.junit,
            annotate=flags.github,
        )
    if flags.json:
        sys.stdout.write(
            json.dumps(
                {
                    "page": page,
                    "exit_code": made.exit_code,
                    "text": made.text,
                    **document,
                    **_audits_of(answers),
                },
                indent=2,
            )
            + "\n"
        )
    else:
        out(made.text.rstrip() + ("" if page in made.text else f"\n{page}"))
        for answer in answers.values():
            out(answer.text)
    return _worst([made.exit_code, *(answer.exit_code for answer in answers.values())])


def _audits_alone(
    answers: dict[Path, VerifyOutput], flags: argparse.Namespace, seconds: float
) -> int:
    """Where only audits were named: each has its own page, which was written anew."""
    code = _worst([answer.exit_code for answer in answers.values()])
    if flags.junit or flags.github:
        suite = Suite("ecrl report", {0: "valid", 3: "unknown"}.get(code, "invalid"), "", seconds)
        tell(suite, _cases_of(answers), flags.junit, annotate=flags.github)
    if flags.json:
        sys.stdout.write(
            json.dumps(
                {str(folder): answer.document for folder, answer in answers.items()}, indent=2
            )
            + "\n"
        )
    else:
        for answer in answers.values():
            out(answer.text)
    return code


def _worst(codes: list[int]) -> int:
    return next(code for code in WORST_FIRST if code in codes)


def _cases_of(answers: dict[Path, VerifyOutput]) -> list[CiCase]:
    return [
        case
        for folder, answer in answers.items()
        for case in promise_cases(str(folder), answer.document)
    ]


def _audits_of(answers: dict[Path, VerifyOutput]) -> dict[str, Any]:
    return (
        {"audits": {str(folder): answer.document for folder, answer in answers.items()}}
        if answers
        else {}
    )


def gate_cases(document: dict[str, Any]) -> list[CiCase]:
    """report.json's gates of each suite and of each study, what a study skipped, and the verdict of
    each run; of the other side too.
    """
    states = {"valid": PASSED, "invalid": FAILED}
    suites = [
        case for suite, gates in document["gates"].items() for case in _of_gates(suite, gates)
    ]
    studies = [case for study in document.get("studies", ()) for case in study_cases(study)]
    verdicts = [(row["run"], str(row["verdict"])) for row in document["runs"]]
    if against := document.get("against"):
        suites += [
            case
            for suite, gates in against["their_gates"].items()
            for case in _of_gates(f"{against['theirs']}: {suite}", gates)
        ]
        verdicts += [
            (f"{against['theirs']}: {run}", verdict)
            for run, verdict in against["their_verdicts"].items()
        ]
    return (
        suites
        + studies
        + [
            CiCase(run, "verdict", states.get(verdict, SKIPPED), verdict)
            for run, verdict in verdicts
        ]
    )


def study_cases(study: dict[str, Any]) -> list[CiCase]:
    """CI cases of one study in report.json: unfinished, its gates, what it skipped."""
    name = study["folder"]
    unfinished = (
        [] if study.get("complete") else [CiCase(name, "finished", FAILED, study["headline"])]
    )
    skipped = [
        CiCase(name, each["arm"], SKIPPED, f"skipped: {each['reason']}")
        for each in study.get("skips", ())
    ]
    return unfinished + _of_gates(name, study.get("gates", ())) + skipped


def _of_gates(name: str, gates: Iterable[dict[str, Any]]) -> list[CiCase]:
    return [
        CiCase(name, each["name"], PASSED if each["passed"] else FAILED, each["message"])
        for each in gates
    ]


def history_cases(document: dict[str, Any]) -> list[CiCase]:
    """A case for each arm that the newest build of history.json has, and for each of its quality
    gates.
    """
    newest = document["builds"][-1]["build"]
    states = {"valid": PASSED, "invalid": FAILED, "not finished": FAILED}
    arms = [row for row in document["arms"] if row["build"] == newest]
    gates = [case for suite, found in document["gates"].items() for case in _of_gates(suite, found)]
    return [
        CiCase(
            row["suite"],
            row["arm"],
            states.get(row["verdict"], SKIPPED),
            row["why"] or row["verdict"],
        )
        for row in arms
    ] + gates


def verify_all(due: list[Path]) -> None:
    """Verifies the runs, as `ecrl verify` does, and says so. A run that cannot be judged is named;
    the report shows it as not verified.
    """
    fixed = [run for run in due if not os.access(run, os.W_OK)]
    for run in fixed:
        say(
            f"ecrl: {run}: cannot be written, so it is not verified; ecrl report --judge judges"
            " without storing anything"
        )
    due = [run for run in due if run not in fixed]
    if not due:
        return
    say(
        f"verifying {plural(len(due), 'run')} without a verdict that holds (--no-verify leaves that"
        " out)"
    )
    with Progress(
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("verifying", total=len(due))

        def judged(answer: tuple[str, str]) -> None:
            bar.update(task, advance=1, refresh=True)
            run, error = answer
            if error:
                say(error)
            elif bar.disable and len(due) > 1:
                say(f"verified {run}")

        known = References()
        side_by_side(partial(_judged, known=known), due, known, done=judged)


def _judged(run: Path, known: References) -> tuple[str, str]:
    """The run's name, and why it cannot be judged (empty if it was)."""
    answer = judge(run, None, known)
    return run.name, answer.text if "error" in answer.document else ""


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl report", add_help=False, allow_abbrev=False)
    made.add_argument("folders", nargs="+", type=Path)
    made.add_argument("--out", type=Path)
    made.add_argument("--against", type=Path)
    made.add_argument("--history", action="store_true")
    made.add_argument("--judge", action="store_true")
    made.add_argument("--junit", type=Path)
    made.add_argument("--github", action="store_true")
    made.add_argument("--runs", action="store_true")
    made.add_argument("--no-verify", dest="verify", action="store_false")
    made.add_argument("--json", action="store_true")
    return made
