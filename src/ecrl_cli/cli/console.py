"""The one way to the terminal: results on standard output, words for people on standard error, on neither a control character of a record."""

from __future__ import annotations

import sys

from ecrl_cli.errors import visible


def out(text: str) -> None:
    """`text` on standard output. Its lines are ours; what else a terminal would obey is shown as an escape."""
    sys.stdout.write(_shown(text) + "\n")


def say(text: str) -> None:
    """The same on standard error, which leaves standard output to results."""
    sys.stderr.write(_shown(text) + "\n")
    sys.stderr.flush()


def _shown(text: str) -> str:
    return "\n".join(visible(line) for line in text.split("\n"))
