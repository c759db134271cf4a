"""The headline and sentences of a report: what ran, verdicts, costs, confidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ecrl_cli.report.formats import (
    at_scale,
    by_value,
    change,
    count,
    distance,
    duration,
    listed,
    plural,
    share,
    short,
)
from ecrl_cli.report.model.arms import BASES
from ecrl_cli.report.model.axes import UNNAMED
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import compared_arms, same_runs, versus
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.palette import FAMILIES
from ecrl_cli.report.text.claims import MANY, Statement, noise, repeated, sentences, winner
from ecrl_cli.report.text.effects import effect_statements
from ecrl_cli.verify.verdict import INVALID

MOST_FIRST = 6  # sentences on the first screen
MOST_BROKEN = 3  # runs named in the summary
_LONG_NUMBER = r"-?\d+\.\d{6,}(?:e[-+]?\d+)?"
# Of several broken promises the first of these is the cause of the others more often than not.
CAUSES = {
    "records-sealed": "records were changed after the run had ended",
    "records-consistent": "records contradict one another, so they were edited or are incomplete",
    "no-bad-checkpoint": "it went on from a checkpoint that had to be refused",
    "state-restored": "what a rank held after a restart is not what had been saved",
    "exactly-once": "samples were lost or repeated",
    "same-input": "the same samples became other inputs",
    "state-consistent": "ranks drifted apart, or a schedule was stepped too often or too rarely",
    "same-trajectory": (
        "something that no other promise watches changed the arithmetic, such as generators,"
        " kernels or the world size"
    ),
}


@dataclass(frozen=True)
class ReportSummary:
    """`tone`: good, bad or doubt. `paragraphs`: what broke, what ran and its verdicts, costs,
    confidence; each a tuple of statements.

    `leading`: those that are shown first, if not in this order.
    """

    headline: str
    tone: str
    paragraphs: tuple[tuple[Statement, ...], ...]
    leading: tuple[Statement, ...] = ()

    @property
    def first(self) -> tuple[Statement, ...]:
        """The MOST_FIRST statements that a page shows beside its picture."""
        return (*self.leading, *(each for each in self.statements if each not in self.leading))[
            :MOST_FIRST
        ]

    @property
    def rest(self) -> tuple[Statement, ...]:
        return tuple(each for each in self.statements if each not in self.first)

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(statement for paragraph in self.paragraphs for statement in paragraph)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Each statement with its statistics, as text."""
        return tuple(statement.whole for statement in self.statements)


def told(
    headline: str, tone: str, parts: Iterable[Iterable[str | Statement | None]]
) -> ReportSummary:
    """A summary of `parts`, without what is empty."""
    made = map(_statements, parts)
    return ReportSummary(headline, tone, tuple(part for part in made if part))


def _statements(part: Iterable[str | Statement | None]) -> tuple[Statement, ...]:
    return tuple(each if isinstance(each, Statement) else Statement(each) for each in part if each)


def summarize(comparison: Comparison) -> ReportSummary:
    apart = (
        f"The suites are not pooled: {comparison.why_not_pooled}."
        if comparison.why_not_pooled
        else ""
    )
    parts: list[list[str | Statement | None]] = [
        [*broken(comparison)],
        [_what_ran(comparison), _judged(comparison), _recovered(comparison)],
        [*effect_statements(comparison)],
        [
            *(sentences(comparison) if repeated(comparison) else _costs(comparison)),
            *_stalls(comparison),
            start_up(comparison),
        ],
        [
            noise(comparison),
            _confidence(comparison),
            apart,
            pooled_over(comparison),
            *comparison.notes,
            _left_out(comparison),
            _gates(comparison),
        ],
    ]
    found = told(*_headline(comparison), parts)
    broke, ran, axes, costs = (_statements(part) for part in parts[:4])
    return replace(found, leading=(*broke, *ran[:2], *axes, *costs)[:MOST_FIRST])


