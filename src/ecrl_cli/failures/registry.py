"""The kinds of failure by name: built-in ones, and those of installed packages (entry points in the group `ecrl.failures`)."""

from __future__ import annotations

from functools import cache

from ecrl_cli.config.fault_spec import FAILURES
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import Ends, FaultKind


@cache
def fault_kind(name: str) -> FaultKind:
    """The kind called `name`. ConfigError if there is none, or its package cannot be imported."""
    found = FAILURES.load(name)
    if not (isinstance(found, type) and issubclass(found, FaultKind) and found.name == name):
        raise ConfigError("failure", f"the entry point {name!r} in {FAILURES.group} is no FaultKind of that name", "mend its package, or remove it")
    return found()


class _Unknown(FaultKind):
    """Stands for a kind in records that is not known here: its attempt may end in any way."""

    ends = Ends.ATTEMPT


def recorded_kind(name: str) -> FaultKind:
    """As `fault_kind`, for names from records, which may be arbitrary text."""
    try:
        return fault_kind(name)
    except ConfigError:
        return _Unknown()


def table() -> str:
    """A Markdown table of all kinds, for the docs."""
    head = ("| `failure=` | what happens | when it can be injected | what it shows |", "| --- | --- | --- | --- |")
    kinds = [fault_kind(name) for name in FAILURES.names()]
    return "\n".join((*head, *(f"| `{kind.name}` | {kind.description} | {', '.join(kind.moments)} | {kind.shows} |" for kind in kinds)))
