"""Runs with another metrics.json than their records fold to, and runs that were changed after their
seal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.seal import make_seal, write_seal
from ecrl_cli.verify.disk_state import on_disk
from ecrl_cli.verify.verdict import INVALID, UNKNOWN
from tests.runs.spoil import append, at_step, edit_json, edit_lines, line_at

RECORDS, SEALED = "records-consistent", "records-sealed"
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
Spoil = Callable[[RunLayout], Any]
Edit = Callable[[dict[str, Any]], Any]


def seal(layout: RunLayout, key: bytes = b"") -> None:
    """As a run ends."""
    write_seal(
        layout, make_seal(layout, load(layout).stored.run_id, "completed", commits(layout), key)
    )


def commits(layout: RunLayout) -> dict[str, str]:
    return {c.path: c.report.commit_sha256 or "" for c in on_disk(load(layout), contents=False)}


def key_file(layout: RunLayout, key: bytes = KEY) -> Path:
    """A file with `key` beside the run, and nobody else's."""
    path = layout.root.parent / "seal.key"
    path.write_bytes(key)
    path.chmod(0o600)
    return path


def ask_for_signature(layout: RunLayout) -> None:
    path = key_file(layout)
    edit_json(layout.config, lambda c: c["config"]["seal"].update(key_file=str(path)))


def metrics(edit: Edit) -> Spoil:
    return lambda run: edit_json(run.metrics, edit)


def scaled(name: str, factor: float) -> Edit:
    """Times `factor`: a field, or one of an object ("checkpoints.stall_s")."""

    def edit(document: dict[str, Any]) -> None:
        group, _, key = name.rpartition(".")
        place = document[group] if group else document
        place[key] *= factor

    return edit


def as_version_1(document: dict[str, Any]) -> None:
    """The fake says that it was written before fields were compared."""
    del document["metrics_version"]
    document["checkpoints"]["stall_s"] /= 10


def behind_seal(change: Spoil) -> Spoil:
    """Sealed, then changed."""

    def spoil(layout: RunLayout) -> None:
        seal(layout)
        change(layout)

    return spoil


def signed(key: bytes, then: Spoil) -> Spoil:
    """A signature is asked for, the seal signed with `key`, then changed."""

    def spoil(layout: RunLayout) -> None:
        ask_for_signature(layout)
        seal(layout, key)
        then(layout)

    return spoil


def nothing(layout: RunLayout) -> None:
    """Leave it."""


def cut_signature(layout: RunLayout) -> None:
    edit_json(layout.seal, lambda s: s | {"hmac_sha256": s["hmac_sha256"][:-1]})


def seal_anew(layout: RunLayout) -> None:
    """Change a record, and seal over it without the key."""
    edit_lines(layout.attempt(2).spans(0), at_step(22, category="idle"))
    seal(layout)


