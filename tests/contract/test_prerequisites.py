"""What a machine may lack, each thing alone and all at once: studies plan what can run and say why
the rest cannot; `ecrl doctor` says the same.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ecrl_cli.cli import doctor
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.linux import prerequisites
from ecrl_cli.linux.prerequisites import PREREQUISITES, lacking
from ecrl_cli.studies.frame.study import StudyContext
from ecrl_cli.studies.power_loss import real_arms
from tests.contract.test_studies import BUILTIN, FROM_RECORDS, study_of
from tests.needs import skipped_line

ROOT = Path(__file__).parents[2]
ALL = "all at once"
Hide = Callable[[str], None]


class EverywhereRig:
    """The rig of a machine on which every file system can be mounted and cut off."""

    def probe(self, kind: str) -> dict[str, object]:
        return {"error": "", "refusal": None}

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def asked() -> set[str]:
    """The prerequisites that were asked for."""
    return set()


@pytest.fixture
def hide(asked: set[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hide]:
    """Makes this a machine that has everything but the thing named (ALL: none of it)."""

    def answer(each: str, hidden: bool) -> str:
        asked.add(each)
        return f"{each} is hidden" if hidden else ""

    def hidden(name: str) -> None:
        for each, need in PREREQUISITES.items():
            monkeypatch.setitem(
                PREREQUISITES,
                each,
                replace(need, absent=partial(answer, each, name in (each, ALL))),
            )

    monkeypatch.setattr(real_arms, "Rig", lambda folder: EverywhereRig())
    return hidden


def unlike(title: str, scratch: Path) -> list[object]:
    """Nothing, or what is planned, what of it is due, and what is said of the rest, where the three
    do not agree.
    """
    study = study_of(title)
    context = StudyContext(StudyConfig(study.keys()), scratch)
    arms = {arm.name: arm.missing(context) for arm in study.arms if arm.enabled(context.keys)}
    prepared = study.open(context)
    planned = {
        trial.facts[study.fact] if len(study.arms) > 1 else study.arms[0].name
        for trial in prepared.plan()
    }
    due = {arm for arm, reason in arms.items() if not reason} - FROM_RECORDS.get(title, set())
    told = {skip.arm: skip.reason for skip in prepared.skips()}
    prepared.close()
    agree = planned == due and all(
        told.get(arm) == reason for arm, reason in arms.items() if reason
    )
    return [] if agree else [sorted(planned), sorted(due), told]


@pytest.mark.parametrize("title", BUILTIN)
def test_a_study_plans_what_can_run_and_says_why_the_rest_cannot(
    title: str, hide: Hide, asked: set[str], tmp_path: Path
) -> None:
    """With everything there, which tells what the study asks for; then without each of that, and
    without all of it.
    """
    hide("")
    assert unlike(title, tmp_path) == []
    wrong = {}
    for name in [*sorted(asked), *([ALL] if asked else [])]:
        hide(name)
        if found := unlike(title, tmp_path):
            wrong[name] = found
    assert wrong == {}


def test_what_is_hidden_from_the_power_loss_study_leaves_out_its_arm_and_no_other(
    hide: Hide, tmp_path: Path
) -> None:
    hide("libfuse")
    study = study_of("power-loss")
    context = StudyContext(StudyConfig(study.keys()), tmp_path)
    missing = {arm.name: arm.missing(context) for arm in study.arms if arm.enabled(context.keys)}
    assert {arm: reason for arm, reason in missing.items() if reason} == {
        "blocks": "libfuse is hidden (apt-get install libfuse3-3)"
    }


@pytest.mark.parametrize("name", PREREQUISITES)
def test_doctor_says_what_is_missing_what_for_and_how_to_get_it(name: str, hide: Hide) -> None:
    hide(name)
    lines = [line for line in doctor._tools() if line.level != doctor.GOOD]
    need = PREREQUISITES[name]
    assert [(line.fact, line.follows) for line in lines] == [
        (f"{name} is hidden", f"needed for {need.needed_for}: {need.remedy}")
    ]
    assert lacking(name) == f"{name} is hidden ({need.remedy})"


def test_each_extra_is_named_with_its_packages() -> None:
    """`docs` and `dev` bring the tools of this repository, without which nothing here runs: of them
    only what a test does without is named.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        extra: {need.name for need in PREREQUISITES.values() if need.extra == extra}
        for extra in extras
    }
    for extra, packages in extras.items():
        own = [package for package in packages if not package.startswith("ecrl[")]
        distributions = {
            re.split(r"[^\w.-]", package)[0].replace("mlflow-skinny", "mlflow") for package in own
        }
        assert named[extra] and (extra in ("docs", "dev") or distributions <= named[extra]), extra


