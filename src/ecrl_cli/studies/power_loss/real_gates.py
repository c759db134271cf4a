"""Gates on the records of the real arms, and against the model, which must allow every outcome of a real file system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ecrl_cli.config.schema import WRITE_MODES
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.power_loss.real_process import LOST
from ecrl_cli.studies.power_loss.subject_store import PLANTS, SETTLED

NEVER = ("silent_wrong", "untyped", "hung")
WEAK = ("unsafe", "atomic_nodirsync")
# ext4, XFS and btrfs write earlier names along with any fsync, so only the model can show what this one breaks.
DRAGGED_ALONG = ("no_parent_sync",)


def outcomes(record: Record) -> Counter[str]:
    """How often each outcome occurs in the record: one per trial (shutdown), or one per state (blocks)."""
    found = record.found
    return Counter(found["outcomes"]) if record.facts["arm"] == "blocks" else Counter([found["outcome"]])


def total(records: Iterable[Record]) -> Counter[str]:
    return sum((outcomes(record) for record in records), Counter())


def lost(records: Iterable[Record]) -> int:
    counts = total(records)
    return sum(counts[outcome] for outcome in LOST)


def is_ours(record: Record) -> bool:
    """Whether it is a mode of the store without a planted fault."""
    return record.facts["subject"] in WRITE_MODES and record.facts["variant"] not in PLANTS


def classes_seen(records: Iterable[Record]) -> dict[str, set[str]]:
    """The outcomes of each unmodified write mode on a real file system."""
    seen: dict[str, set[str]] = {}
    for record in filter(is_ours, records):
        seen.setdefault(record.facts["subject"], set()).update(outcomes(record))
    return seen


def not_kinder(model_classes: Mapping[str, set[str]], real_records: Iterable[Record]) -> Gate:
    """Every outcome of a mode on a real file system must be possible in the model."""
    seen = classes_seen(real_records)
    missing = [
        f"{mode}: {outcome} happened, the model has it not"
        for mode, found in sorted(seen.items())
        for outcome in sorted(found - model_classes.get(mode, set()))
    ]
    kept = f"the model has all {sum(map(len, seen.values()))} outcomes that {len(seen)} modes showed on real file systems"
    return Gate("model not kinder", bool(seen) and not missing, "; ".join(missing) or (kept if seen else "no real trial ran"))


def real_gates(records: Sequence[Record]) -> tuple[Gate, ...]:
    """The gates of the arms that have records."""
    arms = [arm for arm in ("shutdown", "blocks") if any(record.facts["arm"] == arm for record in records)]
    gates: list[Gate] = []
    for arm in arms:
        of_arm = [record for record in records if record.facts["arm"] == arm]
        gates += [_durable(arm, of_arm), _never(arm, of_arm), _sensitive(arm, of_arm), _injected(arm, of_arm), _goes_on(arm, of_arm)]
        gates += [_planted(arm, of_arm)] if any(record.facts["variant"] in PLANTS for record in of_arm) else []
    return tuple(gates)


def _durable(arm: str, records: Sequence[Record]) -> Gate:
    of_mode = [record for record in records if is_ours(record) and record.facts["subject"] == "atomic_dirsync"]
    wrong = [f"{record.key}: {dict(outcomes(record))}" for record in of_mode if lost([record]) or outcomes(record)["detected"]]
    tried = f"0 of {total(of_mode).total()} lost an acknowledged checkpoint"
    return Gate(f"{arm}: atomic_dirsync", not wrong, _first(wrong) or tried)


def _never(arm: str, records: Sequence[Record]) -> Gate:
    ours = list(filter(is_ours, records))
    wrong = [f"{record.key}: {dict(outcomes(record))}" for record in ours if any(outcomes(record)[outcome] for outcome in NEVER)]
    return Gate(f"{arm}: never wrong", not wrong, _first(wrong) or f"0 of {total(ours).total()} silently wrong, a traceback or hung, in every mode")


def _sensitive(arm: str, records: Sequence[Record]) -> Gate:
    """A mode without syncs must lose something; otherwise the rig, and any zero it shows, is not credible."""
    cells = _cells(records, lambda record: is_ours(record) and record.facts["subject"] in WEAK and record.facts["variant"] != SETTLED)
    blind = [f"{subject} on {fs} lost none of {total(found).total()}" for (fs, subject), found in cells.items() if not lost(found)]
    found = "; ".join(f"{subject} on {fs} lost {lost(found)} of {total(found).total()}" for (fs, subject), found in cells.items())
    problem = (
        f"the rig is insensitive: {'; '.join(blind)}" if blind else "" if cells else "no mode that may lose was tried: this rig's zeros show nothing"
    )
    return Gate(f"{arm}: sensitive", not problem, problem or found)


def _injected(arm: str, records: Sequence[Record]) -> Gate:
    if arm == "shutdown":
        wrong = [record.key for record in records if not record.found["cut"] or record.found["acknowledged"] < 1]
        return Gate("shutdown: injected", not wrong, _first(wrong) or f"all {len(records)} were cut off after an acknowledged save")
    wrong = [record.key for record in records if not record.found["after_acknowledgement"] or record.found["unmountable"]]
    states = sum(record.found["states"] for record in records)
    return Gate("blocks: injected", not wrong, _first(wrong) or f"{states} states of {len(records)} logs were rebuilt and mounted")


def _goes_on(arm: str, records: Sequence[Record]) -> Gate:
    ours = list(filter(is_ours, records))
    stuck = [record.key for record in ours if (record.found["goes_on"] is False if arm == "shutdown" else record.found["stuck"])]
    return Gate(f"{arm}: goes on", not stuck, _first(stuck) or "after every recovery the next save worked and was found")


def _planted(arm: str, records: Sequence[Record]) -> Gate:
    """A fault counts as found if it lost something on any file system of the arm."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        if record.facts["variant"] in PLANTS and record.facts["variant"] not in DRAGGED_ALONG:
            cells.setdefault(record.facts["variant"], []).append(record)
    missed = [plant for plant, found in cells.items() if not lost(found)]
    text = f"planted {len(cells) - len(missed)}/{len(cells)} found"
    return Gate(f"{arm}: planted", not missed, f"{text}: {', '.join(missed)} lost nothing" if missed else text)


def _cells(records: Sequence[Record], wanted: Callable[[Record], bool]) -> dict[tuple[str, str], list[Record]]:
    cells: dict[tuple[str, str], list[Record]] = {}
    for record in filter(wanted, records):
        cells.setdefault((record.facts["fs"], record.facts["subject"]), []).append(record)
    return cells


def _first(wrong: Sequence[str]) -> str:
    return "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
