"""A checkpoint consists of what the configuration has: another configuration is contradicted by it,
and so is an optimizer that was made otherwise.
"""

from __future__ import annotations

import copy
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.history.load import load
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.checkpoint_contents import check_contents
from ecrl_cli.verify.checkpoint_lines import _check_count
from ecrl_cli.verify.train_state import check_documents
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from tests.runs.sentence import assert_said

RECORDED = Path(__file__).parent.parent / "recorded" / "v0.2.0.tar.xz"
Keys = dict[str, Any]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """A run with parts in a folder, and one with `.pt` files; their checkpoints are hashed once."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    found = {
        name: Case(load(RunLayout(folder / "sweep" / name)))
        for name in ("overlapped", "torch_file")
    }
    assert all(case.disk for case in found.values())
    return found


def changed(case: Case, **keys: Any) -> Case:
    """The case with other values in config.json: by group, or of the configuration itself."""
    config: RunConfig = case.run.stored.config
    for key, value in keys.items():
        group = getattr(config, key)
        config = replace(
            config, **{key: replace(group, **value) if isinstance(value, dict) else value}
        )
    return case.beside(run=replace(case.run, stored=replace(case.run.stored, config=config)))


def judged(case: Case) -> Finding:
    notes = FindingBuilder("state-consistent")
    check_contents(case, notes)
    check_documents(case, notes)
    return notes.finding("")


@pytest.mark.parametrize("name", ["overlapped", "torch_file"])
def test_what_was_saved_is_what_was_configured(cases: dict[str, Case], name: str) -> None:
    assert judged(cases[name]).status == VALID


# What config.json says instead, the status, and what is said of checkpoints/step_00000018.
OTHERWISE: dict[str, tuple[Keys, str, str]] = {
    "a wider model": (
        {"model": {"width": 64}},
        INVALID,
        "has parameter '0.0.weight' with shape [4, 1, 3, 3], the configured model has it with shape"
        " [64, 1, 3, 3]",
    ),
    "a deeper model": (
        {"model": {"depth": 5}},
        INVALID,
        "has parameter '4.0.weight' not at all, the configured model has it with shape",
    ),
    "a shallower model": (
        {"model": {"depth": 3}},
        INVALID,
        "has parameter '3.0.weight' with shape [32, 16, 3, 3], the configured model has it not at"
        " all",
    ),
    "a model of another package": ({"model": {"name": "mine", "width": 64}}, VALID, ""),
    "AdamW": (
        {"optimizer": {"name": "adamw"}},
        INVALID,
        "keeps 'momentum_buffer' for its optimizer, adamw has none",
    ),
    "AdamW, and a task of another package that may keep more": (
        {"optimizer": {"name": "adamw"}, "task": {"name": "mine"}},
        VALID,
        "",
    ),
    "a single file": (
        {"checkpoint": {"layout": "single"}},
        INVALID,
        "is a folder of parts, config.json has a single file (safetensors)",
    ),
    "a .pt file": (
        {"checkpoint": {"format": "torch"}},
        INVALID,
        "is a folder of parts, config.json has a single file (pt)",
    ),
    "a CUDA device": (
        {"device": "cuda"},
        INVALID,
        "was saved without CUDA generators, config.json has device=cuda",
    ),
    "a CPU": ({"device": "cpu"}, VALID, ""),
    "files that only torch.save can read": (
        {"checkpoint": {"strategy": "torch_save", "layout": "single"}},
        VALID,
        "",
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_configuration_is_contradicted(cases: dict[str, Case], name: str) -> None:
    keys, status, said = OTHERWISE[name]
    finding = judged(changed(cases["overlapped"], **keys))
    assert finding.status == status
    assert said in finding.message


def test_a_pt_file_is_no_safetensors_file(cases: dict[str, Case]) -> None:
    finding = judged(changed(cases["torch_file"], checkpoint={"format": "safetensors"}))
    assert "is a single file (pt), config.json has a single file (safetensors)" in finding.message


@pytest.mark.parametrize(("sessions", "status"), [(1, INVALID), (2, UNKNOWN)])
def test_a_commit_is_signed_where_a_key_is_configured(
    cases: dict[str, Case], sessions: int, status: str
) -> None:
    """A later session may have gone on without it."""
    case = changed(cases["overlapped"], checkpoint={"hmac_key_file": "key"})
    record = case.run.supervisor
    assert record is not None
    record = replace(record, sessions=record.sessions[:1] * sessions)
    finding = judged(case.beside(run=replace(case.run, supervisor=record)))
    text = "the commit of checkpoints/step_00000021 is not signed, config.json names a key for it"
    assert_said(finding, status, text)


def test_a_commit_is_not_signed_where_no_key_is_configured(cases: dict[str, Case]) -> None:
    def signed(path: Path, config: IntegrityConfig) -> IntegrityReport:
        report = verify_checkpoint(path, config)
        assert report.commit is not None
        return replace(report, commit=replace(report.commit, hmac_sha256="0" * 64))

    with patch("ecrl_cli.verify.disk_state.verify_checkpoint", signed):
        finding = judged(Case(cases["overlapped"].run))
    text = "the commit of checkpoints/step_00000021 is signed, config.json names no key for it"
    assert_said(finding, UNKNOWN, text)


def first_group(case: Case) -> dict[str, Any]:
    group: dict[str, Any] = case.disk[0].train["optimizer"]["param_groups"][0]
    return group


# What the optimizer of the first checkpoint was made with, and what is said.
MADE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "nesterov": (lambda group: group.update(nesterov=True), "has nesterov True, not False"),
    "dampening": (lambda group: group.update(dampening=0.5), "has dampening 0.5, not 0"),
    "a parameter left out": (
        lambda group: group["params"].pop(),
        "gives its optimizer no parameter '7.bias': it is never updated",
    ),
    "a parameter twice": (
        lambda group: group["params"].append("7.bias"),
        "gives its optimizer a parameter twice, or one that it does not hold",
    ),
    "a version of torch without the key": (lambda group: group.pop("nesterov"), ""),
}


@pytest.mark.parametrize("name", MADE)
def test_an_optimizer_made_otherwise_is_contradicted(cases: dict[str, Case], name: str) -> None:
    change, said = MADE[name]
    whole = cases["overlapped"]
    first = replace(whole.disk[0], train=copy.deepcopy(whole.disk[0].train))
    case = whole.beside()
    case.__dict__["disk"] = (first, *whole.disk[1:])
    change(first_group(case))
    finding = judged(case)
    assert finding.status == (INVALID if said else VALID)
    assert said in finding.message


@pytest.mark.parametrize(("bytes_", "status"), [(10, INVALID), (1.001, VALID)])
def test_a_retired_checkpoint_had_about_the_size_of_those_that_are_there(
    cases: dict[str, Case], bytes_: float, status: str
) -> None:
    whole = cases["overlapped"]
    first = whole.run.attempt_logs[0]
    lines = tuple(
        replace(line, bytes=int(line.bytes * bytes_)) for line in first.checkpoints.events
    )
    logs = replace(first, checkpoints=replace(first.checkpoints, events=lines))
    case = whole.beside(run=replace(whole.run, attempt_logs=(logs, *whole.run.attempt_logs[1:])))
    finding = judged(case)
    assert finding.status == status
    assert ("attempt 0 committed step 3 with" in finding.message) == (status == INVALID)


def test_a_save_counts_those_before_it_that_were_committed_only_later() -> None:
    """Of three saves before it the first was committed before, and the last never."""
    line = CheckpointLine("submitted", 9, 1, at=5.0, time=5.0, inflight=1)
    for in_flight, broken in ((1, True), (2, False), (3, False)):
        notes = FindingBuilder("checkpoints-accounted")
        _check_count(replace(line, inflight=in_flight), [4.0, 6.0, 0.0], notes)
        assert notes.clean != broken
