"""How often digests of the state are logged: worked out once from measured times, the same for all
ranks and attempts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.errors import RecordError
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.state_digests import RANK_COMPONENTS, DigestInterval, digests_due, worked_out
from ecrl_cli.training.state_digests import DigestSchedule

CONFIG = RunConfig(target_steps=100, checkpoint=CheckpointConfig(every=10))


class Peers:
    """Two ranks; `told`: what rank 0 says, or nothing where this is rank 0. `seen`: whether the
    interval was on record when they were asked.
    """

    def __init__(self, layout: RunLayout, told: list[int] | None = None) -> None:
        self.layout, self.told, self.seen = layout, told, list[bool]()

    def barrier(self) -> None: ...

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.seen.append(self.layout.state_digests.exists())
        return [own if self.told is None else torch.tensor(self.told), own]


def train_state_of(rank: int, peers: Peers) -> TrainState:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return TrainState(
        model, optimizer, schedule, None, ResumableGlobalBatchSampler(64, 8, 1), rank, 2, peers
    )


def measure(
    schedule: DigestSchedule, train_state: TrainState, step_s: float = 0.1, digest_s: float = 0.002
) -> None:
    for slower in (9.0, 1.0, 1.5):
        schedule.measured(slower * step_s, slower * digest_s)
        schedule.agree(train_state)


@pytest.mark.parametrize(
    ("digest_s", "step_s", "every"),
    [
        (0.0, 0.1, 1),
        (0.0005, 0.1, 1),
        (0.0006, 0.1, 2),
        (0.004, 0.1, 8),
        (0.006, 0.1, 16),
        (1.0, 0.0, 2**20),
    ],
)
def test_the_interval_is_the_shortest_that_costs_its_share(
    digest_s: float, step_s: float, every: int
) -> None:
    """At checkpoints digests are due whatever they cost: else a bad checkpoint that is never
    resumed from would be called whole.
    """
    assert worked_out(digest_s, step_s) == DigestInterval(every, True, digest_s, step_s)


def test_due_are_the_interval_the_first_step_of_an_attempt_checkpoints_and_the_last() -> None:
    due = [
        step
        for step in range(24, 101)
        if digests_due(CONFIG, DigestInterval(16, True, 0.0, 0.0), 23)(step)
    ]
    assert due == [24, 30, 32, 40, 48, 50, 60, 64, 70, 80, 90, 96, 100]
    assert [
        step
        for step in range(24, 101)
        if digests_due(CONFIG, DigestInterval(64, False, 0.0, 0.0), 23)(step)
    ] == [24, 64, 100]


def test_rank_0_records_the_interval_before_it_tells_the_others(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    peers = Peers(layout)
    train_state = train_state_of(0, peers)
    schedule = DigestSchedule(CONFIG, layout, 0, train_state)
    assert all(map(schedule.due, range(1, 101)))
    measure(schedule, train_state)
    assert peers.seen == [False, True]
    assert json.loads(layout.state_digests.read_text()) == {
        "every": 4,
        "at_checkpoints": True,
        "digest_s": 0.002,
        "step_s": 0.1,
    }
    assert [step for step in range(1, 20) if schedule.due(step)] == [1, 4, 8, 10, 12, 16]
    later = DigestSchedule(CONFIG, layout, 9, train_state)
    assert [step for step in range(10, 21) if later.due(step)] == [10, 12, 16, 20]


def test_another_rank_takes_what_rank_0_measured(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    peers = Peers(layout, [0, 0])
    train_state = train_state_of(1, peers)
    schedule = DigestSchedule(CONFIG, layout, 0, train_state)
    peers.told = [32, 0]
    measure(schedule, train_state)
    assert not layout.state_digests.exists()
    assert [step for step in range(1, 101) if schedule.due(step)] == [1, 32, 64, 96, 100]


def test_a_rank_that_reads_an_older_folder_follows_rank_0(tmp_path: Path) -> None:
    """On another machine the record may not be seen yet: the ranks go by what rank 0 has read."""
    layout = RunLayout(tmp_path)
    schedule = DigestSchedule(CONFIG, layout, 9, train_state_of(1, Peers(layout, [4, 1])))
    assert [step for step in range(10, 21) if schedule.due(step)] == [10, 12, 16, 20]


def test_a_damaged_record_is_refused_in_one_line(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.state_digests.write_text('{"every": "often"}')
    with pytest.raises(RecordError, match="not an interval of digests"):
        DigestSchedule(CONFIG, layout, 0, train_state_of(0, Peers(layout)))


@pytest.mark.parametrize(
    ("asked", "due"), [("true", [1, 2, 3]), ("false", []), (True, [1, 2, 3]), (False, [])]
)
def test_always_and_never_measure_nothing(tmp_path: Path, asked: Any, due: list[int]) -> None:
    layout = RunLayout(tmp_path)
    peers = Peers(layout)
    train_state = train_state_of(0, peers)
    schedule = DigestSchedule(RunConfig(state_digests=asked), layout, 0, train_state)
    measure(schedule, train_state)
    assert (
        [step for step in (1, 2, 3) if schedule.due(step)] == due
        and not peers.seen
        and not layout.state_digests.exists()
    )


def spoil_momentum(train_state: TrainState) -> None:
    for entries in train_state.optimizer.state.values():
        entries["momentum_buffer"].add_(1e-3)


def spoil_order(train_state: TrainState) -> None:
    """Two elements change places: a sum would not see it."""
    weight = next(iter(train_state.model.parameters())).data
    weight[0, [0, 1]] = weight[0, [1, 0]].clone()


CHANGES: dict[str, tuple[Any, set[str]]] = {
    "two weights exchanged": (spoil_order, {"parameters"}),
    "running statistics": (
        lambda train_state: train_state.model[1].running_mean.add_(1e-3),
        {"buffers"},
    ),
    "momentum": (spoil_momentum, {"optimizer"}),
    "its factor": (
        lambda train_state: train_state.optimizer.param_groups[0].update(momentum=0.5),
        {"train"},
    ),
    "the schedule": (lambda train_state: train_state.scheduler.step(), {"train"}),
    "generators": (lambda train_state: torch.rand(1), {"rng"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_component_is_seen_to_change_alone(tmp_path: Path, name: str) -> None:
    train_state, progress = (
        train_state_of(0, Peers(RunLayout(tmp_path))),
        TrainPosition(1, 0, 1, 1, ""),
    )
    train_state.model(torch.ones(2, 4)).sum().backward()
    train_state.optimizer.step()
    before = train_state.rank_digests(progress)
    assert (
        train_state.rank_digests(progress) == before and before.state == train_state.state_digest()
    )
    change, components = CHANGES[name]
    change(train_state)
    after = train_state.rank_digests(progress)
    assert {
        each for each in RANK_COMPONENTS if getattr(after.rank, each) != getattr(before.rank, each)
    } == components
    assert (after.state != before.state) == bool(
        components & {"parameters", "buffers", "optimizer"}
    )


def test_the_end_of_every_rank_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    train_state, progress = (
        train_state_of(0, Peers(RunLayout(tmp_path))),
        TrainPosition(1, 0, 1, 1, ""),
    )
    first, second = train_state.rank_states(progress)
    assert first == train_state.rank_digests(progress).rank and (first.rank, second.rank) == (0, 1)