SPOILT_METRICS: dict[str, tuple[Spoil, str, str]] = {
    "metrics with a tenth of the stall": (
        metrics(scaled("checkpoints.stall_s", 0.1)),
        RECORDS,
        INVALID,
    ),
    "metrics with a tenth of the write": (
        metrics(scaled("checkpoints.write_s", 0.1)),
        RECORDS,
        INVALID,
    ),
    "metrics with the last bit of a time changed": (
        metrics(scaled("checkpoints.snapshot_s", 1 + 2**-52)),
        RECORDS,
        INVALID,
    ),
    "metrics with three times the published goodput": (
        metrics(scaled("goodput_published_clock", 3)),
        RECORDS,
        INVALID,
    ),
    "metrics with an accuracy that nobody measured": (
        metrics(lambda m: m["final"].update(accuracy=1.0)),
        RECORDS,
        INVALID,
    ),
    "metrics with another loss on the way": (
        metrics(lambda m: m["mean_loss"].update({"12": 0.0})),
        RECORDS,
        INVALID,
    ),
    "metrics without a loss on the way": (
        metrics(lambda m: m["mean_loss"].pop("12")),
        RECORDS,
        INVALID,
    ),
    "metrics with a faster recovery": (
        metrics(lambda m: m["recoveries"][0].update(seconds=0.01)),
        RECORDS,
        INVALID,
    ),
    "metrics without a recovery": (metrics(lambda m: m["recoveries"].pop()), RECORDS, INVALID),
    "metrics with a faster detection": (
        metrics(lambda m: m["restart_phases"][1].update(detect=0.0)),
        RECORDS,
        INVALID,
    ),
    "metrics with snapshots that were never taken": (
        metrics(lambda m: m["snapshots"].update(taken=4)),
        RECORDS,
        INVALID,
    ),
    "metrics with survivals that never were": (
        metrics(lambda m: m.update(survivals=1)),
        RECORDS,
        INVALID,
    ),
    "metrics with lost samples that never were": (
        metrics(lambda m: m.update(lost_samples=8)),
        RECORDS,
        INVALID,
    ),
    "metrics with an absence that never was": (
        metrics(lambda m: m.update(absent_s=5.0)),
        RECORDS,
        INVALID,
    ),
    "metrics without their residual": (
        metrics(lambda m: m["seconds"].pop("residual")),
        RECORDS,
        INVALID,
    ),
    "metrics with more bytes": (metrics(scaled("checkpoints.bytes", 2)), RECORDS, INVALID),
    "metrics with more in flight": (
        metrics(scaled("checkpoints.max_inflight", 2)),
        RECORDS,
        INVALID,
    ),
    "metrics of another scale": (metrics(lambda m: m.update(scale="smoke")), RECORDS, INVALID),
    "metrics of another suite": (
        metrics(lambda m: m.update(suite="cifar10-r50-late")),
        RECORDS,
        INVALID,
    ),
    "metrics of another number of ranks": (
        metrics(lambda m: m.update(world_size=64)),
        RECORDS,
        INVALID,
    ),
    "metrics of a larger data set": (
        metrics(lambda m: m.update(dataset_size=50_000)),
        RECORDS,
        INVALID,
    ),
    "metrics that count in halves": (
        metrics(lambda m: m.update(committed_steps=24.0)),
        RECORDS,
        INVALID,
    ),
    "metrics with a field that the records do not have": (
        metrics(lambda m: m.update(mfu=0.9)),
        RECORDS,
        INVALID,
    ),
    "metrics without a field": (metrics(lambda m: m.pop("absent_s")), RECORDS, INVALID),
    "faked metrics that say they are old": (metrics(as_version_1), RECORDS, INVALID),
    "faked metrics that say they are of a later version": (
        metrics(lambda m: m.update(metrics_version=99, goodput=9.0)),
        RECORDS,
        UNKNOWN,
    ),
    "metrics whose version is a text": (
        metrics(lambda m: m.update(metrics_version="2")),
        RECORDS,
        INVALID,
    ),
    "metrics.json cut off": (
        lambda run: run.metrics.write_bytes(run.metrics.read_bytes()[:-20]),
        RECORDS,
        UNKNOWN,
    ),
    "a span relabelled after the seal": (
        behind_seal(lambda run: edit_lines(run.attempt(2).spans(0), at_step(22, category="idle"))),
        SEALED,
        INVALID,
    ),
    "a line of an uncommitted step changed after the seal": (
        behind_seal(lambda run: edit_lines(run.attempt(0).rank(1), at_step(9, seconds=0.001))),
        SEALED,
        INVALID,
    ),
    "a launch order changed after the seal": (
        behind_seal(
            lambda run: edit_json(
                run.attempt(1).launch, lambda order: order | {"silent": ["node7"]}
            )
        ),
        SEALED,
        INVALID,
    ),
    "a claim changed after the seal": (
        behind_seal(lambda run: edit_json(run.fired_entry(0), lambda f: f | {"time": 0.0})),
        SEALED,
        INVALID,
    ),
    "the book changed after the seal": (
        behind_seal(lambda run: edit_json(run.supervisor, lambda s: s | {"reason": "all is well"})),
        SEALED,
        INVALID,
    ),
    "metrics.json changed after the seal": (
        behind_seal(metrics(lambda m: m.update(goodput=9.0))),
        SEALED,
        INVALID,
    ),
    "disk activity that came after the seal": (
        behind_seal(lambda run: run.disk.write_text("")),
        SEALED,
        INVALID,
    ),
    "a log of nobody that came after the seal": (
        behind_seal(
            lambda run: append(
                run.attempt(0).folder / "rank00.jsonl", line_at(run.attempt(0).rank(0), 3)
            )
        ),
        SEALED,
        INVALID,
    ),
    "a record that became a link after the seal": (
        behind_seal(
            lambda run: (
                run.failures.rename(run.root.parent / "plan.json")
                and run.failures.symlink_to("../plan.json")
            )
        ),
        SEALED,
        INVALID,
    ),
    "the size of the data set gone after the seal": (
        behind_seal(lambda run: run.dataset.unlink()),
        SEALED,
        UNKNOWN,
    ),
    "a checkpoint that came after the seal": (
        behind_seal(
            lambda run: shutil.copytree(
                run.checkpoints / "step_00000024", run.checkpoints / "step_00000030"
            )
        ),
        SEALED,
        INVALID,
    ),
    "the seal edited": (
        behind_seal(lambda run: edit_json(run.seal, lambda s: s | {"terminal_status": "stopped"})),
        SEALED,
        INVALID,
    ),
    "the seal of another run": (
        lambda run: write_seal(run, make_seal(run, "0" * 64, "completed", commits(run))),
        SEALED,
        INVALID,
    ),
    "a seal that is no seal": (behind_seal(lambda run: run.seal.write_text("{}")), SEALED, INVALID),
    "a seal signed with another key": (signed(OTHER_KEY, nothing), SEALED, INVALID),
    "a seal without the signature that is asked for": (signed(b"", nothing), SEALED, INVALID),
    "a run sealed anew without the key": (signed(KEY, seal_anew), SEALED, INVALID),
    "a signature that is cut off": (signed(KEY, cut_signature), SEALED, INVALID),
    "a signed seal removed": (signed(KEY, lambda run: run.seal.unlink()), SEALED, UNKNOWN),
}


def names_in(layout: RunLayout) -> set[str]:
    """The files that the seal has a digest of."""
    return set(json.loads(layout.seal.read_text())["files"])
