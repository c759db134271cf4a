"""A history in words: the headline, and what matters first: what fails, what is no longer run, what
became faster or slower.
"""

from __future__ import annotations

from ecrl_cli.report.formats import change, duration, plural, short
from ecrl_cli.report.model.history import MISSING, History, Track
from ecrl_cli.report.model.suite_gates import failed_gates
from ecrl_cli.report.tables.history import COMPARED, STATUS_WORDS, around
from ecrl_cli.report.text.claims import Statement, interval_words, noise_words
from ecrl_cli.report.text.summary import ReportSummary, told
from ecrl_cli.verify.verdict import UNKNOWN

MOST_NAMED = 5
_WORDS = {  # of more, and of less
    "goodput": ("is faster", "is slower"),
    "stall_per_checkpoint_s": ("stalls longer", "stalls less"),
    "durable_write_per_checkpoint_s": ("saves slower", "saves faster"),
}


def summarize_history(history: History) -> ReportSummary:
    """Opening sentences of a page of builds."""
    return told(
        *_headline(history),
        [_failing(history), _gates(history), _open(history), _changed(history), _builds(history)],
    )


def _headline(history: History) -> tuple[str, str]:
    now = [track for track in history.tracks if track.now]
    name = history.newest.name
    if history.failing:
        return f"{len(history.failing)} of {plural(len(now), 'arm')} failing in {name}", "bad"
    if not now:
        return f"{name} has no runs", "bad"
    unproven = sum(
        track.now is not None and track.now.status in (UNKNOWN, MISSING) for track in now
    )
    if unproven:
        return f"{unproven} of {plural(len(now), 'arm')} not proven in {name}", "doubt"
    if history.newest.comparison.exit_code:
        return f"Every arm of {name} is valid, but a quality gate failed", "bad"
    gone = sum(track.now is None for track in history.tracks)
    if gone:
        return (
            f"Every arm of {name} is valid, but {plural(gone, 'arm is', 'arms are')} no longer run",
            "doubt",
        )
    return f"Every arm of {name} is valid", "good"


def _failing(history: History) -> list[str]:
    """Which arm fails, since when, and why; the first MOST_NAMED."""
    found = [
        f"{_name(track)}: {_status(history, track)}. {short(track.now.why, 300)}"
        for track in history.failing[:MOST_NAMED]
        if track.now
    ]
    rest = len(history.failing) - len(found)
    return (
        [*found, f"{plural(rest, 'more arm fails', 'more arms fail')}; the first table names all."]
        if rest
        else found
    )


def _gates(history: History) -> list[str]:
    """The newest build's quality gates that failed, but for `verified`, which says what the
    verdicts of its arms say.
    """
    gates = failed_gates(history.newest.comparison.gates)
    failed = [
        f"Gate failed: {suite}: {each.name}: {short(each.message, 300)}."
        for suite, each in gates
        if each.name != "verified"
    ]
    rest = len(failed) - MOST_NAMED
    return (
        [*failed[:MOST_NAMED], f"{plural(rest, 'more gate')} failed; history.json names all."]
        if rest > 0
        else failed
    )


def _status(history: History, track: Track) -> str:
    assert track.now is not None
    word, since = STATUS_WORDS[track.now.status], history.builds[track.since].name
    if track.before is None:
        return f"{word}, new in {history.newest.name}"
    if track.since == len(history.builds) - 1 and track.last is not None:
        return (
            f"{word}; in {history.builds[track.last].name} it was"
            f" {STATUS_WORDS[track.before.status]}"
        )
    return f"{word} since {since}"


def _open(history: History) -> list[str]:
    gone = [track for track in history.tracks if track.now is None]
    mended = [
        track
        for track in history.tracks
        if track.now and track.before and track.now.status == "valid" != track.before.status
    ]
    found = [
        f"{_name(track)}: valid again."
        for track in mended[:MOST_NAMED]
        if track.before and track.before.status in ("invalid", "unfinished")
    ]
    last = [history.builds[track.last].name if track.last is not None else "" for track in gone]
    found += [
        f"{_name(track)}: not run any more; last in {name}."
        for track, name in zip(gone[:MOST_NAMED], last, strict=False)
    ]
    rest = len(gone) - MOST_NAMED
    return (
        [*found, f"{plural(rest, 'more arm is', 'more arms are')} not run any more."]
        if rest > 0
        else found
    )


def _changed(history: History) -> list[str | Statement]:
    """Changes that can be told from noise; in one sentence how many cannot."""
    apart: list[str | Statement] = []
    held, single = 0, 0
    for track in history.tracks:
        for measure in COMPARED:
            found = history.change(track, measure)
            if found is None or found.pair.mean_of_ratios is None:
                continue
            held += found.pair.n > 1
            single += found.pair.n == 1 and measure == "goodput"
            if found.sign:
                text = (
                    f"{_name(track)} {_WORDS[measure][0 if found.sign > 0 else 1]} than in"
                    f" {found.base}: {change(found.effect)}."
                )
                behind = (
                    f"Mean of ratios, {interval_words(found)}, {plural(found.pair.n, 'pair')};"
                    f" {noise_words(found)}."
                )
                apart.append(Statement(text, behind))
    if len(history.builds) < 2:
        return ["There is one build: nothing to hold it against."]
    rest = plural(held - len(apart), "other comparison") if apart else plural(held, "comparison")
    quiet = (
        f"{rest} with the build before: no difference that the pairs could show."
        if held > len(apart)
        else ""
    )
    once = (
        f"{plural(single, 'arm has', 'arms have')} one pair: a single observation, from which"
        " nothing is claimed."
        if single
        else ""
    )
    more = (
        f"{plural(len(apart) - MOST_NAMED, 'more change')} in the first table."
        if len(apart) > MOST_NAMED
        else ""
    )
    chance = (
        f"{len(apart)} of {plural(held, 'comparison')}, each at 95%: about {held / 20:.1g} would"
        " show by chance alone. How far two builds of the same code lie apart was not measured."
    )
    return [*apart[:MOST_NAMED], more, chance if apart else "", quiet, once]


def _builds(history: History) -> list[str]:
    """The builds, whether the newest ran in another environment, and what was left out."""
    first, newest = history.builds[0], history.newest
    span = (
        f" over {duration(newest.when - first.when)}"
        if first.when is not None and newest.when is not None and newest.when > first.when
        else ""
    )
    last, alike = (
        around(history, len(history.builds) - 1),
        f"{newest.name} ran in the environment of the build before.",
    )
    differs = (
        f"Around {newest.name} this changed: {last}."
        if last
        else alike
        if len(history.builds) > 1
        else ""
    )
    return [
        text
        for text in (f"{plural(len(history.builds), 'build')}{span}.", differs, *history.notes)
        if text
    ]


def _name(track: Track) -> str:
    return f"{track.suite or 'no suite'} {track.arm}"
