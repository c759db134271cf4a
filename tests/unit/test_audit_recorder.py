"""The recorder follows training loops that are hard to follow: which batch a step consumed, and
what is one step.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

import ecrl
from ecrl import digests, faults, recording, steps
from ecrl.faults import Faults, PlannedFailure
from ecrl.recording import Recording
from ecrl.saves import FollowedRename
from ecrl.steps import StepRecorder, as_number
from ecrl_cli.audit.audit import judge_folder
from ecrl_cli.audit.lineage import path_of
from ecrl_cli.audit.records import Arm, read_arm
from ecrl_cli.audit.verdict import render
from ecrl_cli.config import audit
from tests.unit.audit_recordings import process, record_loops, write

HERE = Path(__file__).parents[2]
PAIRS = [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_loops("tests.unit.audit_traps", tmp_path_factory.mktemp("traps"))


@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        ("plain", PAIRS),
        ("one_batch_ahead", PAIRS),
        ("skipped_batches", PAIRS[2:]),
        ("validation_between", PAIRS),
        ("measured_on_meta", PAIRS),
        ("estimated_with_fake_tensors", PAIRS),
        ("accumulation", [("0", "1", "2", "3"), ("4", "5", "6", "7")]),
        ("two_optimizers", PAIRS),
        ("optimizer_in_backward", PAIRS),
        ("step_calls_step", PAIRS),
        ("loss_inside_the_step", PAIRS),
        ("dummy_step", PAIRS),
        ("workers", PAIRS),
        ("odd_batches", [("0",), ("1",)]),
        ("zero_redundancy", PAIRS),
        ("wrapped_iterators", PAIRS),
        ("dcp", PAIRS),
        ("graph_is_let_go", PAIRS),
    ],
)
def test_each_step_has_the_samples_that_it_consumed(
    recorded: Path, loop: str, samples: list[tuple[str, ...]]
) -> None:
    steps = process(recorded, loop).steps
    assert [step.samples for step in steps] == samples
    assert [step.number for step in steps] == list(range(1, len(samples) + 1))
    assert all(step.by_id and step.losses and step.digests["params"] for step in steps)


def test_each_step_has_the_buffers_behind_it(recorded: Path) -> None:
    """BatchNorm's running statistics change in every forward pass."""
    found = process(recorded, "adapted/fresh")
    assert len({step.digests["buffers"] for step in found.steps}) == len(found.steps) == 4


def test_what_cannot_be_referred_to_weakly_is_watched_all_the_same(tmp_path: Path) -> None:
    class Slotted:
        __slots__ = ("param_groups",)

    thing, found = Slotted(), Recording(str(tmp_path))
    thing.param_groups = []  # type: ignore[attr-defined]
    found.watch(None, None, {"mine": thing})
    assert found.watched() == {"mine": thing}


def test_a_model_that_the_job_has_let_go_of_is_watched_no_more(tmp_path: Path) -> None:
    found = Recording(str(tmp_path))
    kept = torch.nn.Linear(1, 1)
    found.watch(kept, None, {"ema": torch.nn.Linear(1, 1)})
    assert found.watched() == {"model": kept}


def test_nothing_is_kept_alive_behind_the_jobs_end(recorded: Path) -> None:
    """The loop itself asserts it, with and without names that the job told; here: that it was
    recorded to its end.
    """
    found = process(recorded, "models_are_let_go")
    assert [step.samples for step in found.steps] == [*PAIRS, *PAIRS]


def test_an_optimizer_that_the_job_has_let_go_of_is_no_part_of_the_state(recorded: Path) -> None:
    """Else a restart after its phase would never be found equal: it has only the optimizer of its
    own phase.
    """
    whole, resumed = (
        process(recorded, "optimizer_made_anew/whole"),
        process(recorded, "optimizer_made_anew/resumed"),
    )
    assert (len(whole.steps), len(resumed.steps)) == (4, 3)
    assert [step.digests for step in whole.steps[1:]] == [step.digests for step in resumed.steps]


