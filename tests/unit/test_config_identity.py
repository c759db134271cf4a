"""A run's identity outlives the version that laid it down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ecrl_cli.config.codec import encode
from ecrl_cli.config.identity import reference_id, reference_id_of, run_id, run_id_of
from ecrl_cli.config.schema import ElasticConfig, RunConfig
from ecrl_cli.verify.judge import judge
from tests.runs.builder import build_ref


def test_what_is_recorded_has_the_identity_of_what_was_run() -> None:
    config = replace(RunConfig(), elastic=ElasticConfig(schedule={50: 1, 400: 2, 8: 1}))
    recorded = json.loads(json.dumps(encode(config)))
    assert (run_id_of(recorded), reference_id_of(recorded)) == (run_id(config), reference_id(config))


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
    finding = next(found for found in judge(layout.root, None).findings if found.promise == "records-consistent")
    assert "config.json" not in finding.message
    layout.config.write_text(json.dumps(json.loads(layout.config.read_text()) | {"config": old | {"target_steps": 7}}))
    finding = next(found for found in judge(layout.root, None).findings if found.promise == "records-consistent")
    assert "does not hash to its run_id" in finding.message