def _headline(comparison: Comparison) -> tuple[str, str]:
    invalid = [run for run in comparison.runs if run.verdict.status == "invalid"]
    unjudged = [run for run in comparison.counted if run.verdict.status != "valid"]
    if invalid:
        return f"{len(invalid)} of {plural(len(comparison.runs), 'run')} broke a promise", "bad"
    if not comparison.counted:
        return "No run has reached its target", "bad"
    if unjudged:
        return (
            (
                f"Not proven: {len(unjudged)} of {plural(len(comparison.counted), 'finished run')}"
                " without a valid verdict"
            ),
            "doubt",
        )
    recovered = [
        run
        for run in comparison.counted
        if run.counted and (run.counted.restarts or run.counted.survivals)
    ]
    judged = "Every recovery was judged valid" if recovered else "Every run was judged valid"
    if unchecked := [run for run in recovered if _trajectory(run) != "valid"]:
        judged = (
            f"Every run was judged valid, the trajectory of {len(unchecked)} of"
            f" {plural(len(recovered), 'recovered run')} was not checked"
        )
    if comparison.left_out:
        return f"{judged}, but {plural(len(comparison.left_out), 'run')} did not finish", "doubt"
    if comparison.exit_code:
        return f"{judged}, but a quality gate failed", "bad"
    won = winner(comparison)
    return f"{won}. {judged}" if won else judged, "good"


def broken(comparison: Comparison) -> list[str]:
    """For each run that broke a promise (MOST_BROKEN of them): which run, which promise, the
    verdict's sentence, and the likely cause.
    """
    invalid = [run for run in comparison.runs if run.verdict.status == INVALID]
    named = []
    for run in invalid[:MOST_BROKEN]:
        messages = {
            finding.promise: finding.message
            for finding in run.verdict.findings
            if finding.status == INVALID
        }
        wrong = {
            name: short(_few_digits(message.removeprefix(f"Broke promise: {name} - ")), 300)
            for name, message in messages.items()
        }
        promise = next(iter(wrong))
        also = f"; it broke {listed(list(wrong)[1:])} too" if len(wrong) > 1 else ""
        named.append(f"{run.name} broke {promise}: {wrong[promise]}{also}.{_likely_cause(wrong)}")
    more = len(invalid) - len(named)
    return (
        [*named, f"{plural(more, 'more run')} broke a promise; the table of runs names them."]
        if more
        else named
    )


def _few_digits(text: str) -> str:
    """`text` with six digits of each longer number, if they still tell all of its numbers apart."""
    numbers = set(re.findall(_LONG_NUMBER, text))
    brief = {number: f"{float(number):.6g}" for number in numbers}
    return (
        re.sub(_LONG_NUMBER, lambda match: brief[match[0]], text)
        if len(set(brief.values())) == len(numbers)
        else text
    )


def _likely_cause(wrong: dict[str, str]) -> str:
    """Which of the broken promises explains the others, with what is said of it, unless that is
    said already.
    """
    cause = next((name for name in CAUSES if name in wrong), "")
    said = "" if cause in ("", next(iter(wrong))) else f" ({wrong[cause]})"
    return f" Likely cause: {CAUSES[cause]}{said}." if cause else ""


def _what_ran(comparison: Comparison) -> str:
    counted = comparison.counted
    if not counted:
        return f"{plural(len(comparison.runs), 'run')} found, none finished."
    seeds = sorted({run.seed for run in counted}, key=by_value)
    steps = sorted({m.target_steps for m in comparison.metrics})
    scales = sorted({m.scale for m in comparison.metrics})
    suites = list(dict.fromkeys(run.suite for run in counted))
    where = suites[0] if len(suites) == 1 else plural(len(suites), "suite")
    seeded = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    lasted = f"{listed([f'{s:,}' for s in steps])} steps{at_scale(listed(scales))}"
    named = {
        variant: "" if variant == UNNAMED else f"{variant} in " for variant in _settings(comparison)
    }
    arms = [
        f"{named[variant]}{len(labels)} settings" if len(labels) > MANY else listed(labels)
        for variant, labels in _settings(comparison).items()
    ]
    return f"{plural(len(counted), 'run')} of {where}: {listed(arms)}; {seeded}, {lasted}."


