"""The end of a stay with a run: metrics.json, then the seal over every record, under the run's lock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.errors import EcrlError, RunHeld
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.seal import make_seal, write_seal
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.run_lock import run_lock
from ecrl_cli.verify.disk_state import on_disk


def end_run(layout: RunLayout, say: Callable[[str], None]) -> None:
    """Nothing is written where another command has gone on with the run meanwhile: then its end counts."""
    with contextlib.suppress(RunHeld), run_lock(layout):
        write_metrics(layout)
        seal_run(layout, say)


def write_metrics(layout: RunLayout) -> None:
    write_json(layout.metrics, metrics_document(load(layout)))


def seal_run(layout: RunLayout, say: Callable[[str], None]) -> None:
    """Write seal.json. Where that fails the run has ended all the same, unsealed: said, and `verify` says it again."""
    try:
        records = load(layout)
        key = read_key(records.stored.config.seal.key_file, "seal.key_file")
        commits = {c.path: c.report.commit_sha256 or "" for c in on_disk(records, contents=False)}
        status = records.supervisor.terminal_status if records.supervisor else ""
        write_seal(layout, make_seal(layout, records.stored.run_id, status, commits, key))
    except (EcrlError, OSError) as error:
        say(f"{layout.root.name}: not sealed ({error.line() if isinstance(error, EcrlError) else error})")
