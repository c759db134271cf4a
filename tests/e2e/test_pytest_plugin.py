"""The pytest plugin on a project of its own: a marked test of a healthy job passes, one of a job
with a bug fails with the diagnosis.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "jobs" / "plain.py"
PROJECT = """
import pytest

KEYS = ("audit.references=1", "failure=kill", "failure.steps=[13]")

@pytest.mark.ecrl_audit("python JOB --out {dir}", *KEYS)
def test_healthy():
    assert True

@pytest.mark.ecrl_audit("python JOB --out {dir} --bug position", *KEYS)
def test_bug():
    raise SystemError("is not reached")

def test_what_a_fixture_returns(ecrl_audit):
    command = ["python", "JOB", "--out", "{dir}", "--bug", "position"]
    verdict = ecrl_audit(command, *KEYS, check=False)
    assert verdict["status"] == "invalid" and verdict["diagnosis"]

@pytest.mark.ecrl_audit("python JOB")
def test_no_folder():
    pass
"""
pytestmark = pytest.mark.timeout(600)


def test_a_test_that_names_a_command_fails_with_the_diagnosis(tmp_path: Path) -> None:
    (tmp_path / "test_job.py").write_text(PROJECT.replace("JOB", str(JOB)))
    options = "-p ecrl_cli.pytest_plugin -p no:cacheprovider --strict-markers -W error -rA ."
    command = [sys.executable, "-m", "pytest", *options.split()]
    # where ECRL is installed it is a plugin already
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=500, check=False
    )
    ended = {
        name: state
        for state, name in re.findall(
            r"^(PASSED|FAILED) test_job.py::(\w+)", done.stdout, re.MULTILINE
        )
    }
    assert ended == {
        "test_healthy": "PASSED",
        "test_bug": "FAILED",
        "test_what_a_fixture_returns": "PASSED",
        "test_no_folder": "FAILED",
    }, done.stdout
    said = done.stdout.partition("FAILURES")[2]
    assert (
        re.search(r"^invalid: step \d+ ", said, re.MULTILINE)
        and "  broken " in said
        and "report/index.html" in said
    ), said
    assert (
        "names no {dir}" in said
        and "SystemError" not in said
        and not list(tmp_path.glob("outputs"))
    )


def test_the_wheel_registers_it_and_importing_it_is_cheap() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ecrl": "ecrl_cli.pytest_plugin"}
    code = (
        "import pytest, sys; before = {*sys.modules}; import ecrl_cli.pytest_plugin;"
        " print(*({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {
        "ecrl_cli",
        "ecrl_cli.pytest_plugin",
        "shlex",
        "json",
        "json.decoder",
        "json.scanner",
        "json.encoder",
    }
