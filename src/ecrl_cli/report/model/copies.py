"""The same run twice is one run: copies of a recording count once, and a copy that differs makes both of them no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ecrl_cli.report.formats import listed, plural
from ecrl_cli.report.model.run_record import Run


def once(runs: Sequence[Run]) -> tuple[list[Run], tuple[str, ...]]:
    """`runs` with each recording once, and what was done about the others, in sentences.

    Copies are known by the start of their first supervisor, on two clocks. Alike in every record: the first stays. Not alike: somebody changed one
    of them, or went on with both, and none is counted. Two recordings of one run id and suite, begun at different times, are repeats: both count.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        key = (run.recording.run_id, run.recording.start) if run.recording else id(run)
        groups.setdefault(key, []).append(run)
    kept: list[Run] = []
    notes: list[str] = []
    for members in groups.values():
        found, said = _of_one_recording(members)
        kept += found
        notes += said
    order = {id(run.place): place for place, run in enumerate(runs)}
    return sorted(kept, key=lambda run: order[id(run.place)]), (*notes, *_repeats(kept))


def _of_one_recording(members: list[Run]) -> tuple[list[Run], list[str]]:
    by_content: dict[str, list[Run]] = {}
    for run in members:
        by_content.setdefault(run.recording.content if run.recording else "", []).append(run)
    firsts = [alike[0] for alike in by_content.values()]
    notes = [
        f"{listed([run.name for run in alike[1:]])} {'is a copy' if len(alike) == 2 else 'are copies'} of {alike[0].name}: counted once."
        for alike in by_content.values()
        if len(alike) > 1
    ]
    if len(firsts) == 1:
        return firsts, notes
    names = listed([run.name for run in firsts])
    reason = f"{names} are copies of one recording that differ"
    return [replace(run, reason=run.reason or reason) for run in firsts], [*notes, f"{reason}: none of them is counted."]


def _repeats(runs: Sequence[Run]) -> list[str]:
    by_run: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.recording and run.counted:
            by_run.setdefault((run.suite, run.recording.run_id), []).append(run)
    return [
        f"{listed([run.name for run in found])} are {plural(len(found), 'recording')} of one run: each is counted."
        for found in by_run.values()
        if len(found) > 1
    ]