def test_what_is_missing_is_looked_for_in_one_place() -> None:
    """Not in the studies, the tests or the doctor. Two programs are asked for what a record holds,
    and the check of torch sees a broken one.
    """
    looking = re.compile(r"shutil\.which\(|util\.find_spec\(|find_library\(|importorskip\(")
    ours = [*(ROOT / "src" / "ecrl_cli").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    places = {
        path.relative_to(ROOT).as_posix()
        for path in ours
        if looking.search(path.read_text(encoding="utf-8"))
    }
    allowed = {
        *(
            "src/ecrl_cli/linux/prerequisites.py",
            "src/ecrl_cli/audit/warm.py",  # which interpreter a command means
            "src/ecrl_cli/runs/environment.py",
            "src/ecrl_cli/config/machine.py",
        ),
        *(
            "src/ecrl_cli/config/conf_paths.py",
            "src/ecrl_cli/studies/writers/clocks.py",
            "src/ecrl_cli/studies/mutants/recovery.py",
        ),
        *(
            "tests/contract/test_prerequisites.py",
            "tests/environments.py",
            "tests/hiding.py",
            "tests/unit/test_hiding.py",
        ),
        "tests/unit/test_audit_recorder.py",
    }
    assert places <= allowed, sorted(places - allowed)


def test_a_package_above_the_one_asked_for_may_be_missing_too() -> None:
    assert prerequisites._no_module("plugin", "no_such_package.plugin") == "plugin is not installed"
    assert (
        lacking("no_such_package")
        == "no_such_package is not installed (pip install no_such_package)"
    )


def test_a_package_is_looked_for_by_the_name_that_pip_has_for_it() -> None:
    assert lacking("hydra-core") == ""  # it brings the module hydra
    assert lacking("hydra-nowhere") == (
        "hydra-nowhere is not installed (pip install hydra-nowhere)"
    )


def test_a_probe_says_the_last_line_of_what_refused() -> None:
    assert (
        prerequisites._refusal(
            "no mounts", ["sh", "-c", "echo first >&2; echo Operation not permitted >&2; exit 1"]
        )
        == "no mounts: Operation not permitted"
    )
    assert prerequisites._refusal("no mounts", ["sh", "-c", "exit 3"]) == "no mounts: exit code 3"
    assert prerequisites._refusal("no mounts", ["true"]) == ""


def test_the_last_line_says_what_was_skipped_and_how_to_get_it() -> None:
    reasons = [
        *["chromium is not installed (apt-get install chromium)"] * 3,
        "mlflow is not installed (pip install 'ecrl[mlflow]')",
        "lightning is not installed (pip install 'ecrl[frameworks]')",
        "mkfs.xfs is not installed (apt-get install xfsprogs)",
        *["needs a GPU"] * 2,
    ]
    assert (
        skipped_line(reasons)
        == "8 skipped, for want of chromium 3, mlflow 1, lightning 1, mkfs.xfs 1: apt-get install"
        " chromium xfsprogs && .venv/bin/python -m pip install -e '.[frameworks,mlflow]';"
        " otherwise needs a GPU 2"
    )
    assert (
        skipped_line(["needs a GPU"]) == "1 skipped, otherwise needs a GPU 1"
        and skipped_line([]) == ""
    )


def test_that_line_is_the_last_one_of_a_session(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "test_some.py").write_text(
        'import pytest\n@pytest.mark.needs("no_such_package")\ndef test_it(): ...\n'
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.needs",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        done.stdout.splitlines()[-1]
        == "1 skipped, otherwise no_such_package is not installed (pip install no_such_package) 1"
    ), done.stdout


def test_what_was_skipped_before_runs_after_a_session_that_ran_something_else(
    tmp_path: Path,
) -> None:
    import subprocess
    import sys

    skips = (
        'import os, pytest\n@pytest.mark.skipif("HERE" not in os.environ, reason="not here")\ndef'
        " test_it(): ...\n"
    )
    (tmp_path / "test_skips.py").write_text(skips)
    (tmp_path / "test_other.py").write_text("def test_it(): ...\n")

    def session(*words: str, here: bool = False) -> str:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.needs",
            "--rootdir",
            str(tmp_path),
            *words,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"HERE": "1"} if here else {})}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    assert "1 passed, 1 skipped" in session(".")
    assert "1 passed" in session("test_other.py")
    assert "1 passed, 1 deselected" in session("--skipped-before", ".", here=True)
    assert "2 deselected" in session("--skipped-before", ".", here=True)
