"""What Hydra composed for a run is a record of it: under the seal, known to its sessions, and held
against config.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecrl_cli.history.load import load
from ecrl_cli.records.digests import composed_sha256
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.seal import read_seal
from ecrl_cli.supervision.attempts.supervisor_record import (
    SupervisorRecordWriter,
    refresh_run_config,
)
from ecrl_cli.verify.composed import NOT_COMPOSED
from ecrl_cli.verify.consistency import RECORDS, records_consistent
from ecrl_cli.verify.seal import records_sealed
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import build_blk
from tests.runs.changed import configured
from tests.runs.spoil import edit_json
from tests.runs.spoilt_metrics import seal
from tests.runs.spoilt_record import composed


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run that Hydra composed."""
    layout = build_blk(tmp_path)
    composed()(layout)
    layout.overrides.write_text(json.dumps(["variant=blk", "failure.steps=[9,20]"]))
    known(layout)
    return layout


def known(run: RunLayout) -> None:
    """The session began with what lies there."""
    edit_json(
        run.supervisor,
        lambda record: record["sessions"][-1].update(composed=composed_sha256(run)),
    )


def judged(run: RunLayout) -> tuple[str, str, tuple[str, ...]]:
    finding = records_consistent(Case(load(run)))
    assert finding.promise == RECORDS
    return finding.status, finding.message, finding.evidence


def test_a_run_as_it_was_composed_is_valid(run: RunLayout) -> None:
    assert judged(run)[::2] == (VALID, ())
    assert records_sealed(Case(load(run))).evidence == ()


def test_without_what_hydra_composed_the_run_is_unknown(run: RunLayout) -> None:
    run.composed.unlink()
    status, message, _ = judged(run)
    assert status == UNKNOWN
    assert ".hydra/config.yaml is gone, from which the last session began" in message


@pytest.mark.parametrize("changed", ["composed", "overrides"])
def test_another_composition_than_the_session_began_with_is_unknown(
    run: RunLayout, changed: str
) -> None:
    path: Path = getattr(run, changed)
    path.write_text(path.read_text() + "\n")
    status, message, _ = judged(run)
    assert status == UNKNOWN
    assert ".hydra/config.yaml is not the one from which the last session began" in message


def test_a_run_recorded_without_it_is_judged_as_before_and_says_so(tmp_path: Path) -> None:
    case = Case(load(build_blk(tmp_path)))
    assert records_consistent(case).status == VALID
    assert records_sealed(case).evidence == (NOT_COMPOSED,)


