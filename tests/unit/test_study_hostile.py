"""Hostile inputs: what the study calls refused, that its canary is awake, and the defects it found
once.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.config.conf_paths import check_files
from ecrl_cli.config.studies import Hostile
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.errors import ConfigError, RecordError, StorageError
from ecrl_cli.failures.fault_log import fired_indices
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.studies.frame.study import Record, StudyContext
from ecrl_cli.studies.hostile import audit, inputs, readers
from ecrl_cli.studies.hostile.inputs import all_inputs
from ecrl_cli.studies.hostile.pickles import payloads
from ecrl_cli.studies.hostile.readers import isolated
from ecrl_cli.studies.hostile.store_fixture import (
    FILE_TYPES,
    GUARD,
    FixtureTemplate,
    MaliciousInput,
    RunFixture,
)
from ecrl_cli.studies.hostile.study import GROWTH, STUDY
from ecrl_cli.supervision.run_lock import run_lock
from tests.studies import concluded, failing
from tests.study_records import HOSTILE


@pytest.fixture
def template(tmp_path: Path) -> FixtureTemplate:
    return FixtureTemplate(tmp_path / "stage", 1)


def test_there_are_enough_inputs_and_every_group_of_the_list_is_there() -> None:
    groups = {one.group for one in all_inputs().values()}
    assert len(all_inputs()) >= 120
    assert {
        "pickle as a part",
        "COMMIT",
        "MANIFEST",
        "header",
        "types of files",
        "while it is looked at",
        "pointers",
        "configuration",
    } <= groups
    assert {
        "records of a run",
        "records of a sweep",
        "lock",
        "lease",
        "command line",
        "--config-dir",
    } <= groups


def test_the_scene_is_good_before_the_adversary_comes(template: FixtureTemplate) -> None:
    with template.fixture() as fixture:
        assert (
            verify_checkpoint(fixture.group, GUARD).ok
            and verify_checkpoint(fixture.single, GUARD).ok
        )
        assert (
            readers.read_input(
                replace(all_inputs()["pointers/latest_ok leads out"], act=lambda fixture: None),
                fixture,
            ).by
            == "passed over"
        )


def test_each_fifteenth_input_is_refused_by_name_and_runs_nothing(tmp_path: Path) -> None:
    study = STUDY.open(StudyContext(StudyConfig(Hostile(every=15)), tmp_path))
    skipped = ("command", "load")
    plan = [
        t
        for t in study.plan()
        if t.facts["arm"] == "input"
        and t.facts["look"] not in skipped
        and "hundred thousand" not in t.key
    ]
    records = [Record(trial.key, trial.facts, study.run(trial), 0.0) for trial in plan]
    study.close()
    found = study.findings(records)
    assert [gate for gate in found.gates if not gate.passed] == []
    assert all(
        row.keys() == {column.key for column in table.columns}
        for table in found.tables
        for row in table.rows
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_payload_that_is_unpickled_creates_its_canary(tmp_path: Path) -> None:
    """Without torch: those that the standard reader takes as they stand. (The study asks torch,
    too.)
    """
    import pickle

    for name in ("reduce", "inst", "obj", "stack global", "memo", "system", "dotted"):
        canary = tmp_path / name.replace(" ", "-")
        pickle.loads(payloads(canary)[name])
        assert canary.exists(), name


def accepting(fixture: RunFixture) -> None:
    """The adversary does nothing at all."""


def test_what_is_not_refused_is_called_taken_for_good(template: FixtureTemplate) -> None:
    for look, refusers in (
        ("guard", ("hash",)),
        ("guard single", ("hash",)),
        ("records", ("config.json",)),
        ("lock", ("StorageError",)),
    ):
        with template.fixture() as fixture:
            seen = readers.read_input(
                inputs.MaliciousInput("none", "nothing", look, refusers, accepting), fixture
            )
        assert seen.outcome == "silent_wrong", look


def test_an_error_that_nobody_raised_on_purpose_is_untyped(
    template: FixtureTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(readers, "verify_checkpoint", broken)
    with template.fixture() as fixture:
        assert readers.read_input(all_inputs()["COMMIT/empty"], fixture).outcome == "untyped"


def hang() -> dict[str, Any]:
    while True:
        time.sleep(60)


def die() -> dict[str, Any]:
    os._exit(3)


def test_a_look_that_hangs_or_dies_is_said_to(tmp_path: Path) -> None:
    assert isolated(hang, 0.2)["outcome"] == "hung"
    assert isolated(die, 5)["outcome"] == "untyped"
    assert isolated(lambda: {"outcome": "detected"}, 5) == {"outcome": "detected"}


def test_memory_that_a_look_takes_is_seen(
    template: FixtureTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held until it is measured: kernels count pages by processor, and may forget a moment's."""
    held: list[bytearray] = []

    def look(hostile: MaliciousInput, fixture: RunFixture) -> readers.ReadOutcome:
        held.append(bytearray(4 * GROWTH))
        return readers.ReadOutcome("detected", "")

    monkeypatch.setattr(readers, "read_input", look)
    with template.fixture() as fixture:
        found = isolated(lambda: readers.measured(all_inputs()["COMMIT/empty"], fixture), 20)
    assert found["grown"] > GROWTH


