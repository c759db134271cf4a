"""Runs on record that several files judge: as they are, or a copy to be spoilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.runs.sentence import Judged


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged.of(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def sweep(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the file's `recorded`."""
    return Path(shutil.copytree(recorded, tmp_path / "sweep", symlinks=True))
