"""For pytest (entry point `pytest11`): a test that names a training command has it audited, and
fails with the diagnosis.

    @pytest.mark.ecrl_audit("python train.py --steps 40 --out {dir}", "audit.failures=1")
    def test_the_job_comes_back_exactly():
        pass

    def test_any_configuration(ecrl_audit):
        verdict = ecrl_audit(["python", "train.py", "--out", "{dir}"], "audit.references=1")
        assert verdict["status"] == "valid"

`python` as the first word is the interpreter that runs pytest. The command runs in pytest's root
folder (docs/ci.md).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

Audit = Callable[..., dict[str, Any]]
_MARK = "ecrl_audit"


def pytest_configure(config: pytest.Config) -> None:
    line = (
        f"{_MARK}(command, *keys): audit the command before the test, which fails with the"
        " diagnosis where it is not valid"
    )
    config.addinivalue_line("markers", line)


@pytest.fixture
def ecrl_audit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """`ecrl_audit(COMMAND, *KEYS, check=True)`: the verdict on the command as in audit.json; with
    `check` the test fails where it is not valid.

    COMMAND: one text, or its words, with {dir} where the job writes. KEYS: as for `ecrl audit`.
    """
    folder = tmp_path_factory.mktemp("ecrl-audit")
    made = 0

    def audit(command: str | Sequence[str], *keys: str, check: bool = True) -> dict[str, Any]:
        nonlocal made
        made += 1
        return _audited(command, keys, request.config.rootpath, folder / f"audit-{made}", check)

    return audit


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Audits what the test is marked with, before its own body."""
    for number, mark in enumerate(item.iter_markers(_MARK)):
        if not mark.args:
            pytest.fail(f"@pytest.mark.{_MARK} names no command", pytrace=False)
        factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
        folder = factory.mktemp("ecrl-audit") / f"mark-{number}"
        _audited(mark.args[0], mark.args[1:], item.config.rootpath, folder, check=True)
    return (yield)


def _audited(
    command: str | Sequence[str], keys: Sequence[str], cwd: Path, folder: Path, check: bool
) -> dict[str, Any]:
    """Runs `ecrl audit` in a process of its own, which ends what the job leaves behind; pytest.fail
    where it cannot be judged, or is not valid.
    """
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    if words[:1] in (["python"], ["python3"]):
        words[0] = sys.executable
    order = [
        sys.executable,
        "-m",
        "ecrl_cli.cli.main",
        "audit",
        "--json",
        *keys,
        f"run_dir={folder}",
        "--",
        *words,
    ]
    done = subprocess.run(
        order, cwd=cwd, capture_output=True, text=True, errors="replace", check=False
    )
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        pytest.fail(f"the command was not audited:\n{done.stderr.strip()}", pytrace=False)
    if check and verdict.get("status") != "valid":
        pytest.fail(_told(verdict, folder), pytrace=False)
    return verdict


def _told(verdict: dict[str, Any], folder: Path) -> str:
    """The diagnosis, the promises that were not kept with their evidence, and where the page is."""
    lines = [f"{verdict.get('status')}: {verdict.get('diagnosis')}"]
    for finding in verdict.get("findings", ()):
        if finding.get("status") in ("broken", "unknown"):
            where = f" [{finding['arm']}]" if finding.get("arm") else ""
            lines += [f"  {finding['status']} {finding['promise']}{where}: {finding['message']}"]
            lines += [f"      {text}" for text in finding.get("evidence", ())[:3]]
    return "\n".join([*lines, f"page: {folder / 'report' / 'index.html'}"])
