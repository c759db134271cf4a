"""`ecrl verify`: judges each run, stores the verdict beside its records, has the named checkpoints
scrubbed, and exits with the worst code.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ecrl_cli.checkpoint.format.names import STEP_METADATA
from ecrl_cli.checkpoint.repair.repair import check_folder
from ecrl_cli.checkpoint.repair.scrub import ScrubConfig
from ecrl_cli.cli.ci import FAILED, PASSED, SKIPPED, CiCase, Suite, check_report
from ecrl_cli.cli.ci import tell as tell_ci
from ecrl_cli.cli.console import Parser, out, restrict, say
from ecrl_cli.cli.judged_elsewhere import judged, set_apart
from ecrl_cli.cli.manifest import verify_manifests
from ecrl_cli.cli.scrub import VerifyOutput, integrity_config, scrubbed, unreadable
from ecrl_cli.cli.targets import Checkpoints, checked, checkpoints_of, sorted_out
from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.config.machine import check_torch
from ecrl_cli.errors import (
    ConfigError,
    EcrlError,
    EvidenceMissing,
    RunDirectoryError,
    first_line,
    visible,
)
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.parallel import parallel_map
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.verdict_file import verdict_file
from ecrl_cli.runs.tracking.tracked import tell
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.run_lock import held
from ecrl_cli.verify.reference import References
from ecrl_cli.verify.seal import in_run
from ecrl_cli.verify.verdict import EXIT_CODES, render
from ecrl_cli.verify.verify_run import named, verify_run

T = TypeVar("T")
WORST_FIRST = (5, 4, 1, 2, 3, 0)


def verify(argv: Sequence[str]) -> int:
    """0 if everything is valid; else the worst: 4 a folder has checkpoints and none is valid, 1 a
    run or a checkpoint is invalid, 2 a run's records cannot be read, 3 evidence is missing for one;
    5 where a folder could not be read or a repaired copy not be written.
    """
    began, flags = monotonic(), parser().parse_args(list(argv))
    restrict(private=False)
    if flags.manifest:
        _refuse_beside_manifest(flags)
        return verify_manifests(flags.folders, flags.max_bytes, flags.json)
    reference = checked(flags.reference) if flags.reference else None
    key = read_key(str(flags.seal_key), "--seal-key") if flags.seal_key else b""
    given, apart = set_apart(flags.folders, studies=True)
    runs, folders = sorted_out(given) if given else ([], [])
    if flags.seal_key and (
        theirs := next(
            (run for run in runs if in_run(RunLayout(named(run)), str(flags.seal_key))), None
        )
    ):
        raise ConfigError(
            "--seal-key",
            f"lies in {theirs}, which it is to vouch for",
            "name a key that was never in the hands of the sender",
        )
    if flags.scrub:
        folders += [found for run in runs if (found := checkpoints_of(run)) is not None]
    _check_flags(flags, folders)
    check_report(flags.junit)
    known = References(key)
    if flags.with_reference and (stopped := train_references(runs, known)):
        return stopped
    answers = dict(
        zip(
            map(str, runs),
            side_by_side(partial(judge, reference=reference, known=known), runs, known),
            strict=True,
        )
    )
    answers |= {str(folder): judged(folder) for folder in apart}
    for run in runs if flags.track else ():
        with suppress(EcrlError, OSError):  # the verdict says what is wrong with it
            tell(read_run_config(RunLayout(run)).config, RunLayout(named(run)), say)
    for folder in folders:
        config = ScrubConfig(
            flags.sample, flags.deep, integrity_config(folder.folder.resolve(), flags.max_bytes)
        )
        answers[folder.label] = scrubbed(folder, config, flags.repair)
    cases = [
        case for name, answer in answers.items() for case in promise_cases(name, answer.document)
    ]
    tell_ci(
        Suite("ecrl verify", _together(answers.values()), seconds=monotonic() - began),
        cases,
        flags.junit,
        annotate=flags.github,
    )
    if flags.json:
        sys.stdout.write(
            json.dumps({name: answer.document for name, answer in answers.items()}, indent=2) + "\n"
        )
    for answer in answers.values():
        _say(answer, flags.json)
    return next(
        code for code in WORST_FIRST if code in {answer.exit_code for answer in answers.values()}
    )


def parser() -> Parser:
    """The argument parser."""
    made = Parser(prog="ecrl verify", add_help=False, allow_abbrev=False)
    made.add_argument("folders", nargs="+", type=Path)
    made.add_argument("--reference", type=Path)
    made.add_argument("--with-reference", action="store_true")
    made.add_argument("--seal-key", type=Path)
    made.add_argument("--json", action="store_true")
    made.add_argument("--junit", type=Path)
    made.add_argument("--github", action="store_true")
    made.add_argument("--track", action="store_true")
    made.add_argument("--scrub", action="store_true")
    made.add_argument("--deep", action="store_true")
    made.add_argument("--sample", type=int, default=0)
    made.add_argument("--max-bytes", type=int, default=0)
    made.add_argument("--repair", type=Path)
    made.add_argument("--manifest", action="store_true")
    return made


def _refuse_beside_manifest(flags: argparse.Namespace) -> None:
    """ConfigError for a flag that is of runs or of ECRL's checkpoints."""
    others = (
        "reference",
        "with_reference",
        "seal_key",
        "junit",
        "github",
        "track",
        "scrub",
        "deep",
        "sample",
        "repair",
    )
    if named := [name for name in others if getattr(flags, name)]:
        fact = (
            "--manifest is for folders of files that ECRL did not write,"
            f" --{named[0].replace('_', '-')} is not"
        )
        raise ConfigError("arguments", fact, "leave one of them out")
    if flags.max_bytes < 0:
        raise ConfigError(
            "--max-bytes", "must not be negative", "leave it out to look at everything"
        )


