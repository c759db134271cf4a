"""What the records of the study show."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication.overhead import tables, tables_evidence
from ecrl_cli.replication.overhead.figures import figures
from ecrl_cli.replication.overhead.gates import gates
from ecrl_cli.replication.overhead.measured import Recording
from ecrl_cli.replication.overhead.notes import notes
from ecrl_cli.replication.overhead.parts import Parts
from ecrl_cli.replication.overhead.record_index import RecordIndex
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import Record


def findings(config: RecoveryOverhead, models: dict[str, Parts], recordings: list[Recording], records: Sequence[Record]) -> Findings:
    ledger = RecordIndex(config, models, recordings, records)
    model = (
        tables.at_scale(ledger),
        *tables_evidence.recorded(ledger),
        tables.per_failure(ledger),
        *tables.scenarios(ledger),
        tables.crossovers(ledger),
    )
    rest = (tables.optimum(ledger), tables.weibull(ledger), tables_evidence.sanity(ledger), tables.scale(ledger), tables_evidence.checks(ledger))
    return Findings((*model, *rest), figures(ledger), gates(ledger), notes(ledger))
