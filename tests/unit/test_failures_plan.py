"""The plan is data: complete, refused where it cannot strike, each entry once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import FailureConfig, RunConfig, VariantConfig
from ecrl_cli.errors import ConfigError, RecordError
from ecrl_cli.failures.plan import describe, pending, plan, read_plan
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout


def config(kind: str, rank: int = 0, **more: object) -> RunConfig:
    return replace(RunConfig(world_size=3, failure=FailureConfig(kind, (40, 75), rank)), **more)  # type: ignore[arg-type]


def test_an_entry_per_step_with_its_victim() -> None:
    assert plan(config("kill", 2)) == (PlannedFailure(0, "kill", 2, 40), PlannedFailure(1, "kill", 2, 75))
    assert [entry.rank for entry in plan(config("exit"))] == [0, 0]


def test_no_entry_where_none_is_wanted() -> None:
    assert plan(config("none")) == ()
    assert plan(config("kill", 1, variant=VariantConfig("ref", failures=False))) == ()


@pytest.mark.parametrize(
    ("kind", "rank", "fact"), [("kill", 3, "rank 3 does not exist with 3 ranks"), ("exit", 1, "rank 0"), ("meteor", 0, "unknown")]
)
def test_what_cannot_strike_is_refused(kind: str, rank: int, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        plan(config(kind, rank))


def test_every_entry_is_described() -> None:
    lines = describe(plan(config("kill", 2)))
    assert lines[1] == "failure 2 of 2: rank 2 is killed by SIGKILL, without a flush, after step 75"
    assert describe(()) == ("no failures planned",)


def test_pending_leaves_out_what_has_fired() -> None:
    planned = plan(config("kill"))
    assert pending(planned, {0}) == planned[1:]
    assert pending(planned, ()) == planned


def test_the_stored_plan_is_read_back_whole_or_refused(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with pytest.raises(RecordError, match="missing"):
        read_plan(layout)
    layout.failures.write_text(json.dumps(encode(plan(config("kill", 1)))))
    assert read_plan(layout) == plan(config("kill", 1))
    layout.failures.write_text('[{"index": 0, "kind": "kill", "rank": "one", "global_step": 4}]')
    with pytest.raises(RecordError, match="rank"):
        read_plan(layout)