def test_a_step_that_the_scaler_left_out_is_no_step(recorded: Path) -> None:
    """Its samples are on no step's account: a restart after it begins with the batches of the next
    step. The scale says why.
    """
    found = process(recorded, "overflow")
    assert [step.samples for step in found.steps] == [("0", "1"), ("4", "5"), ("6", "7")]
    assert (found.given, found.left_over) == (4, 0)
    lines = [
        json.loads(line)
        for line in (recorded / "overflow" / "attempt-00" / found.path).read_text().splitlines()
    ]
    assert [(line["after_step"], line["batches"]) for line in lines if line["type"] == "skip"] == [
        (1, [2])
    ]
    scales = [call["scale"] for call in found.calls if call["what"] == "GradScaler.update"]
    assert scales == [8.0, 4.0, 4.0, 4.0]


def test_a_step_that_a_fused_optimizer_leaves_out_changes_nothing(recorded: Path) -> None:
    """Its hook fires although the step is skipped inside the kernel: the digests say that nothing
    was updated, the scale why.
    """
    found = process(recorded, "fused_overflow")
    assert [step.samples for step in found.steps] == PAIRS
    digests = [step.digests["params"] for step in found.steps]
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert [step.scale for step in found.steps] == [8.0, 8.0, 4.0, 4.0]


def test_a_closure_that_calls_backward_again_is_one_step(recorded: Path) -> None:
    found = process(recorded, "closure")
    assert [step.number for step in found.steps] == [1, 2, 3, 4] and all(
        len(step.losses) > 1 for step in found.steps
    )


def test_dcp_is_followed_wherever_it_is_imported_from(recorded: Path) -> None:
    found = process(recorded, "dcp")
    folder = str(recorded / "dcp-dcp")
    assert [(save["path"], save["done"], save["after_step"]) for save in found.saves] == [
        (folder, False, 4),
        (folder, True, 4),
    ]
    assert [(load["path"], load["after_step"]) for load in found.loads] == [(folder, 4)]


def test_a_save_of_dcp_in_the_background_is_one_save_of_its_own_step(recorded: Path) -> None:
    found = process(recorded, "dcp_in_background")
    folder = str(recorded / "dcp_in_background-dcp")
    assert [(save["path"], save["done"], save["after_step"]) for save in found.saves] == [
        (folder, False, 2),
        (folder, True, 2),
    ]
    assert [step.number for step in found.steps] == [1, 2, 3, 4]


def test_what_another_thread_saves_is_of_no_known_step(recorded: Path) -> None:
    """Nobody can be held to it as the newest checkpoint, and its digests would be those of a later
    state.
    """
    found = process(recorded, "saved_by_a_thread")
    assert [(save["done"], save.get("overlapped"), save.get("params")) for save in found.saves] == [
        (False, True, None),
        (True, True, None),
    ]
    struck = Arm("struck", recorded, {0: [found], 1: [replace(found, attempt=1)]})
    assert path_of(struck).resumed[0].newest_saved is None


def test_a_job_that_catches_a_failed_step_is_followed_behind_it(recorded: Path) -> None:
    """The batch of a failed update is of the next step that succeeds; that of a loss that was never
    computed is of none.
    """
    steps = process(recorded, "failed_steps").steps
    assert [step.samples for step in steps] == [("0", "1"), ("2", "3", "4", "5"), ("0", "1")]


def test_a_job_that_catches_a_planned_failure_is_followed_behind_it(recorded: Path) -> None:
    steps = process(recorded, "planned_failure_caught").steps
    assert [step.samples for step in steps] == [("0", "1", "2", "3"), ("4", "5"), ("6", "7")]


def test_a_job_that_tells_of_steps_that_are_seen_too_is_judged_by_its_digests(
    recorded: Path,
) -> None:
    verdict = judge_folder(recorded / "told_and_seen", None, "auto")
    kept = {finding.promise for finding in verdict.findings if finding.status == "kept"}
    assert {
        "restored: parameters",
        "restored: optimizer",
        "same trajectory",
        "same end",
    } <= kept, render(verdict, "audit")
    lines = [
        json.loads(line)
        for line in (
            next((recorded / "told_and_seen" / "struck" / "attempt-01").glob("*.jsonl"))
            .read_text()
            .splitlines()
        )
    ]
    assert next(line["resumed_after"] for line in lines if line["type"] == "start") == 2


