"""Whether existing runs are comparable with new ones: same code, same machine. Differences are listed by key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ecrl_cli.errors import EcrlError, shown
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.environment import environment

# Ignored in favour of the source digest: a git revision changes with every document, and two dirty trees share one.
_SAID_BETTER = "git_revision"
_SOURCE = "source_sha256"


def disagreements(layouts: Mapping[str, RunLayout], code_alone: bool = False) -> dict[str, str]:
    """By name, the existing runs that were made by other code or on another machine, each with the differences as text. Runs that agree are left
    out.

    `code_alone`: compare the code only, because the runs are executed on a machine other than this one.
    """
    begun = {name: layout for name, layout in layouts.items() if layout.config.exists()}
    found = {name: _disagreement(layout, code_alone) for name, layout in begun.items()}
    return {name: text for name, text in found.items() if text}


def _disagreement(layout: RunLayout, code_alone: bool) -> str:
    try:
        there = read_json(layout.environment)
    except (FileNotFoundError, EcrlError):
        return "environment.json is missing or damaged"
    if not isinstance(there, dict):
        return "environment.json is no environment"
    here = environment(layout.root)
    if code_alone:
        there, here = ({key: found.get(key) for key in (_SAID_BETTER, _SOURCE)} for found in (there, here))
    ignored = (_SAID_BETTER,) if there.get(_SOURCE) else (_SOURCE,)
    return ", ".join(differences(there, here, ignored))


def differences(there: Mapping[str, Any], here: Mapping[str, Any], ignored: Collection[str] = ()) -> list[str]:
    """`key A there and B here` for each dotted key whose values differ. `ignored` keys are left out with everything below them."""
    a, b = dict(flat(there)), dict(flat(here))
    below = tuple(f"{name}." for name in ignored)
    keys = [key for key in {**a, **b} if key not in ignored and not key.startswith(below) and a.get(key) != b.get(key)]
    return [f"{key} {shown(a.get(key), 20)} there and {shown(b.get(key), 20)} here" for key in keys]


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings as (dotted key, value)."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
