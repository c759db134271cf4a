"""Fields of a study that say how many of something, or which of several."""

from __future__ import annotations

from dataclasses import field
from typing import Any

MOST = 100_000  # of any count: a plan is made whole before the first trial


def count(default: int, minimum: int) -> Any:
    """A number of things to try: `minimum` to MOST."""
    return field(default=default, metadata={"minimum": minimum, "below": MOST + 1})


def some_counts(default: tuple[int, ...], minimum: int, most: int) -> Any:
    """A field that holds any numbers of things from `minimum` to `most`, each once."""
    return field(default=default, metadata={"minimum": minimum, "below": most + 1})


def some_of(choices: tuple[str, ...], default: tuple[str, ...] | None = None) -> Any:
    """A field that holds any of `choices`, each once; all of them unless `default` says fewer."""
    return field(default=choices if default is None else default, metadata={"choices": choices})