def test_an_accelerator_is_recorded_alike_whether_it_loads_or_not(recorded: Path) -> None:
    """Its model may be a part of what is trained: the buffers are those of the whole."""
    fresh, resumed = (process(recorded, f"adapted/{arm}") for arm in ("fresh", "resumed"))
    assert [step.digests["buffers"] for step in fresh.steps] == [
        step.digests["buffers"] for step in resumed.steps
    ]
    assert [load["path"] for load in resumed.loads] == ["out/step-1"] and fresh.loads == []
    assert [(save["path"], save["done"], save["after_step"]) for save in fresh.saves] == [
        ("out/step-5", True, 4)
    ]


def test_where_the_loss_is_computed_inside_the_step_the_start_is_recorded_behind_it(
    recorded: Path,
) -> None:
    """Else its generators would be those before the first dropout, which no step has."""
    found = process(recorded, "loss_inside_the_step")
    assert found.start is not None and found.start["rng"] == found.steps[0].digests["rng"]


def test_a_checkpoint_is_known_by_the_name_that_it_ends_with(recorded: Path) -> None:
    saves = process(recorded, "renamed").saves
    assert [
        Path(save["path"]).relative_to(recorded / "renamed" / "out").as_posix()
        for save in saves
        if save["done"]
    ] == [
        "new/model.part",
        "new/model.pt",
        "step-4/model.pt",
    ]
    assert {save["after_step"] for save in saves} == {4}


def test_an_epoch_whose_batches_all_came_is_over_though_nobody_asks_for_more(
    recorded: Path,
) -> None:
    """An epoch that is cut short is none that has ended."""
    assert process(recorded, "nothing_is_asked_for_after_the_last_batch").epochs == [4, 8]
    assert process(recorded, "plain").epochs == [4]


def test_each_step_of_an_optimizer_without_a_backward_pass_is_one(recorded: Path) -> None:
    steps = process(recorded, "gradients_from_elsewhere").steps
    assert [step.number for step in steps] == [1, 2, 3]
    assert len({step.digests["params"] for step in steps}) == 3


@pytest.mark.parametrize(
    ("loop", "by"),
    [("dummy_step", ""), ("state_asked_for_before_the_first_step", "get_optimizer_state_dict")],
)
def test_who_makes_a_step_that_moves_nothing_is_on_record(
    recorded: Path, loop: str, by: str
) -> None:
    calls = [call for call in process(recorded, loop).calls if call["what"] == "Optimizer.step"]
    assert [(call["by"], call["after_step"]) for call in calls] == [(by, 0)]
    assert [call["hooks"] for call in calls] == [len(by) > 0]


def test_a_loader_that_needs_more_than_its_position_is_on_record(recorded: Path) -> None:
    told = {
        loop: {call["what"] for call in process(recorded, loop).calls}
        for loop in ("workers", "workers_that_persist")
    }
    assert "persistent_workers" in told["workers_that_persist"] - told["workers"]


def test_data_without_ids_are_told_apart_by_their_content(recorded: Path) -> None:
    steps = process(recorded, "no_ids").steps
    assert len(steps) == 4 and not any(step.by_id for step in steps)
    assert len({sample for step in steps for sample in step.samples}) == 8


def test_two_optimizers_are_one_step_with_the_state_behind_both(recorded: Path) -> None:
    ours, theirs = (
        process(recorded, loop).steps for loop in ("two_optimizers", "optimizer_in_backward")
    )
    assert next(step.losses for step in ours) == next(step.losses for step in theirs)
    assert len({step.digests["params"] for step in ours}) == 4


