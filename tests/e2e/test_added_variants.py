"""Another package adds a strategy, a recovery, a launcher, a model and a data set, by one file and one YAML each: as CONTRIBUTING.md shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.verdict import VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import Ecrl
from tests.contract import test_recoveries, test_strategies
from tests.contract.variants import check_description, install
from tests.e2e.runs import supervisor, tiny


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return install(tmp_path / "site")


@pytest.fixture
def installed(site: Path) -> Iterator[None]:
    """`mylab` can be imported in this process; afterwards nothing knows of it."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (STRATEGIES, RECOVERIES, LAUNCHERS):
            patch.setattr(registry, "_known", dict(registry._known))
        patch.syspath_prepend(site)
        yield


def test_what_a_package_adds_is_held_to_the_contracts_of_its_family(installed: None) -> None:
    check_description(STRATEGIES, "announced", "checkpoint", "strategy")
    check_description(RECOVERIES, "replaced_forward", "recovery", "name")
    check_description(LAUNCHERS, "timed", "supervision", "launcher")
    assert "replaced_forward" in RECOVERIES.names() and "replaced_forward" not in RECOVERIES.builtin
    for check in (test_recoveries.test_the_object_does_not_contradict_itself, test_recoveries.test_who_goes_on_is_as_the_object_says):
        check(RECOVERIES.of("replaced_forward"))
    for told in (test_strategies.test_the_object_does_not_contradict_itself, test_strategies.test_what_cannot_be_combined_is_refused_in_one_line):
        told(STRATEGIES.of("announced"))


def test_a_run_with_one_of_each_recovers_and_is_judged_where_the_package_is(
    ecrl: Ecrl, tmp_path: Path, site: Path, request: pytest.FixtureRequest
) -> None:
    added = ["checkpoint=announced", "recovery=replaced_forward", "supervision=timed", "supervision.spares=1", "model=linear", "dataset=stripes"]
    keys = tiny("supervision.launcher=", "model=", "model.width=", "dataset=", "failure.steps=[9]", "failure.moment=backward")
    ecrl("train", *added, *keys, "run_dir=run", environment={"PYTHONPATH": str(site)})
    run = RunLayout(tmp_path / "run")
    first, second = supervisor(run.root)["attempts"]
    assert (first["outcome"], second["memory"], second["joined"], second["world_size"]) == ("survived", "survivors", [1], 2)
    said = run.attempt(0).output.read_text() + run.attempt(1).output.read_text()
    assert "rank 0: step 6 is saved" in said and "rank 1: step 24 is saved" in said and said.count("launched in ") == 2
    with pytest.raises(EvidenceMissing, match="unknown recovery 'replaced_forward'; install the package that the run was made with"):
        verify_run(run.root)
    request.getfixturevalue("installed")
    verdict = verify_run(run.root)
    assert verdict.status == VALID, render(verdict)
    assert '"cause":"replaced_forward"' in run.attempt(0).lost_samples(0).read_text()