def promise_cases(name: str, document: dict[str, Any]) -> list[CiCase]:
    """A case for each promise of a run; one for a folder of checkpoints, or for what could not be
    read.
    """
    run = Path(name).name or name
    states = {
        "valid": PASSED,
        "invalid": FAILED,
        "no valid checkpoint": FAILED,
        "kept": PASSED,
        "broken": FAILED,
    }
    if "findings" not in document:
        state = states.get(document["status"], SKIPPED)
        return [CiCase(run, "verify", state, document.get("error", "") or str(document["status"]))]
    found = [(each["promise"], each["status"], each["message"]) for each in document["findings"]]
    evidence = [tuple(map(str, each.get("evidence") or ())) for each in document["findings"]]
    return [
        CiCase(
            run,
            promise,
            states.get(status, SKIPPED),
            text if status in states else f"{status}: {text}",
            why,
        )
        for (promise, status, text), why in zip(found, evidence, strict=True)
    ]


def _together(answers: Iterable[VerifyOutput]) -> str:
    """The verdict on everything that was named: the worst, as the exit code has it."""
    codes = {answer.exit_code for answer in answers}
    worst = next(code for code in WORST_FIRST if code in codes)
    return {0: "valid", 1: "invalid", 4: "invalid", 3: "unknown"}.get(worst, "not judged")


def _check_flags(flags: argparse.Namespace, folders: list[Checkpoints]) -> None:
    if flags.reference and flags.with_reference:
        raise ConfigError(
            "--with-reference",
            "a reference is named already",
            "leave --reference or --with-reference out",
        )
    for name in ("sample", "max_bytes"):
        if getattr(flags, name) < 0:
            raise ConfigError(
                f"--{name.replace('_', '-')}",
                "must not be negative",
                "leave it out to look at everything",
            )
    if not folders and (flags.deep or flags.sample or flags.repair or flags.max_bytes):
        fact = "--deep, --sample, --max-bytes and --repair are for checkpoints"
        raise ConfigError("arguments", fact, "name a folder of checkpoints, or add --scrub")
    for each in folders:
        if next(each.folder.glob(f"step_*/{STEP_METADATA}"), None):
            fact = "holds steps that another checkpointer wrote: only that can read them"
            raise ConfigError(
                each.label,
                fact,
                "name the run without --scrub: it is judged by what its ranks recorded",
            )
    if flags.repair and len(folders) != 1:
        raise ConfigError(
            "--repair",
            f"takes the checkpoints of one folder, got {len(folders)}",
            "name one folder of checkpoints",
        )
    if flags.repair:
        check_folder(flags.repair, folders[0].folder)


def side_by_side(
    judged: Callable[[Path], T],
    runs: Sequence[Path],
    known: References,
    done: Callable[[T], object] = lambda answer: None,
) -> list[T]:
    """`judged` of each run, in order, in several processes. Runs that are each other's references
    go to one of them, which then checks each once; not where there are so few that another process
    would wait.
    """
    groups = defaultdict[object, list[int]](list)
    for place, run in enumerate(runs):
        stored = known.stored(RunLayout(named(run)))
        groups[named(run).parent, stored.reference_id if stored else run].append(place)
    together = list(groups.values())
    if len(together) < 2 * (os.cpu_count() or 1):
        together = [[place] for place in range(len(runs))]

    def answers_of(places: list[int]) -> list[T]:
        return [judged(runs[place]) for place in places]

    def tell(answers: list[T]) -> None:
        for answer in answers:
            done(answer)

    collecting = gc.isenabled()
    # records are many objects without cycles: looking for cycles among them is an eighth of the
    # time
    gc.disable()
    try:
        found = parallel_map(answers_of, together, done=tell)
    finally:
        if collecting:
            gc.enable()
    answers = {
        place: answer
        for places, told in zip(together, found, strict=True)
        for place, answer in zip(places, told, strict=True)
    }
    return [answers[place] for place in range(len(runs))]