def test_what_is_recorded_is_what_the_schema_says(recorded: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed (extra dev)")
    schema = json.loads((HERE / "docs" / "recording.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    lines = [
        json.loads(line)
        for path in sorted(recorded.glob("*/attempt-*/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert {line["type"] for line in lines} >= {
        "process",
        "batch",
        "start",
        "step",
        "epoch",
        "save",
        "load",
        "call",
    }
    assert [error.message for line in lines for error in validator.iter_errors(line)] == []
    step = next(line for line in lines if line["type"] == "step")
    for wrong in (
        {"step": -1},
        {"losses": ["x"]},
        {"declared": 1},
        {"params": 3},
        {"batches": [0.5]},
        {"watched": []},
    ):
        assert not validator.is_valid(step | wrong), wrong


def test_the_recorder_is_written_in_python_3_9(tmp_path: Path) -> None:
    for path in sorted((HERE / "src" / "ecrl").rglob("*.py")):
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))
        assert not any(
            isinstance(node, ast.Match) for node in ast.walk(ast.parse(path.read_text()))
        )


@pytest.mark.parametrize(
    ("missing", "name"), [(["xxhash"], "blake3/v6"), (["xxhash", "blake3"], "blake2b_128/v6")]
)
def test_digests_are_taken_by_the_fastest_that_there_is(missing: list[str], name: str) -> None:
    code = (
        f"import sys; sys.modules |= dict.fromkeys({missing}); from ecrl import digests;"
        " print(digests.NAME, digests.of_named([('a', 1)]) != '')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [name, "True"]


def test_a_rename_that_a_class_keeps_is_no_method(tmp_path: Path) -> None:
    """pathlib of Python 3.9 keeps os.replace as an attribute of a class."""

    class Accessor:
        replace = FollowedRename(os.replace)

    (tmp_path / "new").write_text("x")
    Accessor().replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "x" and Accessor.replace.__name__ == "replace"


def test_a_digest_is_of_every_byte_however_many_cores_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tensors below a piece, of exactly one, of several with a rest, and more than a batch of
    them.
    """
    for name, value in (("PIECE", 64), ("BATCH", 256), ("WORTH_THREADS", 128)):
        monkeypatch.setattr(digests, name, value)
    state = [
        (str(size), torch.arange(size, dtype=torch.uint8)) for size in (0, 5, 64, 65, 130, 640, 7)
    ]

    def taken(cores: int) -> str:
        monkeypatch.setattr(digests, "_cores", lambda: cores)
        return digests.of_named(state)

    before = taken(1)
    assert {taken(cores) for cores in (2, 3, 8)} == {before}
    seen = {before}
    for _, tensor in state:
        for place in range(tensor.numel()):
            tensor[place] ^= 1
            seen.add(taken(2))
            tensor[place] ^= 1
    assert len(seen) == 1 + sum(tensor.numel() for _, tensor in state)
    assert taken(2) == before and digests.of_named(state[::-1]) != before


def test_the_cores_of_a_machine_are_shared_among_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    for ranks, cores in (("", 4), ("1", 4), ("2", 3), ("4", 1), ("64", 1), ("many", 4)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert digests._cores() == cores


def test_a_generator_is_told_apart_by_each_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its state is read: where it lies in memory, or, in an interpreter that keeps it
    elsewhere, from what is handed out.
    """
    draws = {"rng": torch.rand, "rng_python": random.random, "rng_numpy": numpy.random.rand}
    before = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())
    for implementation in (sys.implementation.name, "another"):
        monkeypatch.setattr(digests, "_python_state", None)
        monkeypatch.setattr(digests, "_numpy_state", None)
        monkeypatch.setattr(sys.implementation, "name", implementation)
        first = known = digests.generators()
        for name, draw in draws.items():
            draw(1) if name == "rng" else draw()
            now = digests.generators()
            assert [key for key in now if now[key] != known[key]] == [name]
            known = now
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])
        assert digests.generators() == first


class _Batch:
    """As many collate functions make them: no repr of its own."""

    def __init__(self, values: torch.Tensor, names: set[str]) -> None:
        self.values, self.names = values, names


@dataclass
class _DataclassBatch:
    values: torch.Tensor


