"""`ecrl audit --state A B`: two saved states, value by value, whatever they were saved by; what
holds code is refused and not executed.
"""

from __future__ import annotations

import os
import pickle
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
    return {
        "model.w": torch.arange(6.0).reshape(2, 3),
        "model.b": torch.tensor([0.0, float("nan")]),
        "step": torch.tensor(3),
    }


def _to_dcp(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, checkpoint_id=str(path), no_dist=True)


SAVERS: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    ".pt": torch.save,
    ".safetensors": save_file,
    "": _to_dcp,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("one", SAVERS)
@pytest.mark.parametrize("other", SAVERS)
def test_equal_states_are_equal_whatever_they_were_saved_by(
    tmp_path: Path, one: str, other: str
) -> None:
    """And one bit apart they are not: the sign of a zero, which compares equal."""
    changed = _state()
    changed["model.b"][0] = -0.0
    left, right, wrong = (
        tmp_path / f"left{one}",
        tmp_path / f"right{other}",
        tmp_path / f"wrong{other}",
    )
    SAVERS[one](_state(), left)
    SAVERS[other](_state(), right)
    SAVERS[other](changed, wrong)
    assert compare_states(left, right) == (["equal: 3 values, bit for bit"], True)
    lines, equal = compare_states(left, wrong)
    assert (
        not equal
        and lines[0] == "different: 1 of 3 values"
        and lines[1].startswith("model.b: 1 of 2 elements differ")
    )


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
    assert not equal and lines == [
        "different: 2 of 4 values",
        f"only in {tmp_path / 'b.pt'}: more[0]",
        said,
    ]


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["ECRL_TEST_MARK"],)


def test_code_in_a_state_is_named_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECRL_TEST_MARK", str(tmp_path / "mark"))
    torch.save({"x": _Code()}, tmp_path / "a.pt")
    with pytest.raises(ConfigError) as raised:
        compare_states(tmp_path / "a.pt", tmp_path / "a.pt")
    line = raised.value.line()
    assert (
        "it needs posix.mkdir, which is code" in line
        and "trust" not in line
        and not (tmp_path / "mark").exists()
    )


def _nested() -> dict[str, Any]:
    return {
        "n": 3,
        "opt": {"state": {0: {"step": 1, "m": torch.ones(2)}}, "list": [1, torch.zeros(1)]},
        "none": {},
        "text": "a",
        "list": [],
    }


def _changed(value: dict[str, Any], path: tuple[Any, ...], new: Any) -> dict[str, Any]:
    *above, last = path
    inner: Any = value
    for part in above:
        inner = inner[part]
    inner[last] = new
    return value


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("one", ["", ".pt"])
@pytest.mark.parametrize(
    ("path", "new", "line"),
    [
        (("n",), 4, "n: 3 and 4"),
        (("text",), "b", "text: 'a' and 'b'"),
        (("opt", "list", 0), 2, "opt.list[0]: 1 and 2"),
        (("opt", "state", 0, "step"), 2, "opt.state.0.step: 1 and 2"),
        (
            ("opt", "state", 0, "m"),
            torch.zeros(2),
            "opt.state.0.m: 2 of 2 elements differ, by at most 1",
        ),
    ],
)
def test_every_entry_of_a_dcp_folder_is_compared(
    tmp_path: Path, one: str, path: tuple[Any, ...], new: Any, line: str
) -> None:
    """With another DCP folder and with a `.pt`: number keys that DCP made text and empty
    dictionaries that it dropped are no difference.
    """
    SAVERS[one](_nested(), tmp_path / f"a{one}")
    _to_dcp(_nested(), tmp_path / "b")
    _to_dcp(_changed(_nested(), path, new), tmp_path / "c")
    note = (
        ["note: DCP turns number keys into text and drops empty dictionaries: no difference"]
        if one
        else []
    )
    assert compare_states(tmp_path / f"a{one}", tmp_path / "b") == (
        ["equal: 7 values, bit for bit", *note],
        True,
    )
    assert compare_states(tmp_path / f"a{one}", tmp_path / "c") == (
        ["different: 1 of 7 values", line, *note],
        False,
    )


@pytest.mark.parametrize(
    ("left", "right", "line"),
    [({0: 1}, {"0": 1}, "only in {a}: 0"), ({"x": {}, "y": 1}, {"y": 1}, "only in {a}: x")],
)
def test_two_files_of_torch_save_have_no_such_excuse(
    tmp_path: Path, left: Any, right: Any, line: str
) -> None:
    torch.save(left, tmp_path / "a.pt")
    torch.save(right, tmp_path / "b.pt")
    lines, equal = compare_states(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not equal and line.format(a=tmp_path / "a.pt") in lines


def test_conjugated_and_negated_tensors_are_compared_by_what_they_are(tmp_path: Path) -> None:
    base = torch.tensor([1 + 2j, 3 - 1j])
    lazy = {"c": base.conj(), "n": base.clone().conj().imag, "one": base[:1].clone().conj().imag}
    assert lazy["c"].is_conj() and lazy["n"].is_neg()
    torch.save(lazy, tmp_path / "a.pt")
    torch.save(
        {name: value.resolve_conj().resolve_neg() for name, value in lazy.items()},
        tmp_path / "b.pt",
    )
    torch.save({"c": base, "n": base.imag.clone(), "one": base[:1].imag.clone()}, tmp_path / "c.pt")
    assert compare_states(tmp_path / "a.pt", tmp_path / "b.pt") == (
        ["equal: 3 values, bit for bit"],
        True,
    )
    said = [
        "c: 2 of 2 elements differ, by at most 4",
        "n: 2 of 2 elements differ, by at most 4",
        "one: 1 of 1 elements differ, by at most 4",
    ]
    assert compare_states(tmp_path / "a.pt", tmp_path / "c.pt") == (
        ["different: 3 of 3 values", *said],
        False,
    )


def test_what_is_missing_is_an_error(tmp_path: Path) -> None:
    torch.save(_state(), tmp_path / "a.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "gone.pt")
    for name in ("b.pt", "link.pt"):
        with pytest.raises(ConfigError, match="does not exist"):
            compare_states(tmp_path / "a.pt", tmp_path / name)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_code_in_a_dcp_folder_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its metadata, which is a pickle, and in a byte entry."""
    monkeypatch.setenv("ECRL_TEST_MARK", str(tmp_path / "mark"))
    _to_dcp({"n": 1, "x": _Code()}, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"it needs posix\.mkdir, which is code"):
        compare_states(tmp_path / "a", tmp_path / "a")
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(_Code()))
    with pytest.raises(ConfigError, match="metadata that is none of DCP"):
        compare_states(tmp_path / "a", tmp_path / "a")
    assert not (tmp_path / "mark").exists()
