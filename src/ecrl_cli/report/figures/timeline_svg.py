"""A run's timeline as SVG: points and paths in boxes that stretch with the page, and the texts of their marks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecrl_cli.report.formats import count, duration, plural
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.timeline_view import AttemptView, TimelineView


def ticks(longest_s: float, most: int = 6) -> list[float]:
    """Round times from 0 to `longest_s` seconds, at most `most` of them after 0."""
    if longest_s <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(longest_s / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if longest_s / (power * factor) <= most)
    return [step * number for number in range(int(longest_s / step) + 1)]


def progress(view: TimelineView, longest_s: float) -> list[tuple[AttemptView, str]]:
    """Each attempt with progress, and its SVG points in a box of 1000 x 100, y downwards."""
    target = max(1, view.target_steps)
    lines = [(a, " ".join(f"{1000 * t / longest_s:.1f},{100 - 100 * step / target:.1f}" for t, step in a.progress)) for a in view.attempts]
    return [(attempt, line) for attempt, line in lines if line]


def attempt_text(attempt: AttemptView) -> str:
    """A line of text on an attempt."""
    r = attempt.record
    steps = "no step" if r.first_step is None or r.last_step is None else f"steps {count(r.first_step)} to {count(r.last_step)}"
    source = f", resumed from step {count(r.resumed_from_step)}" if r.resumed_from else ""
    return f"attempt {r.attempt}: {steps} in {duration(attempt.end - attempt.start)}{source}, {r.outcome}"


def family_seconds(view: TimelineView, family: str) -> float:
    """Seconds of the bands of `family`."""
    return math.fsum(strip.end - strip.start for strip in view.bands if strip.family == family)


def durable_text(view: TimelineView) -> str:
    """A line of text on the committed checkpoints."""
    took = [write.end - write.start for write in view.writes if write.outcome == "committed"]
    return f"{plural(len(took), 'durable checkpoint')}, {duration(math.fsum(took) / len(took))} each on average" if took else ""


def peak_tps(view: TimelineView) -> float:
    """The highest number of transfers per second."""
    return max((rate.tps for rate in view.disk), default=0.0)


def disk_points(view: TimelineView) -> str:
    """Transfers per second as SVG points in a box of 1000 x 100, a step per interval."""
    most, wall_s = peak_tps(view) or 1.0, view.wall_s
    return " ".join(f"{1000 * t / wall_s:.1f},{100 - 100 * rate.tps / most:.1f}" for rate in view.disk for t in (rate.start, rate.end))


def strip_paths(view: TimelineView, longest_s: float) -> dict[str, str]:
    """By family, its bands as one SVG path in a box of 10000 x 1."""
    paths: dict[str, str] = {}
    for strip in view.bands:
        paths[strip.family] = paths.get(strip.family, "") + _block(strip.start, strip.end, longest_s)
    return paths


def write_path(view: TimelineView, longest_s: float) -> str:
    """The committed checkpoints, from submission to commit, as one SVG path in a box of 10000 x 1; each at least wide enough to be visible."""
    least = longest_s / 300
    blocks = [(min(w.start, longest_s - least), max(w.end, w.start + least)) for w in view.writes if w.outcome == "committed"]
    return "".join(_block(start, min(end, longest_s), longest_s) for start, end in blocks)


def _block(start: float, end: float, longest_s: float) -> str:
    left, right = round(10000 * start / longest_s), round(10000 * end / longest_s)
    return f"M{left} 0h{right - left}v1h{left - right}z"


def longest(runs: Sequence[Run]) -> float:
    """The wall time of the longest run with a timeline."""
    return max([run.view.wall_s for run in runs if run.view], default=0.0)