def _alike_and_other(make: Callable[[torch.Tensor], Any]) -> tuple[bool, bool]:
    """Whether two equal values have one digest, and one that differs in an element which a repr
    leaves out has another.
    """
    changed = torch.arange(5000.0)
    changed[2500] += 1
    one, again, other = (
        digests.of_named(digests.tensors_in(make(values)))
        for values in (torch.arange(5000.0), torch.arange(5000.0), changed)
    )
    return one == again, one != other


@pytest.mark.parametrize(
    "make",
    [
        lambda values: _Batch(values, {"b", "a"}),
        lambda values: [_DataclassBatch(values)],
        lambda values: {"x": values.numpy()},
        lambda values: (values, "text"),
    ],
    ids=["object", "dataclass", "numpy array", "tuple"],
)
def test_a_batch_is_told_by_its_content_whatever_holds_it(
    make: Callable[[torch.Tensor], Any],
) -> None:
    assert _alike_and_other(make) == (True, True)


def test_tensors_inside_a_list_of_the_optimizers_state_are_digested() -> None:
    """LBFGS keeps its directions so."""

    def taken(values: torch.Tensor) -> str:
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = SimpleNamespace(
            param_groups=[{"params": [parameter]}], state={parameter: {"old_dirs": [values]}}
        )
        return digests.optimizer_state([optimizer])[0]

    changed = torch.arange(5000.0)
    changed[2500] += 1e-3
    assert taken(torch.arange(5000.0)) == taken(torch.arange(5000.0)) != taken(changed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_loss_is_recorded_as_it_is(dtype: torch.dtype) -> None:
    """To the last bit, of whatever precision."""
    for bits in range(1, 2000, 7):
        loss = (torch.tensor(1.0, dtype=torch.float64) / bits).to(dtype)
        assert torch.tensor(json.loads(recording._encode(as_number(loss))), dtype=dtype) == loss
    assert as_number(torch.ones(2)) is None and as_number(0.5) == 0.5


def test_a_line_is_that_of_json_dumps() -> None:
    line = {
        "type": "step",
        "losses": [0.1, 1e-300, float("nan"), float("inf"), None],
        "text": '\x1b\ud800ä\n"',
        "path": Path("a"),
        "n": [2**60, True, ()],
    }
    assert recording._encode(line) == json.dumps(line, separators=(",", ":"), default=str)


def test_a_setting_is_told_apart_however_it_is_changed() -> None:
    parameter, seen = torch.nn.Parameter(torch.ones(2)), []
    group: dict[str, Any] = {"params": [parameter], "lr": 0.1, "betas": [0.9, 0.99]}
    optimizer = SimpleNamespace(param_groups=[group])
    seen.append(digests.settings([optimizer]))
    assert digests.settings([optimizer]) == seen[0]
    group["betas"][0] = 0.8  # in place
    seen.append(digests.settings([optimizer]))
    group |= {"betas": (0.8, 0.99), "lr": torch.tensor(1.0)}
    seen.append(digests.settings([optimizer]))
    group["lr"].fill_(2.0)
    seen.append(digests.settings([optimizer]))
    for lr in (1.0, True):
        group["lr"] = lr
        seen.append(digests.settings([optimizer]))
    assert len(set(seen)) == len(seen)


def test_data_whose_gradient_is_asked_for_enter_the_model_and_parameters_do_not() -> None:
    """Points at which an equation is to hold; logits on their way into a loss are no input."""
    points = torch.ones(2, requires_grad=True)
    assert digests.entering((points,), {}) == digests.entering((points.detach(),), {})
    assert digests.entering((points,), {}) != digests.entering((points.detach() * 2,), {})
    for other in (torch.nn.Parameter(torch.ones(2)), points * 2):
        assert digests.entering((other,), {}) is None


def test_a_setting_is_the_same_whatever_file_it_came_through() -> None:
    """JSON has lists for tuples, YAML 1 for 1.0, numpy scalars of its own."""
    seen = set()
    for betas, decay in (((0.5, 1.0), 0.0), ([0.5, 1], 0), ((numpy.float64(0.5), 1.0), 0)):
        group = {"params": [torch.nn.Parameter(torch.ones(2))], "betas": betas, "decay": decay}
        seen.add(digests.settings([SimpleNamespace(param_groups=[group])]))
    assert len(seen) == 1


def test_settings_are_read_once_before_an_update_and_once_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ECRL_RECORD", str(tmp_path))
    read = digests.settings
    counted: list[int] = []

    def counting(optimizers: Any) -> str:
        counted.append(follower.steps)
        return read(optimizers)

    monkeypatch.setattr(digests, "settings", counting)
    follower = StepRecorder(Recording(str(tmp_path)))
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    follower.constructed(optimizer)
    for _ in range(3):
        follower.backward_begins(None)
        follower.backward_ends()
        follower.before_step(optimizer)
        follower.after_step(optimizer)
    assert counted == [0, 1, 1, 2, 2, 3]


def test_a_session_digests_what_the_job_watches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A moving average that did not come back is told by its name."""
    model, average = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def record(arm: str, forgotten: bool) -> None:
        monkeypatch.setenv("ECRL_RECORD", str(tmp_path / arm))
        session = ecrl.session()
        session.watch(model=model, ema=average)
        for step in (1, 2):
            with torch.no_grad():
                average.weight.fill_(0.0 if forgotten and step == 2 else float(step))
            session.step(step, loss=0.5, samples=[step])

    for arm in ("ref", "ref2"):
        record(arm, False)
    record("struck", True)
    verdict = judge_folder(tmp_path, None, "auto")
    assert (
        verdict.diagnosis
        == "differs from step 2 on, first in watched: what the job watches by name was not"
        " restored: ema"
    )
    assert verdict.arms[0].path.steps[1][0][1].digests.keys() >= {"params", "watched"}


def test_a_step_that_the_job_tells_of_has_the_number_of_the_whole_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The recorder's own count begins anew with each attempt: attempt 1 went on after step 8, and
    what it calls step 2 is step 10.
    """

    def state(params: str, optimizer: str) -> dict[str, dict[str, str]]:
        return {"SGD[2]": {"params": params, "optimizer": optimizer}}

    told = {"type": "step", "declared": True, "step": 10, "objects": state("aa", "bb")}
    seen = {"type": "step", "step": 4, "objects": state("cc", "dd")}
    start = {"type": "start", "resumed_after": 8, "objects": state("xx", "yy")}
    write(tmp_path, 1, 0, [start, told, seen])
    monkeypatch.setenv("ECRL_ATTEMPT", "2")
    assert [
        Faults(Recording(str(tmp_path)), []).resumed_after(state(*parts))
        for parts in (("aa", "bb"), ("cc", "dd"))
    ] == [10, 12]


def test_without_a_folder_a_session_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ECRL_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    session = ecrl.session()
    session.step(1, loss=0.5, samples=[1, 2])
    session.saved("x")
    assert not session.active and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seen", "first"), [(False, 1), (False, 6), (True, 1)])
def test_a_failure_is_due_at_a_step_that_the_job_tells_of_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: bool, first: int
) -> None:
    """Where no hook sees its steps; the step is not on record then. Files are counted by the steps
    of this attempt.
    """
    monkeypatch.setenv("ECRL_RECORD", str(tmp_path / "arm"))
    entry = {"index": 0, "kind": "raise", "moment": "before", "step": 8, "rank": 0}
    monkeypatch.setenv(faults.PLAN, json.dumps([entry]))
    session, follower = ecrl.session(), steps.recorder()
    assert follower is not None
    follower.recording.seen = seen
    with nullcontext() if seen else pytest.raises(RuntimeError, match="planned"):
        for step in range(first, 11):
            session.step(step, loss=0.5)
    (only,) = read_arm(tmp_path / "arm").processes
    assert only.steps[-1].number == (10 if seen else 7)
    assert follower.steps == (0 if seen else 8 - first)