def judge(run: Path, reference: Path | None, known: References) -> VerifyOutput:
    """Judges one run and stores verdict.json and divergence.json beside its records, unless they
    are still being written; `document` has `error` where the run cannot be judged.
    RunDirectoryError where `reference` cannot be used.
    """
    try:
        verdict = verify_run(run, reference, known)
    except RunDirectoryError:  # the named reference is unusable
        raise
    except EcrlError as error:  # this run cannot be judged; the others can
        return unreadable(str(run), error)
    except OSError as error:
        return unreadable(
            str(run),
            EvidenceMissing(
                "records", f"cannot be read ({error.strerror})", "restore the run directory"
            ),
        )
    except Exception as error:
        return unreadable(
            str(run),
            EvidenceMissing(
                "records",
                f"cannot be judged ({first_line(error, 200)})",
                "restore the run directory, or report this",
            ),
        )
    document = verdict.to_json()
    name = document.get("reference", "")  # of the run that it was judged against
    against = (
        RunLayout(named(reference) if reference else named(run).parent / name) if name else None
    )
    text = render(verdict).rstrip()
    if verdict.judged_to_step is None and not held(RunLayout(named(run))):
        _keep(run, document, against, _apart(run, against, known))
    else:
        text += "\n  not stored: the records go on"
    return VerifyOutput(text, document, EXIT_CODES[verdict.status])


def _apart(run: Path, reference: RunLayout | None, known: References) -> dict[str, Any] | None:
    """How far the run's final state is from its reference's."""
    if reference is None:
        return None
    try:
        return divergence_document(known.records(RunLayout(named(run))), known.records(reference))
    except Exception as error:
        # the verdict stands without the distances: file damage is reported by the verdict
        say(f"ecrl: {visible(run)}: no divergence ({visible(error)})")
        return None


def _keep(
    run: Path, document: dict[str, Any], reference: RunLayout | None, apart: dict[str, Any] | None
) -> None:
    """Stores the verdict and its distances. The distances of an earlier verdict go with it: they
    say nothing about this one.
    """
    layout = RunLayout(named(run))
    try:
        write_json(layout.verdict, verdict_file(layout, document, reference, apart))
        if apart is not None:
            write_json(layout.divergence, apart)
        else:
            layout.divergence.unlink(missing_ok=True)
    except OSError as error:
        # an archived copy may be read-only: the verdict is printed all the same
        say(f"ecrl: {visible(run)}: the verdict is not stored ({error.strerror})")


def _say(answer: VerifyOutput, as_json: bool) -> None:
    if "error" in answer.document:
        say(answer.text)
    elif not as_json:
        out(answer.text)


def train_references(runs: Sequence[Path], known: References) -> int:
    """Trains one reference for all of `runs` that share it, where none exists: returns 0, or the
    exit code where that was stopped by a signal.

    Errors are printed; the run is then judged as it is.
    """
    # Imported here: the supervising side takes half a second to load, which a verdict from records
    # alone does not need.
    from ecrl_cli.runs.reference_training import announcement, required
    from ecrl_cli.runs.run import RunContext, run
    from ecrl_cli.supervision.launch.launcher import LauncherCache

    launchers, mask = LauncherCache(), restrict(private=any(_private(run) for run in runs))
    try:
        for folder in runs:
            try:
                due = required(folder, known)
                if not isinstance(due, str):
                    check_torch()
            except (EcrlError, OSError) as error:
                say(
                    f"{folder}: no reference is trained"
                    f" ({error.line() if isinstance(error, EcrlError) else error.strerror})"
                )
                continue
            if isinstance(due, str):
                say(f"{folder}: {due}")
                continue
            reference, records = due
            say(announcement(reference, records))
            result = run(reference, RunContext(say, launchers))
            if result.stopped:
                say("the same command trains it again")
                return result.exit_code
    finally:
        launchers.close()
        os.umask(mask)
    return 0


def _private(run: Path) -> bool:
    with suppress(EcrlError, OSError):  # `ecrl verify` says what is wrong with the run itself
        return read_run_config(RunLayout(run)).config.private
    return True
