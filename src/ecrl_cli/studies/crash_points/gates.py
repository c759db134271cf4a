"""The targets. Each can fail, and names the trials that miss it."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.crash_points.counts import Records
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.frame.write_modes import write_mode


def gates(found: Records) -> tuple[Gate, ...]:
    crashes = found.crashes
    order = [r for r in found.points if r.found["outcome"] != r.facts["survivor"]]
    went_on = [*found.points, *found.calls]  # after a random kill nothing is saved again
    whole = [r for r in crashes if r.facts["layout"] == "group" and write_mode(r.facts["mode"]).atomic]  # elsewhere halves are allowed
    visible = [r for r in found.planted if r.found["seen"]]
    missed = [r for r in visible if not r.found["found"]]
    tried = [
        _none("silent_wrong", _ended(crashes, "silent_wrong"), len(crashes), "recovered something that was never saved"),
        _none("lost_ack", _ended(crashes, "lost_ack", "lost_all"), len(crashes), "lost an acknowledged checkpoint"),
        _none("recovered", _ended(crashes, "detected", "untyped", "hung"), len(crashes), "stopped the recovery"),
        _none("survivor", order, len(found.points), "recovered the wrong one of the new and the previous checkpoint"),
        _none("again", [r for r in went_on if r.found["again"] or r.found["left"]], len(went_on), "stood in the way of the next attempt"),
        _none("hit", [r for r in crashes if not r.found["hit"]], len(crashes), "were not killed where they should be"),
    ]
    if whole:
        half = [r for r in whole if r.found["half"]]
        tried.append(_none("half", half, len(whole), "left half a group under a name that counts in an atomic mode"))
    if found.planted:
        message = f"planted {len(visible) - len(missed)}/{len(visible)} found{_named(missed)}"
        tried.append(Gate("planted", bool(visible) and not missed, message))
    return tuple(tried)


def _ended(records: Sequence[Record], *outcomes: str) -> list[Record]:
    return [r for r in records if r.found["outcome"] in outcomes]


def _none(name: str, wrong: Sequence[Record], of: int, what: str) -> Gate:
    """Passed where none is `wrong`, of at least one trial."""
    return Gate(name, not wrong and of > 0, f"{len(wrong)} of {of} trials {what}{_named(wrong)}")


def _named(records: Sequence[Record]) -> str:
    return "".join((": ", ", ".join(r.key for r in records[:3]), ", ..." if len(records) > 3 else "")) if records else ""
