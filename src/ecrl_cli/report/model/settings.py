"""The settings that tell one run from another, as dotted keys."""

from __future__ import annotations

from typing import Any

from ecrl_cli.config.identity import NOT_IDENTITY

SUITE = "suite"


def flat_config(config: dict[str, Any]) -> dict[str, str]:
    """The settings that distinguish configurations, as dotted keys; without the seed and keys that
    only name or locate a run.
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        entries = (
            {f"{key}.{name}": item for name, item in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
        found |= {
            name: str(item)
            for name, item in entries.items()
            if name != "seed" and not {name, key} & set(NOT_IDENTITY)
        }
    return found


def settings_of(config: dict[str, Any], suite: str) -> dict[str, str]:
    """`flat_config` with the suite, and with the name of the schedule that became steps."""
    schedule = config.get("schedule")
    named = {"schedule.name": str(schedule.get("name", ""))} if isinstance(schedule, dict) else {}
    return flat_config(config) | named | {SUITE: suite}