def _settings(comparison: Comparison) -> dict[str, list[str]]:
    """The labels of each variant of the runs: one, or one per setting of what else a sweep
    varied.
    """
    found: dict[str, list[str]] = {}
    for arm in comparison.without_references.arms:
        labels = found.setdefault(arm.variant, [])
        labels += [arm.label] if arm.label not in labels else []
    return found


def _judged(comparison: Comparison) -> str:
    states = [run.verdict.status for run in comparison.runs]
    counts = [
        (states.count(status), word)
        for status, word in (("valid", "valid"), ("invalid", "invalid"), ("unknown", "unknown"))
    ]
    text = (
        "Verify judged "
        + listed([f"{number} of {len(states)} {word}" for number, word in counts if number])
        + "."
    )
    missing, stale = states.count("missing"), sum(bool(run.verdict.why) for run in comparison.runs)
    note = (
        f" {plural(stale, 'verdict')} on file {'is' if stale == 1 else 'are'} not of what lies"
        " there now: run ecrl verify again."
        if stale
        else ""
    )
    if missing == len(states):
        return "No run has been verified yet: run ecrl verify." if not stale else note.strip()
    unchecked = sum(
        finding.status == "not checked"
        for run in comparison.runs
        for finding in run.verdict.findings
    )
    text += (
        f" {plural(unchecked, 'promise')} not checked, because nothing could be held against them."
        if unchecked
        else ""
    )
    return text + (f" {plural(missing, 'run')} not verified." if missing else "") + note


def _recovered(comparison: Comparison) -> str:
    restarts = sum(m.restarts for m in comparison.metrics)
    replayed = sum(m.replayed_steps for m in comparison.metrics)
    facts = (
        [f"{plural(restarts, 'restart')} in all; {plural(replayed, 'step')} had to be done again."]
        if restarts
        else []
    )
    if survivals := sum(m.survivals for m in comparison.metrics):
        lost = sum(m.lost_samples for m in comparison.metrics)
        facts.append(
            f"In {plural(survivals, 'recovery', 'recoveries')} ranks went on with the state in"
            f" their memory; {plural(lost, 'sample')} were lost."
        )
    return " ".join(facts) or "Nothing failed and nothing was restarted."


def _costs(comparison: Comparison) -> list[str]:
    """If every comparison is a single pair: one sentence per arm, with a range over several suites;
    one for all settings of a variant that has many, which names the lowest and the highest.
    """
    settings = _settings(comparison)
    variants = {arm.label: arm.variant for arm in comparison.arms}
    ratios_by_label: dict[str, list[tuple[int, str]]] = {}
    in_settings: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for label, base in (both for both in compared_arms(comparison) if not same_runs(*both)):
        found = [
            pair
            for suite in comparison.passed
            if (pair := versus(comparison, label, base, "goodput", [suite]))
        ]
        ratios = [pair.mean_of_ratios.mean for pair in found if pair.mean_of_ratios]
        if ratios and len(settings.get(variants[label], ())) > MANY:
            setting = (
                next((arm.setting for arm in comparison.arms if arm.label == label), "")
                or "as it is"
            )
            in_settings.setdefault((variants[label], variants[base]), []).extend(
                (ratio, setting) for ratio in ratios
            )
        elif ratios:
            order = BASES.index(base) if base in BASES else len(BASES)
            ratios_by_label.setdefault(label, []).append(
                (order, f"{distance(min(ratios), max(ratios))} {base}")
            )
    scale = at_scale(comparison.scale(comparison.passed))
    each = [
        f"Goodput of {label} is"
        f" {listed([text for _, text in sorted(parts, key=lambda part: part[0])])}{scale}."
        for label, parts in ratios_by_label.items()
    ]
    return each + [
        _over_settings(variant, base, sorted(found), scale)
        for (variant, base), found in in_settings.items()
    ]


