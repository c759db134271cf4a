"""The kinds of failure by name: ours, and those of installed packages (entry points in the group `ecrl.failures`)."""

from __future__ import annotations

from functools import cache

from ecrl_cli.config.fault_spec import FAILURES
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import Ends, FaultKind


def kind_names() -> tuple[str, ...]:
    """All kinds that can be planned: ours in their order, then the installed ones."""
    return FAILURES.names()


@cache
def fault_kind(name: str) -> FaultKind:
    """The kind of that name. ConfigError where there is none, or where its package cannot be imported."""
    found = FAILURES.load(name)
    if not (isinstance(found, type) and issubclass(found, FaultKind) and found.name == name):
        raise ConfigError("failure", f"the entry point {name!r} in {FAILURES.group} is no FaultKind of that name", "mend its package, or remove it")
    return found()


class _Unknown(FaultKind):
    """Stands for a name in records that nobody knows here: ends its attempt in no known way."""

    ends = Ends.ATTEMPT


def recorded_kind(name: str) -> FaultKind:
    """As `fault_kind`, for names in records, which may be any text."""
    try:
        return fault_kind(name)
    except ConfigError:
        return _Unknown()


def table() -> str:
    """All kinds in a Markdown table, for the docs."""
    head = ("| `failure=` | what happens | when it can strike | what it shows |", "| --- | --- | --- | --- |")
    kinds = [fault_kind(name) for name in kind_names()]
    return "\n".join((*head, *(f"| `{kind.name}` | {kind.description} | {', '.join(kind.moments)} | {kind.shows} |" for kind in kinds)))
