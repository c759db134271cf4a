"""The compat study: the golden files are what the format says and what the loader reads; each gate
can fail.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format import manifest
from ecrl_cli.checkpoint.format.names import FORMAT_VERSION
from ecrl_cli.checkpoint.store import integrity
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.config.studies import Compat
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies import compat
from ecrl_cli.studies.frame.study import StudyContext
from ecrl_cli.studies.golden.make import EXPECTED, LAYOUTS
from ecrl_cli.studies.golden.make import make as make_golden
from tests.studies import concluded, failed, tried

MOST_BYTES = 100_000


@pytest.fixture
def setting(tmp_path: Path) -> StudyContext:
    (tmp_path / "scratch").mkdir()
    return StudyContext(StudyConfig(Compat()), tmp_path / "scratch")


def gates(
    setting: StudyContext, choose: Callable[[str], bool] = lambda key: True
) -> dict[str, str]:
    """The gates that fail, with their messages, of a study of the trials whose key is chosen."""
    study = compat.STUDY.open(setting)
    records = tried(study, (trial for trial in study.plan() if choose(trial.key)))
    assert not list(setting.scratch.iterdir())
    return failed(concluded(compat.STUDY, setting.keys, records))


def golden_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the golden files that the study reads instead; gives the current version's
    folder.
    """
    shutil.copytree(compat.GOLDEN, folder / "golden", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compat, "GOLDEN", folder / "golden")
    return folder / "golden" / f"v{FORMAT_VERSION}"


def test_what_is_released_is_read_and_what_is_not_is_refused(setting: StudyContext) -> None:
    assert gates(setting) == {}


def test_there_is_a_golden_checkpoint_of_every_version_and_they_are_small() -> None:
    assert sorted(path.name for path in compat.GOLDEN.glob("v*")) == [
        f"v{version}" for version in range(1, FORMAT_VERSION + 1)
    ]
    for folder in compat.GOLDEN.glob("v*"):
        assert sorted(path.name for path in folder.iterdir()) == sorted([*LAYOUTS, EXPECTED])
    assert (
        sum(
            path.stat().st_size
            for path in compat.GOLDEN.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        < MOST_BYTES
    )


def test_the_writer_of_today_still_writes_the_golden_bytes(tmp_path: Path) -> None:
    """But for the file that torch packs: its zip is torch's own, and compared by content."""
    make_golden(tmp_path)
    old = compat.GOLDEN / f"v{FORMAT_VERSION}"
    names = sorted(
        path.relative_to(old)
        for layout in ("group", "single")
        for path in (old / layout).rglob("*")
        if path.is_file()
    )
    assert len(names) == 8
    for name in names:
        assert (tmp_path / name).read_bytes() == (old / name).read_bytes(), name
    expected, made = (json.loads((folder / EXPECTED).read_text()) for folder in (old, tmp_path))
    assert (made["tensors"], made["train"]) == (expected["tensors"], expected["train"])


def test_a_tensor_that_reads_differently_fails_the_gate(
    setting: StudyContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = golden_at(tmp_path, monkeypatch) / EXPECTED
    expected = json.loads(path.read_text())
    expected["tensors"]["parameters.bfloat16"][2] = "0" * 64
    path.write_text(json.dumps(expected))
    # the second because nothing was tried
    assert set(gates(setting, lambda key: key.startswith("golden"))) == {"golden", "refused"}


def test_a_golden_file_that_is_damaged_fails_the_gate(
    setting: StudyContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (golden_at(tmp_path, monkeypatch) / "single" / "step_00000007.safetensors").write_bytes(b"x")
    assert (
        f"golden/v{FORMAT_VERSION}/single"
        in gates(setting, lambda key: key.startswith("golden"))["golden"]
    )


@pytest.mark.parametrize(
    ("name", "replacement", "key"),
    [
        ("READABLE", (1, 2, 3), "the_next_version"),
        ("_decoded", lambda kind, value: _lenient(kind, value), "unknown_key_in_MANIFEST"),
    ],
)
def test_a_reader_that_is_not_strict_fails_the_gate(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch, name: str, replacement: Any, key: str
) -> None:
    monkeypatch.setattr(manifest, name, replacement)
    assert "refused" in gates(setting, lambda each: each == f"refused/group/{key}")


def _lenient(kind: Any, value: dict[str, Any]) -> Any:
    from ecrl_cli.config.codec import decode

    return decode(kind, {name: item for name, item in value.items() if name != "colour"})


def test_a_reader_that_opens_parts_before_the_version_is_known_fails_the_gate(
    setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = integrity._Reader.take_manifest

    def hasty(self: Any, data: bytes) -> None:
        self.small("model.safetensors", 10_000)
        take(self, data)

    monkeypatch.setattr(integrity._Reader, "take_manifest", hasty)
    assert "refused" in gates(setting, lambda key: key == "refused/group/the_next_version")


def test_the_study_copies_what_an_installer_may_have_linked(
    tmp_path: Path, setting: StudyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package manager that links files from its cache gives them two names, which the integrity
    check refuses.
    """
    folder = golden_at(tmp_path, monkeypatch) / "group" / "step_00000007"
    (tmp_path / "second").hardlink_to(folder / "model.safetensors")
    assert not verify_checkpoint(folder).ok
    assert "golden" not in gates(setting, lambda key: key == f"golden/v{FORMAT_VERSION}/group")
