"""What an evaluation measures, whatever the number of ranks, and that it leaves the training as it
was.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.config.schema import DatasetConfig, EvaluateConfig, RunConfig, TaskConfig
from ecrl_cli.data.datasets import build_dataset, held_out_of
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo, SampleSet
from ecrl_cli.errors import EcrlError
from ecrl_cli.records.evaluations import Evaluation
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.evaluation import Evaluator, undisturbed
from ecrl_cli.training.probe import check_measures

CLASSES, SAMPLES = 3, 50


class Threads:
    """An all-gather between threads that stand for ranks."""

    def __init__(self, ranks: int) -> None:
        self._barrier, self._rows = Barrier(ranks), cast("list[Any]", [None] * ranks)

    def of(self, rank: int) -> Any:
        outer = self

        class Group:
            def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
                outer._rows[rank] = own.clone()
                outer._barrier.wait(30)
                found = [row.clone() for row in outer._rows]
                outer._barrier.wait(30)
                return found

            def barrier(self) -> None:
                outer._barrier.wait(30)

        return Group()


def pictures(samples: int = SAMPLES, seed: int = 1) -> ArraySet:
    drawn = np.random.default_rng(seed)
    traits = DatasetInfo("made-up", CLASSES, (1, 4, 4), mean=(0.5,), std=(0.25,))
    return ArraySet(
        traits,
        drawn.integers(0, 256, (samples, 1, 4, 4), dtype=np.uint8),
        drawn.integers(0, CLASSES, samples),
    )


def model_of(rank: int) -> nn.Module:
    """The same parameters on every rank, running statistics of its own, a dropout, and a module
    that is frozen in evaluation mode.
    """
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )
    model[1].running_mean.add_(rank * 0.5)
    model[2].eval()
    return model


def evaluator(
    folder: Path, rank: int, ranks: int, peers: Any, held_out: SampleSet, config: RunConfig
) -> Evaluator:
    model = model_of(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sampler = ResumableGlobalBatchSampler(10, 5, 1)
    state = TrainState(
        model,
        optimizer,
        torch.optim.lr_scheduler.ConstantLR(optimizer),
        None,
        sampler,
        rank,
        ranks,
        peers,
    )
    layout = RunLayout(folder)
    clock = SpanClock(Journal(layout.attempt(0).spans(rank)), 0, 0.0, "compute")
    return Evaluator(
        config, layout, 0, held_out, state, nullcontext(), HeartbeatWriter(None, rank), clock
    )


def measured(folder: Path, ranks: int, held_out: SampleSet, **evaluate: int) -> Evaluation:
    """What `ranks` ranks put on record after step 4."""
    config = RunConfig(
        target_steps=8, evaluate=EvaluateConfig(**{"every": 4, "batch": 8, **evaluate})
    )
    threads = Threads(ranks)
    parts = [
        evaluator(folder, rank, ranks, threads.of(rank), held_out, config) for rank in range(ranks)
    ]
    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(lambda part: part.evaluate(4), parts))
    (line,) = read_journal(RunLayout(folder).attempt(0).evaluations, Evaluation).events
    return line


def test_any_number_of_ranks_measures_the_same_bits(tmp_path: Path) -> None:
    """50 samples in batches of 8: seven batches, the last short, which 2, 3 and 9 ranks share
    unequally. Rank 0's running statistics count.
    """
    alone = measured(tmp_path / "1", 1, pictures())
    assert (
        alone.samples == SAMPLES
        and 0 < alone.measures["accuracy"] < 1
        and alone.measures["loss"] > 0
    )
    for ranks in (2, 3, 9):
        assert measured(tmp_path / str(ranks), ranks, pictures()).measures == alone.measures


def test_the_mean_is_over_samples_not_batches(tmp_path: Path) -> None:
    """By hand: every sample on its own, in evaluation mode."""
    data, model = pictures(), model_of(0).eval()
    line = measured(tmp_path, 2, data)
    x, y = (
        torch.stack([data[i][0] for i in range(SAMPLES)]),
        torch.tensor([data[i][1] for i in range(SAMPLES)]),
    )
    with torch.no_grad():
        logits = model(x)
    assert line.measures["accuracy"] == float((logits.argmax(1) == y).double().mean())
    assert line.measures["loss"] == pytest.approx(
        float(nn.functional.cross_entropy(logits.double(), y)), rel=1e-6
    )


def test_nothing_of_the_training_changes(tmp_path: Path) -> None:
    config = RunConfig(target_steps=8, evaluate=EvaluateConfig(every=4, batch=8))
    threads = Threads(2)
    parts = [
        evaluator(tmp_path, rank, 2, threads.of(rank), pictures(), config) for rank in range(2)
    ]
    for part in parts:
        part.train_state.model(torch.zeros(4, 1, 4, 4)).sum().backward()
    before = [snapshot(part.train_state) for part in parts]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda part: part.evaluate(4), parts))
    assert [snapshot(part.train_state) for part in parts] == before


def snapshot(state: TrainState) -> dict[str, Any]:
    """Everything that an evaluation could have changed, as bytes and numbers."""
    model = state.model
    return {
        "parameters": [
            (p.detach().numpy().tobytes(), None if p.grad is None else p.grad.numpy().tobytes())
            for p in model.parameters()
        ],
        "buffers": [(id(b), b.numpy().tobytes()) for b in model.buffers()],
        "modes": [module.training for module in model.modules()],
        "requires": [p.requires_grad for p in model.parameters()],
        "generators": (
            torch.get_rng_state().numpy().tobytes(),
            np.random.get_state()[1].tobytes(),
            random.getstate(),
        ),  # type: ignore[index, union-attr]
        "gradients": torch.is_grad_enabled(),
    }


def test_it_is_put_back_where_the_model_fails_too(tmp_path: Path) -> None:
    part = evaluator(tmp_path, 0, 1, None, pictures(), RunConfig())
    before = snapshot(part.train_state)
    with pytest.raises(ZeroDivisionError), undisturbed(part.train_state):
        torch.rand(3)
        part.train_state.model[1].running_mean.add_(1)  # type: ignore[index, operator]
        raise ZeroDivisionError
    assert snapshot(part.train_state) == before


def test_a_diverged_model_is_measured_as_it_is(tmp_path: Path) -> None:
    part = evaluator(
        tmp_path,
        0,
        1,
        None,
        pictures(),
        RunConfig(target_steps=8, evaluate=EvaluateConfig(every=4)),
    )
    with torch.no_grad():
        part.train_state.model[5].weight.fill_(math.inf)  # type: ignore[index, operator]
    part.evaluate(4)
    (line,) = read_journal(RunLayout(tmp_path).attempt(0).evaluations, Evaluation).events
    assert math.isnan(line.measures["loss"]) and 0 <= line.measures["accuracy"] <= 1


def test_perplexity_is_of_all_tokens_and_a_task_without_measures_has_its_loss(
    tmp_path: Path,
) -> None:
    drawn = np.random.default_rng(2)
    texts = ArraySet(
        DatasetInfo("texts", 7, (5,)), drawn.integers(0, 7, (20, 5)), drawn.integers(0, 7, (20, 5))
    )
    config = RunConfig(
        target_steps=8, evaluate=EvaluateConfig(every=4, batch=6), task=TaskConfig("next_token")
    )
    part = evaluator(tmp_path, 0, 1, None, texts, config)
    torch.manual_seed(1)
    part.train_state.model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    part.evaluate(4)
    assert part.result is not None and list(part.result) == ["perplexity", "loss"]
    assert part.result["perplexity"] == math.exp(part.result["loss"])
    with torch.no_grad():
        logits = part.train_state.model(torch.from_numpy(texts.fetch(np.arange(20))[0]))
    whole = nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(texts.fetch(np.arange(20))[1]).flatten()
    )
    assert part.result["loss"] == pytest.approx(float(whole), rel=1e-6)


def test_what_is_owed_is_what_no_attempt_has_recorded(tmp_path: Path) -> None:
    part = evaluator(
        tmp_path,
        0,
        1,
        None,
        pictures(),
        RunConfig(target_steps=10, evaluate=EvaluateConfig(every=4)),
    )
    assert part.owed(4) and part.owed(10) and not part.owed(5)
    part.evaluate(4)
    again = evaluator(tmp_path, 0, 1, None, pictures(), part.config)
    assert not again.owed(4) and again.result == part.result and again.owed(8)


def test_samples_that_are_held_out_are_never_trained_on() -> None:
    whole = build_dataset(DatasetConfig("digits"))
    part = build_dataset(DatasetConfig("digits", held_out=297))
    rest = held_out_of(part)
    assert (len(part), len(rest), len(whole)) == (1500, 297, 1797)
    told = [
        {data.tobytes() for data in each.fetch(np.arange(len(each)))[0]}
        for each in (part, rest, whole)
    ]
    # but for pictures that stand there twice
    assert told[0] | told[1] == told[2] and len(told[0] & told[1]) <= len(whole) - len(told[2])
    counts = np.bincount(rest.fetch(np.arange(297))[1], minlength=10)
    assert counts.min() >= 15  # of every class


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        (
            DatasetConfig("digits"),
            (
                "digits has no held-out data: every sample is trained on; hold some out:"
                " dataset.held_out=N"
            ),
        ),
        (
            DatasetConfig("digits", held_out=1797),
            "1797 of the 1797 samples of digits leave nothing to train on; use less than 1797",
        ),
    ],
)
def test_nothing_to_measure_on_is_one_line(dataset: DatasetConfig, line: str) -> None:
    with pytest.raises(EcrlError) as raised:
        held_out_of(build_dataset(dataset))
    assert line in raised.value.line()


def test_noise_is_held_out_as_other_noise() -> None:
    dataset = build_dataset(DatasetConfig("fake", size=11, image_size=8))
    rest = held_out_of(dataset)
    assert len(rest) == 3
    ours, theirs = (each.fetch(np.arange(3))[0] for each in (dataset, rest))
    assert not np.array_equal(ours, theirs)


Measure = Callable[[nn.Module, torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]


def test_a_measure_that_is_not_one_number_per_sample_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ecrl_cli.config.tasks import TaskKind

    wrong: Measure = lambda model, x, y: {"loss": model(x).sum()}  # noqa: E731
    monkeypatch.setattr(TaskKind, "load_measures", lambda self: wrong)
    with pytest.raises(EcrlError) as raised:
        check_measures(RunConfig(evaluate=EvaluateConfig(every=1)), model_of(0), pictures())
    assert (
        "classification measures loss as () for 2 samples; return one number per sample"
        in raised.value.line()
    )


def test_a_line_is_json_that_others_read(tmp_path: Path) -> None:
    measured(tmp_path, 1, pictures())
    (text,) = RunLayout(tmp_path).attempt(0).evaluations.read_text().splitlines()
    assert set(json.loads(text)) == {
        "global_step",
        "attempt",
        "samples",
        "measures",
        "seconds",
        "at",
        "time",
    }
