"""What every study keeps: it says what it is, its plan is fixed by its settings and seed, and any
trial is run again by the command it prints.

The study on the page of studies, which another package has, is held to the same.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.study import _configs
from ecrl_cli.config.conf_paths import conf_dir, summary
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.frame import registry
from ecrl_cli.studies.frame.study import OpenStudy, Study, StudyContext, Trial, command
from tests.contract.test_docs_commands import half_written

EXAMPLE = "half-written"
# arms that plan a trial for each failure in the records of `study.source`
FROM_RECORDS = {"recovery-overhead": {"recorded"}}
BUILTIN = registry._STUDIES.builtin


def study_of(name: str) -> Study:
    if name in BUILTIN:
        return registry.load_study(name)
    example: dict[str, Any] = {"__name__": "half_written"}
    exec(compile(half_written(), "docs/studies.md", "exec", dont_inherit=True), example)
    found: Study = example["STUDY"]
    return found


@pytest.fixture(scope="module", params=[*BUILTIN, EXAMPLE])
def study(request: pytest.FixtureRequest) -> Study:
    return study_of(request.param)


def opened(study: Study, scratch: Path, seed: int = 1337) -> OpenStudy:
    return study.open(StudyContext(StudyConfig(study.keys(), seed=seed), scratch))


@pytest.fixture(scope="module")
def planned(study: Study, tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    prepared = opened(study, tmp_path_factory.mktemp("scratch"))
    try:
        return prepared.plan()
    finally:
        prepared.close()


def test_it_is_said_in_a_line_and_its_settings_are_frozen(study: Study) -> None:
    assert study.name in (*BUILTIN, EXAMPLE) and study_of(study.name).name == study.name
    assert (
        study.description[0].isupper()
        and study.description.endswith(".")
        and "\n" not in study.description
    )
    assert is_dataclass(study.keys) and study.keys.__dataclass_params__.frozen  # type: ignore[attr-defined]
    names = [arm.name for arm in study.arms]
    assert names and len(set(names)) == len(names)


@pytest.mark.parametrize("name", BUILTIN)
def test_it_is_chosen_by_a_file_whose_first_line_says_what_it_does(name: str) -> None:
    assert summary([conf_dir()], "study", name)
    assert f"\nname: {name}\n" in (conf_dir() / "study" / f"{name}.yaml").read_text()


def test_its_plan_is_fixed_by_its_settings_and_seed_and_writes_nothing(
    study: Study, planned: list[Trial], tmp_path: Path
) -> None:
    again = opened(study, tmp_path)
    try:
        assert again.plan() == planned
        skipped = again.skips()
    finally:
        again.close()
    assert list(tmp_path.iterdir()) == [] and all(
        skip.reason and "\n" not in skip.reason for skip in skipped
    )
    assert planned or skipped


def test_each_trial_has_a_key_of_its_own_and_facts_that_json_holds(
    study: Study, planned: list[Trial]
) -> None:
    assert len({trial.key for trial in planned}) == len(planned)
    assert all(trial.key.isprintable() and len(trial.key) <= 200 for trial in planned)
    assert json.loads(json.dumps([trial.facts for trial in planned])) == [
        trial.facts for trial in planned
    ]


def test_each_trial_names_its_arm_and_each_arm_that_can_run_has_trials(
    study: Study, planned: list[Trial], tmp_path: Path
) -> None:
    context = StudyContext(StudyConfig(study.keys()), tmp_path)
    due = {arm.name for arm in study.arms if arm.enabled(context.keys) and not arm.missing(context)}
    context.close()
    named = {trial.facts[study.fact] for trial in planned} if len(study.arms) > 1 else due
    assert named == due - FROM_RECORDS.get(study.name, set())


def test_a_trial_is_run_again_by_its_key_as_it_stands(study: Study, planned: list[Trial]) -> None:
    """With the settings that were not the usual ones, as the printed command has them; of all keys
    those that are hardest to read for Hydra.
    """
    if study.name not in BUILTIN:
        # has no YAML to compose from: test_docs_commands.py installs it, and composes it there
        return
    hardest = max(planned, key=lambda trial: sum(not each.isalnum() for each in trial.key))
    quoted = [trial for trial in planned if {"'", '"', "\\"} & set(trial.key)]
    size = next(
        (
            each.name
            for each in fields(study.keys)
            if each.metadata.get("below") and isinstance(each.default, int)
        ),
        "",
    )
    for trial in (planned[0], hardest, *quoted[:1], *quoted[-1:]):
        config = StudyConfig(study.keys(), seed=7, trial=trial.key)
        if size:
            config = replace(
                config, study=replace(config.study, **{size: getattr(config.study, size) + 1})
            )
        words = shlex.split(command(config, "KEY"))[2:-1]
        (read,) = _configs(parse([*words, f"trial={trial.key}"], "study"))
        assert read == config
