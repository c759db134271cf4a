"""Lines of one answer that contradict each other: whoever reads both does not know which to
believe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

_ATTEMPT = re.compile(r"\battempt (\d+)")
_NOT_RESTORED = r"(?:was|were) (?:not (?:restored|loaded)|lost)|did not come back|goes on otherwise"
# By component of a promise `restored: COMPONENT`, what a sentence calls it.
_NAMES = {
    "parameters": "parameters",
    "buffers": "buffers",
    "optimizer": "optimizer's state|state of (?:the )?optimizer",
    "schedule and settings": "schedule|setting of the optimizer|settings",
    "generators": "generators?",
    "scaler": "scaler",
}
_SAVES_NOTHING = re.compile(
    r"saves nothing|saved nothing|no finished checkpoint|no checkpoint is on record|begins anew"
)
_STATE_OF_STEP = re.compile(r"(?:parameters|state) of step [1-9]")
_WRONG_DATA = re.compile(r"data position|repeats the samples|consumed other samples|came too often")
_NOT_DETERMINISTIC = re.compile(r"\bnot deterministic\b|undisturbed runs differ")

Finding = dict[str, Any]


def contradictions(findings: Sequence[Finding]) -> list[str]:
    """Each pair of `findings` (of audit.json) of which one denies the other, in words."""
    pairs = ((one, other) for one, other in combinations(findings, 2) if _together(one, other))
    ordered = (sorted(pair, key=lambda finding: finding["status"] != "kept") for pair in pairs)
    return [
        f"{why}: {_line(one)} / {_line(other)}"
        for one, other in ordered
        for why in _reasons(one, other)
    ]


def _together(one: Finding, other: Finding) -> bool:
    """Both speak of the same arm, and not of different attempts of it; a finding without an arm
    speaks of all.
    """
    if one["arm"] and other["arm"] and one["arm"] != other["arm"]:
        return False
    attempts = [set(_ATTEMPT.findall(finding["message"])) for finding in (one, other)]
    return not all(attempts) or bool(attempts[0] & attempts[1])


def _reasons(kept: Finding, other: Finding) -> Iterator[str]:
    """Why the two cannot both be true. `kept` comes first if only one of them is."""
    if kept["status"] != "kept" or other["status"] == "kept":
        return
    broken = other["status"] == "broken"
    if kept["promise"] == other["promise"] and kept["arm"] == other["arm"] and broken:
        yield "the same promise is kept and broken"
    promise, _, component = kept["promise"].partition(": ")
    if promise == "restored" and _denies(component, other):
        yield f"{component}: restored and not restored"
    if (
        kept["promise"] == "same trajectory"
        and broken
        and other["promise"].startswith(("restored", "exactly once", "same input"))
    ):
        yield "every step is bit for bit the undisturbed run's, and something of it is wrong"
    if kept["promise"] == "exactly once" and broken and _WRONG_DATA.search(other["message"]):
        yield "each sample came exactly once, and the data position is wrong"
    if kept["promise"] == "deterministic" and _NOT_DETERMINISTIC.search(other["message"]):
        yield "deterministic and not deterministic"
    if kept["promise"] == "same end" and "did not come to its end" in other["message"]:
        yield "it came to its end and did not"
    nothing_saved = other["arm"] == "no-checkpoint" and other["promise"] == "right checkpoint"
    if _STATE_OF_STEP.search(kept["message"]) and (
        nothing_saved or _SAVES_NOTHING.search(other["message"])
    ):
        yield "it began with the state of a step, and nothing was saved"


def _denies(component: str, other: Finding) -> bool:
    """Whether a sentence of `other` says that `component` was not restored."""
    base = re.split(r" \(|, |: ", component)[0]
    named = _NAMES.get(base, re.escape(base))
    sentences = re.split(r"[:;] ", other["message"])
    return any(
        re.search(rf"(?:{named})\b.*?(?:{_NOT_RESTORED})", sentence) for sentence in sentences
    )


def _line(finding: Finding) -> str:
    where = f" [{finding['arm']}]" if finding["arm"] else ""
    return f"{finding['status']} {finding['promise']}{where}: {finding['message']}"
