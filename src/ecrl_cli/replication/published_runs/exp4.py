"""`ecrl published exp4 DIR`: the published matrix's own runs, judged as ECRL judges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ecrl_cli.replication.published_runs.findings import UNKNOWN, findings
from ecrl_cli.replication.published_runs.logs import REPOSITORY, read_runs
from ecrl_cli.replication.published_runs.pairs import Matrix, matrices
from ecrl_cli.report.formats import plural

SCHEMA_VERSION = 1


def exp4(folder: Path) -> tuple[str, dict[str, Any], int]:
    """The text and the document of the runs below `folder`, and the exit code: 3 where a finding
    could not be worked out for want of files, else 0. ConfigError or RecordError as `read_runs`.
    """
    found = [(matrix, findings(matrix, folder)) for matrix in matrices(read_runs(folder))]
    lines, documents = [], []
    for matrix, each in found:
        lines += [_head(matrix), ""]
        for finding in each:
            lines.append(f"{finding.id} {finding.status}: {finding.title}")
            lines += [f"  - {sentence}" for sentence in finding.sentences]
            lines += [f"  evidence: {place}" for place in finding.evidence]
        lines.append("")
        documents.append(
            {
                "matrix": matrix.name,
                "runs": len(matrix.runs),
                "judged": dict(_judged(matrix)),
                "findings": [
                    {
                        "id": finding.id,
                        "title": finding.title,
                        "status": finding.status,
                        "sentences": list(finding.sentences),
                        "evidence": list(finding.evidence),
                        "figures": dict(finding.figures),
                    }
                    for finding in each
                ],
            }
        )
    lines.append(f"These logs are the authors': {REPOSITORY} (no licence; ECRL holds none of them)")
    document = {
        "schema_version": SCHEMA_VERSION,
        "repository": REPOSITORY,
        "folder": str(folder),
        "matrices": documents,
    }
    code = 3 if any(finding.status == UNKNOWN for _, each in found for finding in each) else 0
    return "\n".join(lines), document, code


def _judged(matrix: Matrix) -> Counter[str]:
    return Counter(pair.judged for pair in matrix.pairs)


def _head(matrix: Matrix) -> str:
    judged = _judged(matrix)
    said = ", ".join(f"{number} {word}" for word, number in sorted(judged.items()))
    without = len(matrix.with_failures) - len(matrix.pairs)
    return (
        f"{matrix.name}: {plural(len(matrix.runs), 'run')}; of"
        f" {len(matrix.pairs)} with failures and a reference: {said or 'none judged'}"
        + (f"; {without} without a reference" if without else "")
    )
