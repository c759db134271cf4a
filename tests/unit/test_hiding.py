"""What is hidden is gone for a process and for what it starts, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests import environments

LOOK = """
import ctypes.util, importlib.metadata, importlib.util, json, os, shutil, subprocess, sys
from pathlib import Path

def packages(*names):
    return [importlib.util.find_spec(name) is not None for name in names]

try:
    version = importlib.metadata.version("numpy")
except importlib.metadata.PackageNotFoundError:
    version = ""
try:
    opened = os.open("/dev/full", os.O_RDONLY)
except FileNotFoundError:
    opened = -1
seen = [packages("numpy", "pytest", "tests", "ecrl_cli"), version]
seen += [ctypes.util.find_library("c"), ctypes.util.find_library("m") is not None]
seen += [Path("/dev/full").exists(), opened, Path("/dev/null").exists()]
seen += [shutil.which("sleep"), shutil.which("sh") is not None]
if len(sys.argv) == 1:
    again = [sys.executable, sys.argv[0], "again"]
    print(subprocess.run(again, capture_output=True, text=True, check=True).stdout)
else:
    print(json.dumps(seen))
"""


def test_what_is_hidden_is_gone_for_a_process_and_its_children(
    tmp_path: Path, monkeypatch: object
) -> None:
    path = environments.path_without(["^sleep$"], tmp_path / "programs")
    python = environments.python_without(("numpy",), ("c",), ("/dev/full",), tmp_path / "python")
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    done = subprocess.run(
        [python, str(script)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [False, True, True, True],
        "",
        None,
        True,
        False,
        -1,
        True,
        None,
        True,
    ]


def test_everything_that_a_machine_may_lack_can_be_hidden() -> None:
    """What a program, a library or a device is needed for; privileges are taken by setpriv, torch
    is no option.
    """
    from ecrl_cli.linux.prerequisites import PREREQUISITES

    by_other_means = {
        "root",
        "private mounts",
        "private network",
        "libfuse",
        "loop devices",
        "/dev/fuse",
        "torch",
        "slurm daemons",
    }
    hideable = {*environments.HIDEABLE, *(f"extra {extra}" for extra in environments.EXTRAS)}
    due = {
        f"extra {need.extra}" if need.extra else name
        for name, need in PREREQUISITES.items()
        if name not in by_other_means
    }
    assert due - hideable == {
        "extra docs",
        "extra dev",
        "extra train",
        "extra pytest",
    }, "without these no test runs"
