"""What `.ci/run` runs first are the README's two commands as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import readme

ROOT = Path(__file__).parents[2]


def test_the_first_block_of_the_readme_is_two_targets_of_the_makefile() -> None:
    found = readme.commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found == ["make quickstart", "make test"]
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {command.removeprefix("make ") for command in found} <= targets


def test_continuous_integration_runs_them_before_it_installs_what_is_optional() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    first, optional = (
        script.index("python3 tests/readme.py"),
        [script.index(name) for name in ("chromium", "strace", "xfsprogs", "frameworks")],
    )
    assert first < min(optional)


@pytest.mark.parametrize(
    ("codes", "ran", "code"),
    [("0 0", ["one", "two"], 0), ("3 0", ["one"], 3), ("0 4", ["one", "two"], 4)],
)
def test_they_run_one_after_another_until_one_fails(
    tmp_path: Path, codes: str, ran: list[str], code: int
) -> None:
    """In a checkout of its own, whose README says other commands; without the folder of images that
    this suite may be given.
    """
    (tmp_path / "tests").mkdir()
    shutil.copy(readme.__file__, tmp_path / "tests")
    one, two = codes.split()
    block = (
        f"```bash\necho one >>ran; exit {one}    # first\necho two $ECRL_TEST_DATA >>ran; exit"
        f" {two}\n```\n\n```bash\necho three >>ran\n```\n"
    )
    (tmp_path / "README.md").write_text(f"# A title\n\n{block}")
    command = [sys.executable, "tests/readme.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "ECRL_TEST_DATA": "images"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code and (tmp_path / "ran").read_text().split() == ran
    assert done.stdout.count("README: ") == len(ran) and f"exit {code} after" in done.stdout
