"""The kind of failure that docs/extend.md adds from a package of its own keeps to the contract,
strikes a real run, and `verify` wants its trace.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.failures.fault_kind import FaultKind, fault_kind
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.verdict import INVALID, VALID
from ecrl_cli.verify.verification_input import Case
from tests.conftest import run_ecrl
from tests.contract.failure_kinds import FailureKindContract
from tests.contract.variants import install
from tests.e2e.runs import supervisor, tiny
from tests.runs.spoil import edit_json

NAME = "segfault"
_SHAPE = (
    "world_size=1",
    "target_steps=6",
    "checkpoint.every=2",
    "failure=",
    "failure.steps=[3]",
    "failure.rank=",
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path with the package of docs/extend.md installed."""
    folder = install(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    fault_kind.cache_clear()
    for name in ("mylab", "mylab.segfault"):
        sys.modules.pop(name, None)


class TestAnAddedKind(FailureKindContract):
    @pytest.fixture
    def kind(self, package: Path) -> FaultKind:
        return fault_kind(NAME)

    @pytest.fixture
    def conf(self, package: Path) -> Path:
        return package / "mylab" / "conf"


@pytest.fixture(scope="module")
def recovered(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one rank that crashes after step 3 of 6; a checkpoint every two."""
    folder = tmp_path_factory.mktemp("run")
    environment = {"PYTHONPATH": str(package)}
    said = run_ecrl(
        folder, "train", *tiny(*_SHAPE), f"failure={NAME}", "run_dir=run", environment=environment
    )
    assert "failure 1 of 1: rank 0 crashes with SIGSEGV, after step 3" in said.stdout + said.stderr
    return folder / "run"


def test_it_strikes_a_real_run_which_comes_back(recovered: Path) -> None:
    first, second = supervisor(recovered)["attempts"]
    assert (first["outcome"], first["signal"], first["last_step"]) == ("died", 11, 3)
    assert (second["outcome"], second["resumed_from_step"]) == ("completed", 2)
    finding = failures_once(Case(load(RunLayout(recovered))))
    assert finding.status == VALID and finding.message.startswith(
        "1 of 1 planned failures fired"
    ), finding


def test_the_verdict_of_the_command_is_on_its_trace(
    recovered: Path, package: Path, tmp_path: Path
) -> None:
    """A record by which the rank ended otherwise is not valid."""
    run = RunLayout(shutil.copytree(recovered, tmp_path / "run", symlinks=True))
    edit_json(run.supervisor, lambda record: record["attempts"][0].update(signal=9))
    said = run_ecrl(
        tmp_path, "verify", "run", check=1, environment={"PYTHONPATH": str(package)}
    ).stdout
    assert (
        "failures-once - entry 0 (segfault of rank 0) is not how attempt 0 died: rank 0, exit code"
        " None, signal 9" in said
    )
    assert failures_once(Case(load(run))).status == INVALID


def test_where_its_package_is_missing_one_line_says_so(recovered: Path, tmp_path: Path) -> None:
    said = run_ecrl(tmp_path, "train", *tiny(*_SHAPE), f"failure.kind={NAME}", check=2).stderr
    assert "failure.kind: must be one of none, exit, kill" in said and f"got {NAME!r}" in said
    assert not list(tmp_path.iterdir())
    said = run_ecrl(tmp_path, "verify", str(recovered), check=3).stdout
    assert (
        f"failures-once - config.json is none that ECRL runs here: unknown failure {NAME!r}" in said
    )