# what Hydra composed, the status, and what is said
COMPOSED: dict[str, tuple[dict[str, object], str, str]] = {
    "another step of failure": (
        {"failure__steps": [9]},
        INVALID,
        "failure.steps is \"['9', '20']\" in config.json, \"['9']\" in .hydra/config.yaml",
    ),
    "another rank that fails": ({"failure__rank": 0}, INVALID, "failure.rank is '1' in"),
    "another kind": ({"failure__kind": "exit"}, INVALID, "failure.kind is 'kill' in"),
    "a key that the kind does not use": ({"failure__mtbf_steps": 3.0}, VALID, ""),
    "another strategy": (
        {"checkpoint__strategy": "overlapped"},
        INVALID,
        "checkpoint.strategy is 'blocking' in config.json, 'overlapped' in .hydra/config.yaml",
    ),
    "another launcher": (
        {"supervision__launcher": "zygote"},
        INVALID,
        "supervision.launcher is 'torchrun' in config.json, 'zygote' in .hydra/config.yaml",
    ),
    "what is in no id": ({"supervision__disk_interval_s": 3.0}, VALID, ""),
    "a switch as YAML reads it": ({"state_digests": False}, VALID, ""),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_config_json_is_held_against_all_that_was_composed(tmp_path: Path, name: str) -> None:
    changes, status, said = COMPOSED[name]
    run = build_blk(tmp_path)
    composed(**changes)(run)
    run.overrides.write_text(json.dumps(["variant=blk", "failure.steps=[9,20]"]))
    known(run)
    found, message, _ = judged(run)
    assert found == status
    assert said in message


def test_a_default_is_no_excuse_for_a_key_that_the_kind_uses(run: RunLayout) -> None:
    edit_json(run.config, lambda stored: stored["config"]["failure"].update(rank=0))
    _, _, told = judged(run)
    assert "failure.rank is '0' in config.json, '1' in .hydra/config.yaml" in told


def test_a_run_that_goes_on_may_be_more_patient(run: RunLayout) -> None:
    edit_json(run.composed, lambda document: document["supervision"].update(hang_timeout_s=300.0))
    known(run)
    words = "supervision.hang_timeout_s is '30.0' in config.json, '300.0' in .hydra/config.yaml"
    assert words in judged(run)[1] and judged(run)[0] == UNKNOWN
    edit_json(run.supervisor, lambda record: record.update(sessions=record["sessions"] * 2))
    assert "supervision.hang_timeout_s" not in str(judged(run))


AS_COMPOSED = ("target_steps=24", "++private=False", "optimizer.weight_decay=5e-4")


@pytest.mark.parametrize("typed", [*AS_COMPOSED, "suite_name=a b", "target_steps=48", "+seed=8"])
def test_a_value_that_was_typed_is_the_composed_one(run: RunLayout, typed: str) -> None:
    """What needs Hydra's grammar is left alone."""
    run.overrides.write_text(json.dumps([typed]))
    known(run)
    wrong = typed in ("target_steps=48", "+seed=8")
    status, message, _ = judged(run)
    assert (status == UNKNOWN) == wrong and ("overrides.yaml says" in message) == wrong


def test_a_launcher_that_was_not_typed_is_that_of_the_scale(run: RunLayout) -> None:
    document = json.loads(run.composed.read_text())
    document["scale"]["launcher"] = "zygote"
    run.composed.write_text(json.dumps(document))
    known(run)
    assert "supervision.launcher is 'torchrun' in config.json, 'zygote'" in judged(run)[1]
    run.overrides.write_text(json.dumps(["supervision=torchrun"]))
    known(run)
    assert judged(run)[0] == VALID


def touched(run: RunLayout) -> None:
    run.composed.write_text(run.composed.read_text() + "\n")


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (lambda run: None, VALID, ""),
        (touched, INVALID, "changed since it was sealed: .hydra/config.yaml"),
        (
            lambda run: run.overrides.unlink(),
            UNKNOWN,
            "gone since it was sealed: .hydra/overrides.yaml",
        ),
    ],
    ids=["untouched", "changed", "gone"],
)
def test_it_is_under_the_seal(
    run: RunLayout, change: Callable[[RunLayout], None], status: str, said: str
) -> None:
    seal(run)
    change(run)
    finding = records_sealed(Case(load(run)))
    assert finding.status == status
    assert said in finding.message


def test_a_seal_of_before_that_leaves_it_out_still_holds(tmp_path: Path) -> None:
    run = build_blk(tmp_path)
    seal(run)
    composed()(run)
    assert (found := read_seal(run)) and ".hydra/config.yaml" not in found.files
    assert records_sealed(Case(load(run))).status == VALID


def test_a_session_records_with_what_it_began(run: RunLayout) -> None:
    writer = SupervisorRecordWriter(run, load(run).stored.run_id, 24)
    writer.begin()
    assert load(run).sessions[-1].composed == composed_sha256(run) != ""


def test_a_session_takes_up_what_was_composed_for_it(run: RunLayout) -> None:
    """Only then: a command that is refused, or killed, before it has reopened the run leaves what
    is sealed.
    """
    seal(run)
    run.composed_next.mkdir()
    (run.composed_next / "config.yaml").write_text("suite_name: other")
    assert records_sealed(Case(load(run))).status == judged(run)[0] == VALID
    refresh_run_config(load(run).stored.config, run)
    assert run.composed.read_text() == "suite_name: other"
    assert list(run.composed_next.iterdir()) == []


def test_a_failure_of_a_package_that_is_not_here_is_not_compared_key_by_key(
    run: RunLayout,
) -> None:
    records = load(run)
    failure = replace(records.stored.config.failure, kind="theirs", steps=(3,))
    finding = records_consistent(Case(configured(records, failure=failure)))
    assert "failure.steps" not in "\n".join((finding.message, *finding.evidence))
