"""The promise "same files": what a job leaves must be what the undisturbed runs agree in, and nothing that a healthy recovery changes is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ecrl_cli.audit.audit import judge_folder
from ecrl_cli.audit.components import Finding
from ecrl_cli.audit.files import write_inventory
from tests.unit.audit_recordings import healthy

Leave = Callable[[Path], Any]
ARMS = ("ref", "ref2", "struck")


def _judged(folder: Path, undisturbed: Leave, disturbed: Leave, other: Leave | None = None) -> Finding:
    """The finding about an arm that leaves what `disturbed` writes; `other`: what the second undisturbed run writes, if not the same."""
    healthy(folder)
    for arm, leave in zip(ARMS, (undisturbed, other or undisturbed, disturbed), strict=True):
        (folder / arm / "work").mkdir()
        leave(folder / arm / "work")
        write_inventory(folder / arm)
    verdict = judge_folder(folder, None, "auto")
    (finding,) = [finding for finding in verdict.findings if finding.promise == "same files"]
    assert (verdict.status == "invalid") == (finding.status == "broken")
    return finding


def _saves(**files: Any) -> Leave:
    def leave(folder: Path) -> None:
        for name, value in files.items():
            torch.save(value, folder / f"{name}.pt")

    return leave


def _state(step: int, best: float = 0.5) -> dict[str, Any]:
    return {"model": {"w": torch.full((3,), float(step)), "b": torch.zeros(1)}, "step": step, "best": best}


@pytest.mark.parametrize(
    ("disturbed", "said"),
    [
        (_saves(last=_state(20, 0.25), ema=torch.ones(3)), "last.pt: best is 0.25, in both undisturbed runs 0.5"),
        (_saves(last=_state(20), ema=torch.zeros(3)), "ema.pt: 1 of 1 tensor differs, first its only one"),
        (_saves(last=_state(20)), "ema.pt: missing, the undisturbed runs leave it"),
        (_saves(last={"step": 20, "best": 0.5}, ema=torch.ones(3)), "last.pt: 2 of 2 tensors differ, first model.w"),
    ],
)
def test_a_file_that_differs_is_named_with_its_key(tmp_path: Path, disturbed: Leave, said: str) -> None:
    finding = _judged(tmp_path, _saves(last=_state(20), ema=torch.ones(3)), disturbed)
    assert (finding.status, finding.message, finding.arm) == ("broken", said, "struck")


def test_files_saved_after_a_load_are_the_same(tmp_path: Path) -> None:
    def disturbed(folder: Path) -> None:
        torch.save(_state(20), folder / "last.pt")
        torch.save(torch.load(folder / "last.pt"), folder / "last.pt")

    finding = _judged(tmp_path, _saves(last=_state(20)), disturbed)
    assert (finding.status, finding.message) == ("kept", "1 file with 4 values are as in the undisturbed runs")


def test_without_an_inventory_it_is_not_checked(tmp_path: Path) -> None:
    healthy(tmp_path)
    (finding,) = [finding for finding in judge_folder(tmp_path, None, "auto").findings if finding.promise == "same files"]
    assert finding.status == "not checked"
