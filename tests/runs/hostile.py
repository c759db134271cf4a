"""What a stranger may have written into a run directory to make it costly or impossible to judge:
each by name, applied to `build_blk`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ecrl_cli.records.layout import RunLayout
from tests.runs.spoil import append, edit_json, line_at

Attack = Callable[[RunLayout], Any]
HUGE = 10**10


def config(layout: RunLayout, **changes: Any) -> None:
    """Other values in config.json, by dotted key."""

    def edit(document: dict[str, Any]) -> None:
        for key, value in changes.items():
            *groups, name = key.split("__")
            place = document["config"]
            for group in groups:
                place = place[group]
            place[name] = value

    edit_json(layout.config, edit)


def attempt(layout: RunLayout, number: int, **changes: Any) -> None:
    edit_json(layout.supervisor, lambda document: document["attempts"][number].update(changes))


def everywhere(layout: RunLayout, key: str, value: Any) -> None:
    """In all attempts and their launch orders."""
    for number in layout.attempts():
        attempt(layout, number, **{key: value})
        edit_json(
            layout.attempt(number).launch,
            lambda order: order | ({key: value} if key in order else {}),
        )


def sparse_logs(layout: RunLayout) -> None:
    for rank in range(2, 42):
        with layout.attempt(0).rank(rank).open("wb") as file:
            file.truncate(2**30)


def fill(path: Path, piece: bytes, megabytes: int) -> None:
    """A first megabyte of `piece`, the rest a hole."""
    with path.open("wb") as file:
        file.write(piece * (2**20 // len(piece)))
        file.truncate(megabytes * 2**20)


def fired_files(layout: RunLayout) -> None:
    text = layout.fired_entry(0).read_text()
    for index in range(100, 20_100):
        (layout.fired / f"{index:05d}.json").write_text(text)


def rank_logs(layout: RunLayout) -> None:
    for rank in range(2, 5_000):
        layout.attempt(0).rank(rank).touch()


def many_attempts(layout: RunLayout) -> None:
    for number in range(10, 5_000):
        layout.attempt(number).folder.mkdir()


def last_line(layout: RunLayout, **changes: Any) -> None:
    log = layout.attempt(2).rank(0)
    append(log, line_at(log, 24) | changes)


def deep(path: Path) -> None:
    path.write_text("[" * 1_000_000)


def linked(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


ATTACKS: dict[str, Attack] = {
    "world_size in config": lambda layout: config(layout, world_size=10**8),
    "world_size of all attempts": lambda layout: everywhere(layout, "world_size", 10**8),
    "world_size of all, within the range": lambda layout: everywhere(layout, "world_size", 60_000),
    "resumed_from_step": lambda layout: attempt(layout, 0, resumed_from_step=-HUGE),
    "resumed_from_step, within 64 bits": lambda layout: attempt(
        layout, 0, resumed_from_step=-(2**62)
    ),
    "target_steps": lambda layout: config(layout, target_steps=10**9),
    "target_steps and final": lambda layout: [
        config(layout, target_steps=10**8),
        edit_json(layout.attempt(2).final, lambda final: final | {"global_step": 10**8}),
        edit_json(layout.supervisor, lambda document: document | {"target_steps": 10**8}),
    ],
    "final.global_step": lambda layout: edit_json(
        layout.attempt(2).final, lambda final: final | {"global_step": HUGE}
    ),
    "a step far away": lambda layout: last_line(layout, global_step=HUGE),
    "an epoch far away": lambda layout: last_line(layout, epoch=HUGE),
    "a cursor far away": lambda layout: last_line(layout, cursor_step=-HUGE),
    "samples": lambda layout: last_line(layout, sample_ids_count=10**17),
    "a rank's world size": lambda layout: last_line(layout, world_size=10**9),
    "dataset size": lambda layout: edit_json(
        layout.dataset, lambda document: document | {"size": HUGE}
    ),
    "dataset size in config": lambda layout: config(layout, dataset__size=HUGE),
    "global_batch": lambda layout: config(layout, global_batch=10**12),
    "replicas": lambda layout: config(layout, elastic__replicas=10**9, global_batch=10**9),
    "schedule": lambda layout: config(
        layout, elastic__schedule={str(step): 1 + step % 2 for step in range(1, 50_000)}
    ),
    "a size in the schedule": lambda layout: config(layout, elastic__schedule={"1": 10**9}),
    "mtbf": lambda layout: config(
        layout, failure__kind="mtbf", failure__mtbf_steps=1.0, target_steps=10**8
    ),
    "mtbf in seconds": lambda layout: config(
        layout, failure__kind="mtbf", failure__mtbf_s=1.0, supervision__max_restarts=10**9
    ),
    "listed failures": lambda layout: config(
        layout, failure__kind="listed", failure__entries=["kill@9"] * 50_000
    ),
    "restarts": lambda layout: edit_json(
        layout.supervisor, lambda document: document | {"restarts": HUGE}
    ),
    "a launch far away": lambda layout: attempt(layout, 1, launched_at=1e300),
    "sparse logs": sparse_logs,
    "fired files": fired_files,
    "rank logs": rank_logs,
    "attempts": many_attempts,
    "a rank log of newlines, as long as it may be": lambda layout: fill(
        layout.attempt(0).rank(0), b"\n", 1
    ),
    "a journal of newlines, as long as it may be": lambda layout: fill(
        layout.attempt(0).checkpoints, b"\n", 1
    ),
    "a rank log of newlines": lambda layout: fill(layout.attempt(0).rank(0), b"\n", 200),
    "a journal of newlines": lambda layout: fill(layout.attempt(0).checkpoints, b"\n", 300),
    "spans without an end": lambda layout: fill(layout.attempt(0).spans(0), b" ", 200),
    "a large supervisor.json": lambda layout: fill(layout.supervisor, b"[[],[],[],[],1]\n", 60),
    "a large metrics.json": lambda layout: fill(layout.metrics, b"[[],[],[],[],1]\n", 60),
    "deep supervisor.json": lambda layout: deep(layout.supervisor),
    "deep config.json": lambda layout: deep(layout.config),
    "a deep line": lambda layout: deep(layout.attempt(0).rank(1)),
    "an integer of 4000 digits": lambda layout: edit_json(
        layout.attempt(2).final, lambda final: final | {"global_step": int("9" * 4000)}
    ),
    "an integer of 400 digits for a time": lambda layout: last_line(layout, at=int("9" * 400)),
    "an integer of 5000 digits": lambda layout: layout.metrics.write_text(
        '{"schema_version": ' + "9" * 5000 + "}"
    ),
    "an attempt as text": lambda layout: attempt(layout, 1, attempt="1" * 5000),
    "a rank log that is a link": lambda layout: linked(layout.attempt(0).rank(0)),
    "an odd file that is a link": (
        lambda layout: (layout.attempt(0).folder / "odd.json").symlink_to("/etc/hostname")
    ),
    "an odd file that is a folder": lambda layout: (layout.attempt(0).folder / "odd.json").mkdir(),
    "an odd file that is a pipe": lambda layout: os.mkfifo(layout.attempt(0).folder / "odd.jsonl"),
    "a claim that is a link": lambda layout: linked(layout.fired_entry(0)),
    "metrics.json that is a link": lambda layout: linked(layout.metrics),
    "config.json that is a folder": lambda layout: [layout.config.unlink(), layout.config.mkdir()],
    "a verdict that is a list": lambda layout: layout.verdict.write_text(json.dumps([1])),
    "environment.json of another kind": lambda layout: layout.environment.write_text(
        json.dumps({"cpu": [1], "gpus": [[]]})
    ),
}
