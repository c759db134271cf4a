"""Everything that a run leaves is for whom the umask lets: what its ranks, its writer and its
supervisor wrote; or for its owner alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from tests.e2e.runs import tiny
from tests.in_process import SharedLaunchers, ecrl_in_process
from tests.runs.builder import build_ref

ALWAYS_OWN = (".lock",)


@pytest.mark.parametrize(("private", "shut"), [("false", 0o027), ("true", 0o077)])
def test_a_run_is_readable_by_whom_it_should_be(tmp_path: Path, private: str, shut: int) -> None:
    # a zygote of its own: it takes the umask that it is started under
    before, launchers = os.umask(0o027), SharedLaunchers()
    try:
        ecrl_in_process(
            tmp_path,
            "train",
            *tiny("failure.steps=[9]", "checkpoint=overlapped"),
            f"private={private}",
            "run_dir=run",
            launchers=launchers,
        )
    finally:
        os.umask(before)
        launchers.end()
    found = {
        path: path.stat().st_mode & 0o777
        for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    }
    assert len(found) > 40
    other = {
        str(path): oct(mode)
        for path, mode in found.items()
        if not path.name.endswith(ALWAYS_OWN) and mode | 0o111 != 0o777 & ~shut | 0o111
    }
    assert not other


@pytest.mark.parametrize("words", [("verify",), ("report", "--no-verify")])
def test_what_judges_leaves_nothing_that_others_may_write(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = build_ref(tmp_path).root
    there = set(run.rglob("*"))
    before = os.umask(0)
    try:
        main([words[0], str(run), *words[1:]])
    finally:
        os.umask(before)
    made = set(run.rglob("*")) - there
    assert made and not [path for path in made if path.stat().st_mode & 0o022]