def _over_settings(variant: str, base: str, found: list[tuple[float, str]], scale: str) -> str:
    """`found`: the ratios in ascending order, each with its setting."""
    (low, lowest), (high, highest) = found[0], found[-1]
    above = sum(ratio > 0 for ratio, _ in found)
    ends = f"{change(low)} ({lowest}) to {change(high)} ({highest})"
    return (
        f"Goodput of {variant} against {base} in {len(found)} settings: {ends}, above it in"
        f" {above}; one pair each{scale}."
    )


def _stalls(comparison: Comparison) -> list[str]:
    stalls = []
    for variant, labels in _settings(comparison).items():
        for names in [labels] if len(labels) > MANY else [[label] for label in labels]:
            values = [
                v
                for v in (
                    arm.shown("stall_per_checkpoint_s")
                    for arm in comparison.arms
                    if arm.label in names
                )
                if v is not None
            ]
            if values:
                low, high = duration(min(values)), duration(max(values))
                stalls.append(
                    f"{low if low == high else f'{low} to {high}'} in"
                    f" {variant if len(names) > 1 else names[0]}"
                )
    return (
        [
            "A checkpoint keeps the training thread waiting for"
            f" {listed(stalls)}{at_scale(comparison.scale())}."
        ]
        if stalls
        else []
    )


def start_up(comparison: Comparison) -> str:
    """Which arms spent most of their time on starting, if any: their goodput says more of starts
    than of steps.
    """
    found = []
    for label in comparison.labels:
        metrics = [m for arm in comparison.arms if arm.label == label for m in arm.metrics]
        wall_s = sum(m.wall_s for m in metrics)
        part = (
            sum(m.seconds[category] for m in metrics for category in FAMILIES["starting"]) / wall_s
            if wall_s > 0
            else 0.0
        )
        found += [f"{share(part)} of {label}"] if part > 0.5 else []
    text = (
        "Most of the time is start-up: {} (launch, imports, rendezvous, load, warm-up). Their"
        " goodput says more of starts than of steps."
    )
    return text.format(listed(found)) if found else ""


def pooled_over(comparison: Comparison) -> str:
    """Note that numbers over all suites pool different models or data sets; else empty."""
    names: dict[str, list[str]] = {"model": [], "dataset": []}
    for run in comparison.counted if comparison.pooled_suites else ():
        for key, found in names.items():
            name = str((run.config.get(key) or {}).get("name", ""))
            found += (
                [name]
                if run.suite in comparison.pooled_suites and name and name not in found
                else []
            )
    parts = [
        f"{word} ({', '.join(names[key])})"
        for key, word in (("model", "models"), ("dataset", "data sets"))
        if len(names[key]) > 1
    ]
    return (
        f"Numbers over all suites pool different {' and '.join(parts)}; each suite stands alone in"
        " the tables."
        if parts
        else ""
    )


def _confidence(comparison: Comparison) -> str:
    numbers = sorted({len(arm.metrics) for arm in comparison.arms})
    if not numbers:
        return ""
    if numbers[-1] == 1:
        return (
            "Each arm is one run: what differs between arms is a single observation, without an"
            " interval."
        )
    several = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return (
        f"Each arm has {several} runs per suite; intervals are 95% by Student's t, comparisons are"
        " means of ratios of pairs of one suite and seed."
    )


def _left_out(comparison: Comparison) -> str:
    if not comparison.left_out:
        return ""
    return (
        f"Not compared: {listed([f'{run.name} ({run.reason})' for run in comparison.left_out[:3]])}"
        + (
            f" and {count(len(comparison.left_out) - 3)} more."
            if len(comparison.left_out) > 3
            else "."
        )
    )


def _gates(comparison: Comparison) -> str:
    failing = [
        f"{suite} ({', '.join(g.name for g in gates if not g.passed)})"
        for suite, gates in comparison.gates.items()
        if not all(g.passed for g in gates)
    ]
    return f"Not averaged, because a quality gate failed: {listed(failing)}." if failing else ""


def _trajectory(run: Run) -> str:
    """The status of the promise `same-trajectory`: whether the run was compared with a
    reference.
    """
    return next(
        (
            finding.status
            for finding in run.verdict.findings
            if finding.promise == "same-trajectory"
        ),
        "not checked",
    )
