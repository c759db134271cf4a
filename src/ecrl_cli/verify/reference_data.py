"""How two undisturbed runs differ that ought to be equal, and what differs between the machines that they ran on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ecrl_cli.errors import EcrlError
from ecrl_cli.history.divergence import first_differing_step
from ecrl_cli.history.lineage import lineage, losses
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.journal import read_json
from ecrl_cli.verify.case import same_sizes

_ENDS = ("parameters_digest", "buffers_digest", "optimizer_digest", "rng_digest")


def disagreement(one: RunRecords, other: RunRecords) -> str:
    """How two references differ that must be equal, in words; empty where they do not."""
    ours, theirs = one.final, other.final
    if ours is None or theirs is None or not same_sizes(one, other):
        return ""
    differing = [name.partition("_")[0] for name in _ENDS if getattr(ours, name) != getattr(theirs, name)]
    if differing:
        return f"the final {', '.join(differing)} differ"
    step = first_differing_step(losses(one, lineage(one)), losses(other, lineage(other)))
    return "" if step is None else f"the losses of step {step} differ"


def other_environment(run: RunRecords, reference: RunRecords) -> str:
    """What of code and machine differs between the two, in words: bits need not be the same there. Empty where nothing does, or nothing is known."""
    there, here = (_environment(records) for records in (reference, run))
    if not there or not here:
        return ""
    skipped = {"file_system", "git_revision" if "source_sha256" in there and "source_sha256" in here else "source_sha256"}
    keys = [key for key in sorted({*there, *here}) if key.partition(".")[0] not in skipped and there.get(key) != here.get(key)]
    return ", ".join(f"{key} {there.get(key)!r:.40} there, {here.get(key)!r:.40} here" for key in keys[:6])


def _environment(records: RunRecords) -> dict[str, Any]:
    try:
        return dict(_leaves(read_json(records.layout.environment), ""))
    except (EcrlError, OSError):
        return {}


def _leaves(value: Any, key: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
