"""The last words of a process, as why it ended: the error of its last traceback, or its last
line.
"""

from __future__ import annotations

import re
from pathlib import Path

_LAST_WORDS = 16_000  # bytes: the report of torchrun takes 3,000
_SHOWN = 200  # characters of an error
# torch puts it in front of the lines of a rank that fails
_RANK = re.compile(r"(?:\[rank\d+\]:\s*)+")
# by torch or torchrun: what they do about a death, not why it came
_LOGGED = re.compile(r"\[?[IWEF]\d{4} \d\d:")
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(:.*)?$")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = "Traceback (most recent call last):"


def last_words(log: Path) -> str:
    """The error that the output in `log` ends with, else its last line with words; empty if there
    is none. OSError if it cannot be read.

    What torchrun adds is left out: its log and the report that it ends with.
    """
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_WORDS))
        text = _COLOURS.sub("", file.read().decode("utf-8", "replace"))
    # in the traceback of torchrun, which its report follows
    job, failed, _ = text.rpartition("ChildFailedError(")
    if failed:
        text = job.rpartition(_TRACEBACK)[0]
    lines = [
        _RANK.sub("", line.rstrip(), count=1)
        for line in text.splitlines()
        if any(map(str.isalnum, line))
    ]
    lines = [line for line in lines if not _LOGGED.match(line)]
    return _raised(lines) or next((line.strip()[:300] for line in reversed(lines)), "")


def _raised(lines: list[str]) -> str:
    """The exception of the last traceback, if nothing but its own words follows: the job may have
    got over it.
    """
    # A bar of progress without an end of line stands in front of it on the same line.
    start = max(
        (place for place, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)),
        default=None,
    )
    if start is None:
        return ""
    for place, line in enumerate(lines[start + 1 :], start=start + 1):
        match = _ERROR.match(line)
        if match and not line.startswith(" "):
            rest = lines[place + 1 :]
            # advice follows, in some libraries at length
            first = f"{match[1]}{match[2] or ''}".split(". ")[0].removesuffix(".")
            return (
                first[:_SHOWN]
                if all(other.startswith((" ", "\t", "\n")) or len(rest) < 40 for other in rest)
                else ""
            )
    return ""
