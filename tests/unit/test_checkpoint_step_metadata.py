"""The metadata of a step that another checkpointer wrote: read as it was written, and refused, with
what is wrong, if it is anything else.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.image import TensorSpec
from ecrl_cli.checkpoint.format.names import STEP_METADATA
from ecrl_cli.checkpoint.store import integrity
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.checkpoint.store.step_metadata import (
    StepMetadata,
    check_step,
    read_step_metadata,
    size_of,
    step_in,
    written,
)
from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import PosixFs
from tests.unit.test_checkpoint_train_state import Run

KIND = cast("CheckpointerKind", SimpleNamespace(name="mine", committed="state/done", state="state"))
TENSORS = (
    TensorSpec("parameters.a", "torch.float32", (2, 0)),
    TensorSpec("buffers.b", "torch.int64", ()),
)


@pytest.fixture(scope="module")
def train() -> dict[str, Any]:
    """A train.json of today."""
    run = Run()
    run.train(1)
    found: dict[str, Any] = parse(run.train_state.train_document(run.progress(), [""]))
    return found


@pytest.fixture
def step(tmp_path: Path, train: dict[str, Any]) -> Path:
    """The folder of a whole step."""
    folder = tmp_path / "step_00000012"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "done").write_bytes(b"123")
    (folder / "more").write_bytes(b"45")
    (folder / STEP_METADATA).write_bytes(
        StepMetadata("run", 3, 12, "mine", TENSORS, train).encoded()
    )
    return folder


def rewritten(step: Path, **changes: Any) -> None:
    (step / STEP_METADATA).write_bytes(
        canonical_json({**parse((step / STEP_METADATA).read_bytes()), **changes})
    )


def test_it_is_read_as_it_was_written(step: Path, train: dict[str, Any]) -> None:
    found = read_step_metadata(PosixFs(), step)
    assert (found.run_id, found.attempt, found.global_step, found.checkpointer, found.train) == (
        "run",
        3,
        12,
        "mine",
        train,
    )
    assert [(spec.name, spec.dtype, spec.shape) for spec in found.tensors] == [
        ("parameters.a", "torch.float32", (2, 0)),
        ("buffers.b", "torch.int64", ()),
    ]
    report = verify_checkpoint(step, IntegrityConfig(checkpointer=KIND, run_id="run"))
    assert (report.ok, report.global_step, report.attempt, report.run_id) == (True, 12, 3, "run")
    assert (
        report.commit_sha256 == found.sha256
        and parse(report.train) == train
        and report.manifest is None
    )
    assert [path.name for path in written(step)] == ["more", "done"] and size_of(step) == 5


NO_STEP, NO_NAMES, NO_TENSORS = (
    "is no metadata of a step",
    "names no run, attempt and step",
    "has no list of tensors",
)
SPEC = ["a", "torch.float32", [1]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 2}, NO_STEP),
        ({"schema_version": 0}, NO_STEP),
        ({"more": 1}, NO_STEP),
        ({"attempt": "3"}, NO_NAMES),
        ({"attempt": True}, NO_NAMES),
        ({"global_step": 12.0}, NO_NAMES),
        ({"global_step": None}, NO_NAMES),
        ({"run_id": 5}, NO_NAMES),
        ({"tensors": {}}, NO_TENSORS),
        ({"tensors": [SPEC, 5]}, NO_TENSORS),
        ({"tensors": [5, SPEC]}, NO_TENSORS),
        ({"tensors": [[*SPEC, 1]]}, NO_TENSORS),
        ({"tensors": [["a", "torch.complex128", [1]]]}, NO_TENSORS),
        ({"tensors": [["a", "torch.float32", [-1]]]}, NO_TENSORS),
        ({"tensors": [["a", "torch.float32", [True]]]}, NO_TENSORS),
        ({"tensors": [[5, "torch.float32", [1]]]}, NO_TENSORS),
    ],
)
def test_what_is_something_else_is_refused(step: Path, changes: dict[str, Any], words: str) -> None:
    rewritten(step, **changes)
    with pytest.raises(ValueError, match=words):
        read_step_metadata(PosixFs(), step)
    report = verify_checkpoint(step, IntegrityConfig(checkpointer=KIND))
    assert (report.ok, report.layer, report.commit_sha256) == (False, "commit", None)


def test_a_list_is_no_metadata_and_a_key_less_is_none(step: Path) -> None:
    whole = parse((step / STEP_METADATA).read_bytes())
    for other in ([whole], {key: value for key, value in whole.items() if key != "tensors"}):
        (step / STEP_METADATA).write_bytes(canonical_json(other))
        with pytest.raises(ValueError, match=NO_STEP):
            read_step_metadata(PosixFs(), step)


def test_a_step_is_of_its_name_of_its_checkpointer_and_whole(step: Path) -> None:
    found = read_step_metadata(PosixFs(), step)
    check_step(PosixFs(), step, 12, found, KIND)
    with pytest.raises(ValueError, match="says step 12 under the name of step 13"):
        check_step(PosixFs(), step, 13, found, KIND)
    with pytest.raises(ValueError, match="says that mine wrote it, the run saves with yours"):
        check_step(
            PosixFs(),
            step,
            12,
            found,
            cast("CheckpointerKind", SimpleNamespace(name="yours", committed="more")),
        )
    (step / "state" / "done").unlink()
    with pytest.raises(StorageError, match="ENOENT"):
        check_step(PosixFs(), step, 12, found, KIND)
    report = verify_checkpoint(step, IntegrityConfig(checkpointer=KIND))
    assert (report.layer, report.global_step, report.attempt, report.run_id) == (
        "parts",
        12,
        3,
        "run",
    )
    other = verify_checkpoint(step, IntegrityConfig(checkpointer=KIND, run_id="another"))
    assert (other.layer, other.reason) == ("commit", "belongs to run run")


@pytest.mark.parametrize(
    ("name", "number"),
    [("step_00000012", 12), ("step_00000012.pt", -1), ("step_12", -1), ("latest", -1)],
)
def test_the_step_stands_in_the_name_of_a_folder(name: str, number: int) -> None:
    assert step_in(Path(name)) == number


@pytest.mark.parametrize("trusted", [True, False])
def test_whose_files_are_trusted_is_the_callers_choice(
    step: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """Files of another user are read where the caller says so, and only there."""
    told: list[bool] = []

    def read(fs: Any, path: Path, *, trust_owner: bool = False) -> Any:
        told.append(trust_owner)
        return read_step_metadata(fs, path, trust_owner=True)

    monkeypatch.setattr(integrity, "read_step_metadata", read)
    assert integrity.examine_step(
        step, 12, IntegrityConfig(checkpointer=KIND, trust_owner=trusted), PosixFs()
    ).commit_sha256
    assert told == [trusted]
