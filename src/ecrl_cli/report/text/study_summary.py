"""The headline and progress of a study in words, and the command that runs it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.studies import STUDIES
from ecrl_cli.report.formats import count, duration, listed, plural
from ecrl_cli.report.model.study_record import StudyResult, headline
from ecrl_cli.report.text.summary import ReportSummary, told

_WORST_FIRST = ("bad", "doubt", "good")


def progress(study: StudyResult) -> str:
    """Trials and gates, for one line."""
    result = study.result
    if result is None:
        return "no result.json: the study has not ended"
    passed = len(result.gates) - len(study.failed)
    trials = f"{count(result.done)} of {plural(result.planned, 'trial')}"
    skipped = f", skipped: {listed([skip.arm for skip in result.skips])}" if result.skips else ""
    return (
        f"{trials}, {passed} of {plural(len(result.gates), 'gate')} passed{skipped}, seed"
        f" {study.seed}"
    )


def badge(study: StudyResult) -> tuple[str, str, str]:
    """Tone, symbol and word."""
    tone = headline(study)[1]
    if tone != "doubt":
        return {
            "good": ("good", "\N{CHECK MARK}", "passed"),
            "bad": ("bad", "\N{MULTIPLICATION X}", "failed"),
        }[tone]
    return (
        "doubt",
        "?",
        (
            "no result"
            if study.result is None
            else "with skips"
            if study.result.complete
            else "incomplete"
        ),
    )


def summarize_studies(studies: Sequence[StudyResult]) -> ReportSummary:
    """The summary of all studies: the worst result in the headline, then one sentence for each."""
    tones = [headline(study)[1] for study in studies]
    worst = min(tones, key=_WORST_FIRST.index)
    named = listed(
        list(
            dict.fromkeys(
                study.name for study, tone in zip(studies, tones, strict=True) if tone == worst
            )
        )
    )
    if len(studies) == 1:
        title = f"{studies[0].name}: {headline(studies[0])[0]}"
    elif worst == "good":
        title = f"Every gate of {plural(len(studies), 'study', 'studies')} passed"
    else:
        title = (
            f"Gates failed in {named}"
            if worst == "bad"
            else f"No gate failed, but not everything was tried: {named}"
        )
    return told(title, worst, ([f"{study.name}: {progress(study)}."] for study in studies))


def join_summaries(runs: ReportSummary, studies: ReportSummary) -> ReportSummary:
    """One summary for runs and studies: the runs first, with the worse tone."""
    tone = min((runs.tone, studies.tone), key=_WORST_FIRST.index)
    title = (
        runs.headline
        if _WORST_FIRST.index(runs.tone) <= _WORST_FIRST.index(studies.tone)
        else f"{runs.headline}. {studies.headline}"
    )
    return ReportSummary(title, tone, (*runs.paragraphs, studies.statements), runs.leading)


def worst_code(codes: Sequence[int]) -> int:
    """The exit code of the report: a failed gate (1) outweighs missing evidence (3)."""
    return next((code for code in (1, 3) if code in codes), 0)


def command(study: StudyResult) -> str:
    """The command that runs the study again, with every key that differs from its default."""
    config = study.result.config if study.result else {}
    inner = config.get("study")
    inner = inner if isinstance(inner, dict) else {}
    kind = STUDIES.get(study.name)
    usual: dict[str, Any] = encode(kind()) if kind else {}
    words = [f"study={study.name}", f"seed={study.seed}"]
    words += [
        f"study.{key}={_value(value)}"
        for key, value in inner.items()
        if key != "name" and value != usual.get(key)
    ]
    return " ".join(["ecrl", "study", *map(shlex.quote, words)])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def circumstances(study: StudyResult) -> str:
    """The system it ran on, and how long its trials took."""
    environment = study.environment
    system, processor = environment.get("file_system"), environment.get("cpu")
    system, processor = (part if isinstance(part, dict) else {} for part in (system, processor))
    parts = [f"Linux {environment['kernel']}"] if environment.get("kernel") else []
    parts += [f"{system['type']} on {system.get('mount_point', '?')}"] if system.get("type") else []
    parts += (
        [f"{processor['model']}, {processor.get('logical', '?')} processors"]
        if processor.get("model")
        else []
    )
    parts += [f"ECRL {environment['ecrl']}"] if environment.get("ecrl") else []
    if study.result:
        parts.append(f"{duration(study.result.seconds)} of trials")
    return "; ".join(parts)