def test_a_session_writes_what_a_judge_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ECRL_RECORD", str(tmp_path / "arm"))
    session = ecrl.session()
    session.step(1, loss=0.5, samples=[1, 2], params="aa")
    session.saved("last.pt")
    (only,) = read_arm(tmp_path / "arm").processes
    assert [(step.number, step.declared, step.samples, step.losses) for step in only.steps] == [
        (1, True, ("1", "2"), (0.5,))
    ]
    assert only.saves[0]["path"] == "last.pt"
    assert only.steps[0].seconds == 0.0  # how long the first one took nobody knows
    session.step(2)
    (only,) = read_arm(tmp_path / "arm").processes
    assert only.steps[1].seconds > 0.0


def test_a_batch_is_written_with_the_step_that_consumes_it_or_a_second_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One write for each step; a job that only reads data must not look as if it hung."""
    record = Recording(str(tmp_path))

    def written() -> list[str]:
        return [
            json.loads(line)["type"]
            for path in tmp_path.rglob("*.jsonl")
            for line in path.read_text().splitlines()
        ]

    record.write("step", step=1)
    record.write("batch", n=1)
    assert written() == ["process", "step"]
    record.write("step", step=2)
    assert written() == ["process", "step", "batch", "step"]
    record.write("batch", n=2)
    monkeypatch.setattr(recording, "_HELD_S", -1.0)
    record.write("batch", n=3)
    assert written()[4:] == ["batch", "batch"]


def test_a_line_that_another_thread_writes_meanwhile_is_on_record_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Checkpoints are written by threads, and told of while the training thread tells of a step."""
    record, writes = Recording(str(tmp_path)), os.write
    record.write("step", step=1)
    saver = threading.Thread(target=lambda: record.write("save", done=True))

    def interrupted(descriptor: int, data: bytes) -> int:
        if saver.ident is None:
            saver.start()
            saver.join(0.2)  # it ends at once, unless it waits for its turn
        return writes(descriptor, data)

    monkeypatch.setattr(os, "write", interrupted)
    record.write("batch", n=1)
    record.write("step", step=2)
    saver.join()
    (path,) = tmp_path.rglob("*.jsonl")
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert kinds == ["process", "step", "batch", "step", "save"]


