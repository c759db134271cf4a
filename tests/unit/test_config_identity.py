"""A run's identity outlives the version that laid it down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.config.identity import (
    NOT_IDENTITY,
    NOT_REFERENCE,
    reference_id,
    reference_id_of,
    run_id,
    run_id_of,
)
from ecrl_cli.config.schema import ElasticConfig, RunConfig
from ecrl_cli.verify.verify_run import verify_run
from tests.runs.builder import build_ref


def test_what_is_recorded_has_the_identity_of_what_was_run() -> None:
    config = replace(RunConfig(), elastic=ElasticConfig(schedule={50: 1, 400: 2, 8: 1}))
    recorded = json.loads(json.dumps(encode(config)))
    assert (run_id_of(recorded), reference_id_of(recorded)) == (
        run_id(config),
        reference_id(config),
    )


def test_a_run_that_knew_fewer_keys_keeps_its_verdict(tmp_path: Path) -> None:
    layout = build_ref(tmp_path)
    document = json.loads(layout.config.read_text())
    old = dict(document["config"])
    del old["storage"], old["backend"]
    ids = (run_id_of(old), reference_id_of(old))
    assert ids[0] != document["run_id"]
    for path in layout.root.rglob("*.json"):
        for before, after in zip((document["run_id"], document["reference_id"]), ids, strict=True):
            path.write_text(path.read_text().replace(before, after))
    layout.config.write_text(json.dumps(json.loads(layout.config.read_text()) | {"config": old}))
    finding = next(
        found
        for found in verify_run(layout.root, None).findings
        if found.promise == "records-consistent"
    )
    assert "config.json" not in finding.message
    layout.config.write_text(
        json.dumps(json.loads(layout.config.read_text()) | {"config": old | {"target_steps": 7}})
    )
    finding = next(
        found
        for found in verify_run(layout.root, None).findings
        if found.promise == "records-consistent"
    )
    assert "does not hash to its run_id" in finding.message


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}" if key else name)
    else:
        yield key, value


def changed(recorded: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`recorded` with another value at a dotted key."""
    group, _, rest = key.partition(".")
    return recorded | {group: changed(recorded[group], rest, value) if rest else value}


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return (
        f"{value}x"
        if isinstance(value, str)
        else {"x": 1}
        if isinstance(value, dict)
        else [*value, 1]
    )


RECORDED = json.loads(json.dumps(encode(RunConfig())))


@pytest.mark.parametrize("key", [key for key, _ in leaves(RECORDED)])
def test_every_key_is_in_the_run_id_or_on_the_list_of_those_that_are_not(key: str) -> None:
    """`threads` too: it changes the bits."""
    spoilt = changed(RECORDED, key, other(dict(leaves(RECORDED))[key]))
    # where a run's states are hashed otherwise, they cannot be compared
    if key == "checkpoint.digest":
        assert run_id_of(spoilt) == run_id_of(RECORDED) and reference_id_of(
            spoilt
        ) != reference_id_of(RECORDED)
        return
    group = key.partition(".")[0]
    assert (run_id_of(spoilt) == run_id_of(RECORDED)) == bool({key, group} & set(NOT_IDENTITY))
    assert (reference_id_of(spoilt) == reference_id_of(RECORDED)) == bool(
        {key, group} & set(NOT_REFERENCE)
    )


@pytest.mark.parametrize(
    "key",
    [
        "threads",
        "precision",
        "optimizer.lr",
        "model.name",
        "dataset.name",
        "seed",
        "world_size",
        "global_batch",
    ],
)
def test_what_changes_the_result_is_on_neither_list(key: str) -> None:
    assert not {key, key.partition(".")[0]} & {*NOT_IDENTITY, *NOT_REFERENCE}
