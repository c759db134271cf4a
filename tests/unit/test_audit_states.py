"""`ecrl audit --state A B`: two saved states, value by value, whatever they were saved by; what holds code is refused and not executed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from ecrl_cli.audit.states import compare_states
from ecrl_cli.errors import ConfigError


def _state() -> dict[str, Any]:
    return {"model.w": torch.arange(6.0).reshape(2, 3), "model.b": torch.tensor([0.0, float("nan")]), "step": torch.tensor(3)}


def _to_dcp(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, checkpoint_id=str(path), no_dist=True)


SAVERS: dict[str, Callable[[dict[str, Any], Path], Any]] = {".pt": torch.save, ".safetensors": save_file, "": _to_dcp}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("one", SAVERS)
@pytest.mark.parametrize("other", SAVERS)
def test_equal_states_are_equal_whatever_they_were_saved_by(tmp_path: Path, one: str, other: str) -> None:
    """And one bit apart they are not: the sign of a zero, which compares equal."""
    changed = _state()
    changed["model.b"][0] = -0.0
    left, right, wrong = tmp_path / f"left{one}", tmp_path / f"right{other}", tmp_path / f"wrong{other}"
    SAVERS[one](_state(), left)
    SAVERS[other](_state(), right)
    SAVERS[other](changed, wrong)
    assert compare_states(left, right) == (["equal: 3 values, bit for bit"], True)
    lines, equal = compare_states(left, wrong)
    assert not equal and lines[0] == "different: 1 of 3 values" and lines[1].startswith("model.b: 1 of 2 elements differ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.tensor(3, dtype=torch.int32), "step: torch.int64 () and torch.int32 ()"),
        (torch.tensor([3]), "step: torch.int64 () and torch.int64 (1,)"),
        (3, "step: tensor(3) and 3"),
        (torch.tensor(5), "step: 1 of 1 elements differ, by at most 2"),
    ],
)
def test_a_value_of_another_kind_is_told(tmp_path: Path, value: Any, said: str) -> None:
    torch.save(_state(), tmp_path / "a.pt")
    torch.save(_state() | {"step": value, "more": [1]}, tmp_path / "b.pt")
    lines, equal = compare_states(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not equal and lines == ["different: 2 of 4 values", f"only in {tmp_path / 'b.pt'}: more[0]", said]


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["ECRL_TEST_MARK"],)


def test_code_in_a_state_is_named_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECRL_TEST_MARK", str(tmp_path / "mark"))
    torch.save({"x": _Code()}, tmp_path / "a.pt")
    with pytest.raises(ConfigError) as raised:
        compare_states(tmp_path / "a.pt", tmp_path / "a.pt")
    line = raised.value.line()
    assert "it needs posix.mkdir, which is code" in line and "trust" not in line and not (tmp_path / "mark").exists()
