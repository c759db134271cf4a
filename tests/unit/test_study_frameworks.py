"""The jobs in other people's frameworks: their catalogue is whole, a healthy job is valid, planted
bugs are found and named.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.audit.components import ArmFinding
from ecrl_cli.audit.verdict import AuditVerdict
from ecrl_cli.config.studies import JOBS, Frameworks
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.frame.study import Record, StudyContext, Trial, TrialResults
from ecrl_cli.studies.frameworks.jobs import PLACES, component
from ecrl_cli.studies.frameworks.recipes import RECIPES, Recipe, jobs_dir
from ecrl_cli.studies.frameworks.study import NO_PLACE, STUDY, catalogue
from tests.needs import require

ROWS = catalogue()


def constant(script: str, name: str) -> Any:
    """The constant `name` of a job, without running it."""
    for node in ast.parse((jobs_dir() / f"{script}.py").read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == name
        ):
            return ast.literal_eval(node.value)
    return ()


@pytest.mark.parametrize("script", JOBS)
def test_the_catalogue_has_every_switch_of_every_job(script: str) -> None:
    listed = {row["bug"]: row for row in ROWS if row["script"] == script}
    assert list(listed) == list(constant(script, "BUGS"))
    assert {bug for bug, row in listed.items() if row.get("from_the_start")} == set(
        constant(script, "FROM_THE_START")
    ) | ({"generators drawn from"} if script == "plain" else set())
    assert all(row["threads"] and row.get("place", PLACES[0]) in PLACES for row in listed.values())


def test_the_recipes_are_of_jobs_and_switches_that_there_are() -> None:
    assert {recipe.script for recipe in RECIPES} == set(JOBS) and len(
        {recipe.name for recipe in RECIPES}
    ) == len(RECIPES)
    assert all(
        recipe.variant in ("", *constant(recipe.script, "BUGS"))
        and recipe.exact == (not recipe.variant)
        for recipe in RECIPES
    )


@pytest.mark.parametrize(
    ("promise", "evidence", "blamed"),
    [
        ("exactly once", (), "position"),
        ("restored: schedule and settings", (), "schedule"),
        ("restored: optimizer", (), "optimizer"),
        ("right checkpoint", (), "checkpoint"),
        ("same end", (), "end"),
        ("same trajectory", ("differs in settings, loss",), "schedule"),
        ("same trajectory", ("differs in buffers",), "buffers"),
    ],
)
def test_the_diagnosis_is_one_word(promise: str, evidence: tuple[str, ...], blamed: str) -> None:
    other, first = (
        ArmFinding("same end", "broken", "said last"),
        ArmFinding(promise, "broken", "said first", evidence=evidence),
    )
    assert component(AuditVerdict("invalid", "said first", (other, first), (), (), ())) == blamed
    assert component(AuditVerdict("valid", "said first", (), (), (), ())) == ""


def test_an_exact_recipe_that_was_killed_nowhere_passes_no_gate() -> None:
    """Lightning has no place to be killed at: nothing is wrong with it, and nothing shown."""

    def gates(of_lightning: str) -> dict[str, tuple[bool, str]]:
        verdicts = {"torch.save": ("valid", NO_PLACE), "Lightning": (NO_PLACE, of_lightning)}
        records = [
            Record(
                f"{name}/{place}",
                {"arm": "recipes", "recipe": name},
                {"exact": True, "verdict": verdict},
                0.0,
            )
            for name, both in verdicts.items()
            for place, verdict in enumerate(both)
        ]
        made = TrialResults(StudyContext(StudyConfig(Frameworks(planted=False)), Path()), records)
        return {
            gate.name: (gate.passed, gate.message) for rule in STUDY.gates for gate in rule(made)
        }

    assert gates("valid")["tried"] == (True, "2 of 2 exact recipes came back from a failure")
    assert gates(NO_PLACE) == {
        "exact": (True, "4 of 4 cells are judged as their recipe intends"),
        "tried": (False, "1 of 2 exact recipes came back from a failure; not Lightning"),
    }


def test_as_many_healthy_jobs_as_asked_for_are_drawn_and_one_that_is_not_valid_fails_the_gate(
    tmp_path: Path,
) -> None:
    drawn = next(arm for arm in STUDY.arms if arm.name == "random")
    context = StudyContext(StudyConfig(Frameworks(jobs=("plain", "dcp"), random=30)), tmp_path)
    trials = drawn.trials(context)
    assert trials == drawn.trials(context) and len({trial.key for trial in trials}) == 30
    assert {(trial.facts["recipe"], trial.facts["processes"]) for trial in trials} == {
        (name, n) for name in ("torch.save", "DDP and DCP") for n in (1, 2)
    }

    def gate(*verdicts: str) -> dict[str, bool]:
        records = [
            Record(trial.key, trial.facts, {"verdict": said}, 0.0)
            for trial, said in zip(trials, verdicts, strict=False)
        ]
        return {
            gate.name: gate.passed
            for rule in STUDY.gates
            for gate in rule(TrialResults(context, tuple(records)))
            if gate.name == "random"
        }

    assert (gate("valid", "valid"), gate("valid", "invalid"), gate("unknown"), gate()) == (
        {"random": True},
        {"random": False},
        {"random": False},
        {},
    )


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyContext]:
    folder = tmp_path_factory.mktemp("frameworks")
    (folder / "scratch").mkdir()
    made = StudyContext(StudyConfig(Frameworks()), folder / "scratch")
    yield made
    made.close()
    assert [path.name for path in folder.iterdir()] == ["scratch"]


def tried(context: StudyContext, arm: str, **facts: Any) -> dict[str, Any]:
    return next(made for made in STUDY.arms if made.name == arm).run(
        context, Trial("one", {"arm": arm, **facts})
    )


def number(script: str, bug: str) -> int:
    return next(
        index for index, row in enumerate(ROWS) if (row["script"], row["bug"]) == (script, bug)
    )


@pytest.mark.parametrize(
    ("recipe", "bug", "blamed"),
    [
        pytest.param("accumulation and scaler", "scale", "scaler", marks=pytest.mark.slow),
        ("DDP and DCP", "empty optimizer", "optimizer"),
        pytest.param("StatefulDataLoader", "loader not saved", "position", marks=pytest.mark.slow),
        pytest.param("Lightning", "plain loader", "position", marks=pytest.mark.slow),
        ("HF Trainer", "generators lost", "generators"),
        pytest.param("Accelerate", "nothing skipped", "position", marks=pytest.mark.slow),
        ("Streaming", "position", "position"),
    ],
)
def test_a_healthy_job_is_valid_and_a_planted_bug_named(
    context: StudyContext, recipe: str, bug: str, blamed: str
) -> None:
    made = needed(next(made for made in RECIPES if made.name == recipe))
    seen = tried(context, "recipes", recipe=recipe, processes=made.processes[-1], place=PLACES[0])
    assert (seen["verdict"], seen["blamed"]) == ("valid", ""), seen
    seen = tried(context, "planted", number=number(made.script, bug))
    assert (seen["found"], seen["blamed"]) == (True, blamed), seen


def needed(recipe: Recipe) -> Recipe:
    """`recipe`, or a skip where a package is not installed."""
    require(*recipe.packages)
    return recipe


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", [recipe for recipe in RECIPES if recipe.exact], ids=lambda recipe: recipe.name
)
def test_every_healthy_job_is_valid_wherever_it_is_killed(
    context: StudyContext, recipe: Recipe
) -> None:
    needed(recipe)
    seen = {
        place: tried(
            context, "recipes", recipe=recipe.name, processes=recipe.processes[-1], place=place
        )
        for place in PLACES
    }
    assert {
        place: (told["verdict"], told["said"])
        for place, told in seen.items()
        if told["verdict"] not in ("valid", "no such place")
    } == {}


@pytest.mark.slow
@pytest.mark.parametrize("script", JOBS)
def test_every_planted_bug_is_found_and_named(context: StudyContext, script: str) -> None:
    needed(next(recipe for recipe in RECIPES if recipe.script == script))
    seen = {
        row["bug"]: tried(context, "planted", number=number(script, row["bug"]))
        for row in ROWS
        if row["script"] == script
    }
    assert {
        bug: (told["blamed"], told["said"]) for bug, told in seen.items() if not told["found"]
    } == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "code"),
    [
        (
            "lightning",
            "from lightning.pytorch import Callback as C; made = adapters.lightning_callback()",
        ),
        (
            "transformers",
            "from transformers import TrainerCallback as C; made = adapters.trainer_callback()",
        ),
        (
            "accelerate",
            "from accelerate import Accelerator as C; made = adapters.recorded(C(cpu=True))",
        ),
    ],
)
def test_an_adapter_records_only_where_it_is_asked_to(
    package: str, code: str, tmp_path: Path
) -> None:
    import os
    import subprocess
    import sys

    require(package)
    source = (
        f"import sys\nfrom ecrl import adapters\nassert '{package}' not in"
        f" sys.modules\n{code}\nassert isinstance(made, C)\n"
    )
    source += "print('ecrl.hooks' in sys.modules)"
    for asked in ("", str(tmp_path / "record")):
        environment = os.environ | {"ECRL_RECORD": asked}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", source],
            env=environment,
            capture_output=True,
            text=True,
            timeout=170,
        )
        assert done.stdout.split()[-1:] == [str(bool(asked))], done.stderr[-2000:]
