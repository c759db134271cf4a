"""Writes to the terminal: results to standard output, messages to standard error, control characters escaped in both."""

from __future__ import annotations

import sys

from ecrl_cli.errors import visible


def out(text: str) -> None:
    """Writes `text` to standard output; control characters within its lines are escaped."""
    sys.stdout.write(_shown(text) + "\n")


def say(text: str) -> None:
    """Writes `text` to standard error, which keeps standard output to results."""
    sys.stderr.write(_shown(text) + "\n")
    sys.stderr.flush()


def _shown(text: str) -> str:
    return "\n".join(visible(line) for line in text.split("\n"))