LOG = """
1 openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3</etc/passwd>
1 stat("/ecrl-look-begins", 0x7ffc) = -1 ENOENT (No such file or directory)
1 openat(3</run>, "COMMIT.json", O_RDONLY|O_NOFOLLOW) = 4</run/COMMIT.json>
1 openat(AT_FDCWD, "/usr/lib/python3.11/x.py", O_RDONLY) = 4</usr/lib/python3.11/x.py>
{}
1 stat("/ecrl-look-ends", 0x7ffc) = -1 ENOENT (No such file or directory)
"""


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("", 0),
        ('1 openat(3</run>, "x", O_RDONLY) = -1 ELOOP (Too many levels of symbolic links)', 0),
        ('1 openat(3</run>, "link", O_RDONLY) = 5</outside/secret>', 1),
        ('1 unlink("/outside/secret") = 0', 1),
        ('1 mkdir("/tmp/new", 0700) = 0', 1),
    ],
)
def test_the_audit_counts_what_is_touched_outside_during_a_look(line: str, count: int) -> None:
    found = audit.outside(LOG.format(line).splitlines(), "/run")
    assert (found["looks"], found["opened"], len(found["outside"])) == (1, 1, count)


# What the study found when it was first run.


@pytest.mark.parametrize("kind", FILE_TYPES)
def test_a_record_is_a_plain_file_of_a_bounded_size(template: FixtureTemplate, kind: str) -> None:
    with template.fixture() as fixture:
        FILE_TYPES[kind](fixture.layout.failures, fixture)
        if kind == "a hard link out":  # a backup by hard links is still the user's run
            assert read_whole(fixture.layout.failures) == b"{}"
        else:
            with pytest.raises(RecordError):
                read_whole(fixture.layout.failures)


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a link out"])
def test_a_lock_that_is_no_plain_file_is_refused(template: FixtureTemplate, kind: str) -> None:
    with template.fixture() as fixture:
        FILE_TYPES[kind](fixture.root / ".lock", fixture)
        with pytest.raises(StorageError), run_lock(fixture.layout):
            pass


@pytest.mark.skipif(
    sys.getfilesystemencoding() != "utf-8", reason="no such file name in this locale"
)
def test_a_claim_that_is_named_in_other_digits_is_none(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.fired.mkdir()
    for name in ("\u00b2", "\u0661", "3"):
        (layout.fired / f"{name}.json").write_bytes(b"{}")
    assert fired_indices(layout) == {3}


def test_aliases_of_aliases_are_refused_before_they_are_read(tmp_path: Path) -> None:
    lines = [f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "evil.yaml").write_text("a: &a [x]\n" + "\n".join(lines))
    with pytest.raises(ConfigError, match="22 aliases"):
        check_files([tmp_path], ["model/evil"])


def test_text_that_only_looks_deep_is_read() -> None:
    assert parse(b'{"a":"[[[[[[[[[[[[[[[[[[[[","b":"\\"[[[[[[[[[[[[[[[[["}') == {
        "a": "[" * 20,
        "b": '"' + "[" * 17,
    }
    with pytest.raises(ValueError, match="deeper"):
        parse(b'{"a\\\\":' + b"[" * 17)


def test_too_few_inputs_fail_their_gate() -> None:
    assert failing(concluded(STUDY, Hostile(), HOSTILE.good)) == {"inputs"}