def test_a_folder_that_cannot_be_written_stops_the_record_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ECRL_RECORD", str(tmp_path / "file"))
    session = ecrl.session()
    session.step(1)
    session.step(2)
    assert capsys.readouterr().err.count("this process is no longer recorded") == 1


def test_a_failure_whose_attempt_ended_before_it_strikes_the_next_attempt_and_none_strikes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that restarts the job may lose an attempt to something else."""
    planned = [
        {"index": n, "attempt": n, "kind": "raise", "rank": 0, "step": 3, "moment": "before"}
        for n in (0, 1)
    ]
    monkeypatch.setenv("ECRL_STRIKES", json.dumps(planned))

    def attempt(number: int) -> Faults:
        monkeypatch.setenv("ECRL_ATTEMPT", str(number))
        return Faults.from_environment(Recording(str(tmp_path)))

    with pytest.raises(PlannedFailure):
        attempt(0).before_step(3)
    attempt(1).before_step(2)  # and the attempt ends
    with pytest.raises(PlannedFailure):
        attempt(2).before_step(3)
    attempt(3).before_step(3)
    struck = [
        json.loads(line)["index"]
        for path in sorted(tmp_path.rglob("*.jsonl"))
        for line in path.read_text().splitlines()
        if '"strike"' in line
    ]
    assert struck == [0, 1]


def test_the_recorder_knows_the_kinds_and_moments_that_an_audit_can_plan() -> None:
    """Both lists are written down twice: the package `ecrl` runs in jobs that have nothing of ours
    installed.
    """
    assert ("none", *faults.ACTS) == audit.KINDS
    assert faults.MOMENTS == audit.MOMENTS


def test_a_model_without_buffers_has_no_digest_of_them() -> None:
    plain, normed = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)
    assert digests.buffers([plain]) == "" != digests.buffers([plain, normed])
