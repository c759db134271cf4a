"""What the records of `live-recovery` show: who died when, how often others went on, whether all was well, planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ecrl_cli.config.studies import LiveRecovery
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Findings, planted_gate, upper_bound
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.training.failures_tables import bad_table, by, planted_table, valid_gate, who

OUTCOMES = ("valid", "hung", "left", "exit", "invalid", "unknown", "apart", "restarted", "ledger", "differs", "idle")
# The phases that a recorded study must have hit, each so often; and how many runs make one.
PHASES = ("boundary", "forward", "backward", "optimizer", "capture", "load", "rendezvous")
HITS, RECORDED = 5, 200


def findings(config: LiveRecovery, records: Sequence[Record]) -> Findings:
    runs = [record for record in records if record.facts["arm"] != "planted"]
    planted = [record for record in records if record.facts["arm"] == "planted"]
    tables = (
        by("recovery", "recovery", runs, lambda record: [record.facts["recovery"]], OUTCOMES),
        by("ranks", "ranks", runs, lambda record: [str(record.facts["world_size"])], OUTCOMES),
        by("who", "who was struck", runs, lambda record: list(dict.fromkeys(map(who, record.facts["entries"]))), OUTCOMES),
        by("phase", "phase in which it struck", runs, lambda record: list(dict.fromkeys(moment for _, moment in record.found["fired"])), OUTCOMES),
        by("deaths", "failures in the run", runs, lambda record: [str(len(record.facts["entries"]))], OUTCOMES),
        by("spares", "spares", runs, lambda record: [str(record.facts["spares"])], OUTCOMES),
        by("strategy", "write strategy", runs, lambda record: [record.facts["strategy"]], OUTCOMES),
        bad_table(runs),
        planted_table(planted),
    )
    return Findings(tuple(table for table in tables if table.rows), (), _gates(config, runs, planted), _notes(runs))


def _gates(config: LiveRecovery, runs: Sequence[Record], planted: Sequence[Record]) -> tuple[Gate, ...]:
    gates = [valid_gate(runs), _alive(config, runs)]
    if config.trials >= RECORDED:
        hit = Counter(moment for record in runs for moment in {moment for _, moment in record.found["fired"]})
        rare = [phase for phase in PHASES if hit[phase] < HITS]
        gates.append(Gate("phases", not rare, f"each phase hit in at least {HITS} runs" + (f"; not {', '.join(rare)}" if rare else "")))
    return (*gates, *planted_gate({record.facts["bug"]: record.found["found"] for record in planted}))


def _alive(config: LiveRecovery, runs: Sequence[Record]) -> Gate:
    """With each recovery some processes outlived others: else all of it was restarts."""
    missing = [name for name in config.recoveries if not any(record.found["joined"] + record.found["went_on"] for record in _of(runs, name))]
    count = sum(record.found["went_on"] for record in runs)
    message = f"survivors went on with what was in their memory {count} times"
    return Gate("alive", not missing, message + (f"; never outlived others with {', '.join(missing)}" if missing else ""))


def _of(runs: Sequence[Record], recovery: str) -> list[Record]:
    return [record for record in runs if record.facts["recovery"] == recovery]


def _notes(runs: Sequence[Record]) -> tuple[str, ...]:
    if not runs:
        return ()
    total = {name: sum(record.found[name] for record in runs) for name in ("attempts", "went_on", "joined", "redone", "lost")}
    struck = sum(len(record.found["fired"]) for record in runs)
    notes = [
        f"{struck} failures struck in {len(runs)} runs, which took {total['attempts']} attempts; into {total['went_on']} of these survivors took "
        f"their memory along, spares took {total['joined']} places, {total['redone']} steps were finished without the dead, "
        f"{total['lost']} samples are on ledgers."
    ]
    if all(record.found["outcome"] == "valid" for record in runs):
        notes.append(
            f"0 of {len(runs)} runs had survivors that differed, restarted what could go on, kept a false ledger or ended elsewhere than they must: "
            f"the probability per such run is below {upper_bound(len(runs)):.2%} (one-sided exact 95%)."
        )
    return tuple(notes)
