"""What the recorder says of the state before and behind an update, and of optimizers that come and
go.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ecrl import digests
from ecrl_cli.audit.components import differing, in_words
from tests.unit.audit_recordings import process, record_loops


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_loops("tests.unit.audit_instants", tmp_path_factory.mktemp("instants"))


def test_what_the_job_writes_between_two_updates_is_seen_also_through_data(recorded: Path) -> None:
    steps = process(recorded, "clipped_behind_the_counters").steps
    (name,) = steps[0].optimizers
    behind, before = (
        [getattr(step, when)[name].params for step in steps]
        for when in ("optimizers", "optimizers_before")
    )
    # each update, and each clipping after it, changes them
    assert len({*behind, *before}) == 2 * len(steps)


def rewritten(recorded: Path, loop: str) -> list[int]:
    """The steps before which the parameters are others than behind the step before."""
    steps = process(recorded, loop).steps
    (name,) = steps[0].optimizers
    return [
        later.number
        for earlier, later in itertools.pairwise(steps)
        if later.optimizers_before[name].params != earlier.optimizers[name].params
    ]


def test_what_is_written_through_data_now_and_then_is_seen(recorded: Path) -> None:
    assert rewritten(recorded, "averaged_now_and_then") == [5, 9]


def test_a_single_element_that_is_written_through_data_is_seen_at_the_next_check(
    recorded: Path,
) -> None:
    assert rewritten(recorded, "one_element_behind_the_counters") == [16, 17, 18]


def test_a_step_that_is_taken_back_is_none_of_the_training(recorded: Path) -> None:
    searched = process(recorded, "rate_is_searched")
    assert searched.taken_back == 3 and [step.number for step in searched.steps] == [1, 2, 3, 4]
    assert (
        searched.start is not None
        and searched.steps[0].optimizers_before == searched.start["optimizers"]
    )


def test_a_model_that_begins_as_the_one_before_takes_no_step_back(recorded: Path) -> None:
    """Folds from one seed: the second has the parameters that the first began with."""
    done = process(recorded, "folds")
    assert done.taken_back == 0 and [step.number for step in done.steps] == [1, 2, 3, 4, 5, 6]
    first, second = done.steps[0], done.steps[3]
    assert (
        first.optimizers == second.optimizers
        and first.optimizers_before == second.optimizers_before
    )


def test_an_optimizer_is_on_record_before_it_steps(recorded: Path) -> None:
    steps = process(recorded, "late_optimizer").steps
    names = list(steps[0].optimizers)
    assert [in_words(name) for name in names] == ["AdamW of 2 tensors", "SGD of 2 tensors"]
    assert all(list(step.optimizers) == list(step.optimizers_before) == names for step in steps)
    assert [step.who for step in steps] == [
        (names[0],),
        (names[0],),
        (names[0],),
        (names[1],),
        (names[0],),
        (names[1],),
    ]
    assert (
        steps[0].optimizers[names[1]]
        == steps[2].optimizers_before[names[1]]
        != steps[3].optimizers[names[1]]
    )


def test_the_inputs_of_a_job_without_a_loader_are_those_that_enter_its_model(
    recorded: Path,
) -> None:
    steps = process(recorded, "evaluated_with_gradients").steps
    assert [len(step.entered) for step in steps] == [1, 1, 2, 1] and len(
        {step.entered[-1] for step in steps}
    ) == 4
    # a restarted process does not evaluate once more
    once = replace(steps[2], entered=steps[2].entered[-1:])
    assert differing(once, steps[2]) == ()
    assert differing(replace(once, entered=steps[1].entered), steps[2]) == ("model input",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.complex(torch.arange(3.0), torch.ones(3)).conj(),
        # a view with the sign still to come
        lambda: torch.complex(torch.arange(3.0), torch.ones(3)).conj().imag,
        lambda: torch.arange(4.0)[::2][1:],
        lambda: torch.arange(4, dtype=torch.int16)[::2][1:],
    ],
    ids=["conjugated", "negated", "one element of a stride", "one short element of a stride"],
)
def test_a_tensor_is_digested_by_its_values_whatever_view_it_is(
    make: Callable[[], torch.Tensor],
) -> None:
    value = make()
    plain = torch.tensor(value.tolist(), dtype=value.dtype)
    assert (
        digests.of_named([("x", value)])
        == digests.of_named([("x", plain)])
        != digests.of_named([("x", -plain)])
    )


class _Quantized(torch.Tensor):
    """Values as codes and a scale, as 8-bit optimizers keep them: nothing can be done to it but
    what the class knows, and of viewing as bytes it knows nothing.
    """

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> _Quantized:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scale = codes, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        raise NotImplementedError(func)


def test_a_tensor_of_a_class_of_its_own_is_digested_by_the_tensors_that_it_wraps() -> None:
    def digest(codes: list[int], scale: float) -> str:
        value = _Quantized(torch.tensor(codes, dtype=torch.uint8), torch.tensor([scale]))
        return digests.of_named([("x", value)])

    assert digest([1, 2], 0.5) == digest([1, 2], 0.5)
    assert len({digest([1, 2], 0.5), digest([1, 3], 0.5), digest([1, 2], 0.25)}) == 3
