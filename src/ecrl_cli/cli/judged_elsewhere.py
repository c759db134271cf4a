"""Folders given to `ecrl verify` and `ecrl report` that are no run: an audit, which is judged
again, and a study, which is judged by its gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.cli.console import say
from ecrl_cli.cli.scrub import VerifyOutput, unreadable
from ecrl_cli.errors import EcrlError, plural, visible
from ecrl_cli.records.layout import StudyLayout
from ecrl_cli.report.model.inputs import StudyInput, is_run, is_study


def is_audit(folder: Path) -> bool:
    """Whether `folder` is one that `ecrl audit` made."""
    return (
        folder.is_dir()
        and not is_run(folder)
        and ((folder / "audit.json").is_file() or any(folder.glob("*/arm.json")))
    )


def set_apart(paths: Sequence[Path], studies: bool) -> tuple[list[Path], list[Path]]:
    """(folders of runs and checkpoints, audits) in `paths`; with `studies` these are set apart,
    too. A folder of several kinds stands in both.
    """

    def is_apart(folder: Path) -> bool:
        return is_audit(folder) or (studies and folder.is_dir() and is_study(folder))

    others: list[Path] = []
    apart: list[Path] = []
    for path in paths:
        if is_apart(path):
            apart.append(path)
            continue
        children = sorted(path.iterdir()) if path.is_dir() and not is_run(path) else []
        inner = [child for child in children if not child.is_symlink() and is_apart(child)]
        apart += inner
        rest = [
            child
            for child in children
            if child not in inner and child.is_dir() and (is_run(child) or is_study(child))
        ]
        if rest or not inner:
            others.append(path)
    return others, list(dict.fromkeys(apart))


def judged(folder: Path) -> VerifyOutput:
    """The answer on an audit or a study; `document` has `error` where it cannot be judged."""
    try:
        return _audit(folder) if is_audit(folder) else _study(folder)
    except EcrlError as error:
        return unreadable(str(folder), error)


def _audit(folder: Path) -> VerifyOutput:
    """Judges the recording again, and writes audit.json and the page as `ecrl audit DIR` does."""
    from ecrl_cli.audit.audit import asked_of, judge_folder, order_of, write_result
    from ecrl_cli.audit.verdict import render
    from ecrl_cli.verify.verdict import EXIT_CODES

    asked = asked_of(folder)
    verdict = judge_folder(folder, None, order_of(asked))
    try:
        write_result(folder, verdict, asked)
    except OSError as error:
        # an archived copy may be read-only: the verdict is printed all the same
        say(f"ecrl: {visible(folder)}: the verdict is not stored ({error.strerror})")
    document = verdict.to_json()
    for finding in document["findings"]:
        finding["promise"] = (
            f"{finding['promise']} [{finding['arm']}]" if finding["arm"] else finding["promise"]
        )
    text = render(verdict, folder.absolute().name)
    return VerifyOutput(
        f"{text}\npage: {folder / 'report' / 'index.html'}", document, EXIT_CODES[verdict.status]
    )


def _study(folder: Path) -> VerifyOutput:
    from ecrl_cli.report.model.study_record import headline, read_studies

    (study,) = read_studies([StudyInput(StudyLayout(folder), folder.absolute().name)])
    gates = study.result.gates if study.result else ()
    findings = [
        {
            "promise": gate.name,
            "status": "valid" if gate.passed else "invalid",
            "message": gate.message,
        }
        for gate in gates
    ]
    status = {0: "valid", 1: "invalid", 3: "unknown"}[study.exit_code]
    failing = sorted(gates, key=lambda gate: gate.passed)
    lines = [
        f"{folder.absolute().name}: {status} ({plural(len(gates), 'gate')} of a study):"
        f" {headline(study)[0]}"
    ]
    lines += [
        f"  {'valid' if gate.passed else 'invalid':<12}{gate.name}: {gate.message}"
        for gate in failing
    ]
    document = {"status": status, "study": study.name, "findings": findings}
    if not study.result:
        document["error"] = "no result.json"
    return VerifyOutput("\n".join(map(visible, lines)), document, study.exit_code)
