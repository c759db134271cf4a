"""`--plugin FILE.py`: one file adds what a package would, as docs/extend.md shows it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.cli.plugin_files import families
from ecrl_cli.records.layout import RunLayout
from tests.conftest import Ecrl
from tests.contract.variants import TEXT
from tests.e2e.runs import supervisor

(MINE,) = re.findall(r'^```python title="mine.py"\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL)
ADDED = 'ECRL = {"models": {"flat": "flat"}}\n'


def test_a_run_with_all_of_a_file_recovers_and_is_judged_with_the_file(
    ecrl: Ecrl, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    keys = [
        *("dataset=rows", "dataset.size=64", "dataset.augment=false", "model=one_layer"),
        *("task=smoothed", "checkpoint=telling", "checkpoint.every=2", "failure=abort"),
        *("failure.steps=[5]", "target_steps=8", "global_batch=8", "world_size=2", "run_dir=run"),
    ]
    ecrl("train", "--plugin", "mine.py", *keys)
    run = RunLayout(tmp_path / "run")
    first, second = supervisor(run.root)["attempts"]
    assert (first["outcome"], second["outcome"]) == ("died", "completed")
    assert "step 4 is saved" in run.attempt(0).output.read_text()
    said = ecrl("verify", "run", check=3).stderr
    assert "unknown checkpoint 'telling'" in said and "install the package" in said
    assert (
        "failures-once: 1 of 1 planned failures fired"
        in ecrl("verify", "--plugin=mine.py", "run").stdout
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mine.py", "x = 1\n", "does not say what it adds"),
        ("mine.py", "ECRL = 3\n", "is no mapping"),
        ("mine.py", "ECRL = {'models': {'flat': flat}}\n", "holds more than names in quotes"),
        ("mine.py", "ECRL = {'model': {'flat': 'flat'}}\n", "did you mean models?"),
        ("mine.py", "ECRL = {'models': {}}\n", "ecrl.models in 'mine.py' names nothing"),
        ("mine.py", f"{ADDED}def flatt(): ...\n", "did you mean flatt?"),
        ("mine.py", "ECRL = {'models': {'resnet18': 'f'}}\n", "model=resnet18 is there already"),
        ("mine.py", "ECRL = {'models': {'a=b': 'f'}}\n", "cannot be typed"),
        ("mine.py", "def :\n", "is no Python"),
        ("my-own.py", f"{ADDED}def flat(): ...\n", "cannot be imported by its name"),
        ("json.py", f"{ADDED}def flat(): ...\n", "a module 'json' is there already"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_of_it_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text + "\nopen('ran', 'w')\n")
    assert main(["train", "--plugin", name, "--cfg", "job"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_the_file_is_read_and_not_run_where_nothing_of_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"{ADDED}def flat(): ...\nopen('ran', 'w')\n")
    before = list(sys.path)
    assert main(["train", "--plugin", "mine.py", "model=flat", "--cfg", "job"]) == 0
    assert "name: flat" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists() and sys.path == before
    assert main(["train", "model=flat", "--cfg", "job"]) == 2  # for the length of that command


def test_a_launcher_that_submits_jobs_and_a_missing_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--plugin", "mine.py", "hydra/launcher=submitit_slurm"]) == 2
    assert "does not reach the jobs that a launcher submits" in capsys.readouterr().err
    assert main(["verify", "--plugin"]) == 2
    assert "write --plugin FILE.py" in capsys.readouterr().err
    assert main(["audit", "--", "python", "--plugin"]) != 0  # what follows -- is the job's
    assert "names no file" not in capsys.readouterr().err


def test_each_family_that_a_package_can_add_to_is_one() -> None:
    groups = set(re.findall(r'^"(ecrl\.\w+)" = ', TEXT, re.MULTILINE)) - {"ecrl.configs"}
    assert groups <= {family.group for family in families().values()}
