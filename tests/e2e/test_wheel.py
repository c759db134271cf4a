"""The wheel: built without a network, installed outside the checkout into an environment that has
only its dependencies, and used there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (built,) = folder.glob("ecrl-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it. Its dependencies are those of the tests: torch need
    not be downloaded again.
    """
    folder = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-cache-dir",
        str(wheel),
    ]
    subprocess.run(pip, check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(
        "".join(f"{path}\n" for path in sys.path if path.endswith("site-packages"))
    )
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Command:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        }
        command = [str(installed / "bin" / words[0]), *words[1:]]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_the_wheel_holds_what_runs_and_nothing_of_the_tests(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    source = REPOSITORY / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"ecrl/py.typed", "ecrl_cli/py.typed", "ecrl_cli/data/digits.csv.gz"} <= ours
    assert ours <= names, sorted(ours - names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"ecrl", "ecrl_cli", next(top for top in tops if top.endswith(".dist-info"))}
    assert {name.rpartition("/")[2] for name in names if "dist-info/licenses" in name} == {
        "LICENSE",
        "NOTICE",
    }
    configured = {
        path.relative_to(REPOSITORY / "conf").as_posix()
        for path in (REPOSITORY / "conf").rglob("*.yaml")
    }
    assert {
        name.removeprefix("ecrl_cli/conf/") for name in names if name.startswith("ecrl_cli/conf/")
    } == configured
    kinds = (".py", ".ipynb", ".yaml", ".json", ".txt")
    shown = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "examples").rglob("*")
        if path.suffix in kinds
    }
    assert {f"ecrl_cli/{name}" for name in shown} == {
        name for name in names if name.startswith("ecrl_cli/examples/")
    }


def test_the_installed_package_is_the_one_that_runs(run: Command, installed: Path) -> None:
    code = (
        "import json, ecrl, ecrl_cli, importlib.metadata as m; from ecrl_cli.config.conf_paths"
        " import conf_dir;print(json.dumps([ecrl.__file__, ecrl_cli.__file__, str(conf_dir()),"
        " m.version('ecrl') == ecrl_cli.__version__]))"
    )
    recorder, package, conf, same_version = json.loads(run("python", "-c", code).stdout)
    assert all(
        Path(path).is_relative_to(installed.resolve()) for path in (recorder, package, conf)
    ), (recorder, package, conf)
    assert same_version
    assert run("ecrl", "--help").stdout.startswith("ecrl: when a PyTorch DDP job dies")
    assert run("ecrl", "--explain", "E-storage").stdout.startswith("E-storage\n")


def test_it_brings_the_examples_of_the_documentation(run: Command, tmp_path: Path) -> None:
    assert run("ecrl", "examples").returncode == 0
    composed = run(
        "ecrl", "--config-dir", "examples/conf", "+suite=tiny", "variant=blk", "--cfg", "job"
    )
    assert composed.returncode == 0 and "suite_name: tiny" in composed.stdout, composed.stderr
    assert "position" in run("python", "examples/jobs/plain.py", "--bugs").stdout


def test_the_pytest_plugin_is_registered(run: Command) -> None:
    assert (
        "@pytest.mark.ecrl_audit(command, *keys)"
        in run("python", "-m", "pytest", "--markers", "-p", "no:cacheprovider").stdout
    )


def test_it_trains_and_judges_what_it_trained(run: Command, tmp_path: Path) -> None:
    words = [
        "dataset=digits",
        "model=small_cnn",
        "target_steps=2",
        "global_batch=16",
        "world_size=1",
        "checkpoint.every=1",
        "device=cpu",
    ]
    trained = run("ecrl", "train", *words, "supervision=zygote", "run_dir=run")
    assert trained.returncode == 0, trained.stderr
    judged = run("ecrl", "verify", "run")
    assert judged.returncode == 0 and "valid" in judged.stdout, judged
    scrubbed = run("ecrl", "verify", "run/checkpoints")
    assert scrubbed.returncode == 0, scrubbed
