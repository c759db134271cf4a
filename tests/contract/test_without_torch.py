"""Where torch cannot be imported, what judges works, and what trains says in one line what is
missing, before anything is launched or written.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ecrl_cli.config import machine
from ecrl_cli.errors import ConfigError
from ecrl_cli.studies import golden
from tests.runs.builder import build_blk, build_ref
from tests.unit.audit_recordings import healthy

_BROKEN = 'raise ImportError("libtorch_cpu.so: cannot open shared object file")\n'
# All commands in one process: each would take half a second to start.
_SCRIPT = """
import contextlib, io, json, sys
from ecrl_cli.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


def _answers(tmp_path: Path, commands: list[list[str]]) -> dict[str, tuple[int, str, str]]:
    """Exit code, standard output and standard error of each of `commands` by its words, in a
    process that finds a torch that cannot be imported.
    """
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(_BROKEN)
    environment = os.environ | {"PYTHONPATH": str(broken.parent)}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(commands)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        " ".join(words): tuple(answer)
        for words, answer in zip(commands, json.loads(done.stdout), strict=True)
    }


def test_the_judging_side_needs_no_torch(tmp_path: Path) -> None:
    struck, reference, recording = (
        build_blk(tmp_path / "runs"),
        build_ref(tmp_path / "runs"),
        healthy(tmp_path / "audit"),
    )
    commands = [
        ["--help"],
        ["train", "--help"],
        ["study", "--help"],
        ["completion", "bash"],
        ["train", "dataset=digits", "--cfg", "job"],
        ["verify", str(struck.root), str(reference.root)],
        ["verify", str(struck.checkpoints), "--deep"],
        ["verify", str(Path(golden.__file__).parent / "v1" / "torch"), "--deep"],  # a .pt file
        [
            "report",
            str(struck.root),
            str(reference.root),
            "--out",
            str(tmp_path / "report"),
            "--judge",
        ],
        ["audit", str(recording)],
    ]
    answers = _answers(tmp_path, commands)
    assert {words: code for words, (code, *_) in answers.items()} == dict.fromkeys(answers, 0), (
        answers
    )
    assert (tmp_path / "report" / "index.html").exists()


_JOB = """
import runpy, sys
sys.path[:] = [folder for folder in sys.path if not folder.endswith("broken")]
sys.path.insert(0, FOLDER)
sys.argv = ["plain.py", "--out", sys.argv[1]]
runpy.run_path(PLAIN, run_name="__main__")
"""


def test_an_audit_runs_a_job_that_has_a_torch_of_its_own(tmp_path: Path) -> None:
    plain = Path(__file__).parents[2] / "examples" / "jobs" / "plain.py"
    (tmp_path / "job.py").write_text(
        _JOB.replace("PLAIN", repr(str(plain))).replace("FOLDER", repr(str(plain.parent)))
    )
    keys = ["audit.references=1", "failure=kill", "failure.steps=[13]", "run_dir=audited"]
    (answer,) = _answers(
        tmp_path, [["audit", *keys, "--", sys.executable, "job.py", "{dir}"]]
    ).values()
    assert answer[0] == 0 and answer[1].startswith("audited: valid: "), answer


def test_torch_comes_with_an_extra_and_with_what_trains() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert not [text for text in project["dependencies"] if text.startswith("torch")]
    assert [text.partition(">")[0] for text in extras["train"]] == ["torch", "torchvision"]
    assert all(
        "train" in text
        for text in (extras["dev"][0], extras["slurm"][0], extras["checkpointers"][0])
    ), "`make install` installs dev"


def test_what_trains_says_what_is_missing_before_anything_is_launched(tmp_path: Path) -> None:
    run = tmp_path / "run"
    commands = [
        ["train", "dataset=digits", f"run_dir={run}"],
        ["-m", "+suite=digits-cnn", "variant=clean,blk", f"run_dir={run}"],
        ["study", "study=compat", f"run_dir={run}"],
        ["audit", "--state", "A.pt", "B.pt"],
    ]
    for words, (code, out, err) in _answers(tmp_path, commands).items():
        assert (code, out) == (2, ""), words
        line = err.splitlines()[-1]
        assert (
            line.startswith("ecrl: error: E-config torch: what lies in")
            and "-m pip install torch torchvision" in line
        ), words
    assert not run.exists()


def test_a_torch_that_is_not_installed_is_told_from_one_for_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.check_torch()  # the one that the tests run with
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ConfigError, match="torch: is not installed"):
        machine.check_torch()
    (tmp_path / "torch").mkdir()
    importlib.invalidate_caches()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_C.cpython-27-s390x-linux-gnu.so").touch()
    with pytest.raises(ConfigError, match="is no torch for this Python"):
        machine.check_torch()
