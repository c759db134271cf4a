"""Computes where a run that lost samples must end, in this process, rank by rank, from the records
of which ranks took part in which step.

At most two ranks: a sum of two numbers does not depend on their order, so the result equals the
exchange's bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F

from ecrl_cli.checkpoint.capture.rng import capture_rng, restore_rng, seed_rank
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.data.datasets import build_dataset
from ecrl_cli.data.loading import BatchLoader, describe
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.models import build as build_model
from ecrl_cli.models.optimization import build_optimizer, build_scheduler
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.studies.training.live_invariants import AttemptHistory, RunHistory, contributors
from ecrl_cli.training.session import make_deterministic

Tensors = dict[str, torch.Tensor]


def can_tell(history: RunHistory) -> bool:
    """Only for two ranks that always recovered in memory; with new ranks only if no random numbers
    are drawn.
    """
    if history.config.world_size > 2 or not recovery_of(history.config).loses_samples:
        return False
    begun_anew = any(logs.attempt.memory != SURVIVORS for logs in history.attempts[1:])
    newcomers = any(logs.attempt.joined for logs in history.attempts)
    return not begun_anew and not (newcomers and history.config.model.dropout)


def foretold(history: RunHistory) -> set[str]:
    """The possible final digests of parameters, buffers and optimizer: several if the leader died
    with all gradients sent and no record says whether its buffers were, too.
    """
    return {
        _end(history, frozenset(kept))
        for count in range(len(_open(history)) + 1)
        for kept in combinations(_open(history), count)
    }


def _open(history: RunHistory) -> list[int]:
    """The steps for which it is unknown whose buffers were taken."""
    return [
        each.global_step
        for logs in history.attempts
        for each in logs.redone
        if each.first == each.buckets and 0 in each.lost
    ]


def _end(history: RunHistory, kept: frozenset[int]) -> str:
    oracle = Oracle(history, kept)
    for before, logs in zip((None, *history.attempts), history.attempts, strict=False):
        oracle.begin(before, logs)
        last = max((line.global_step for lines in logs.lines.values() for line in lines), default=0)
        for step in range(logs.attempt.resumed_from_step + 1, last + 1):
            oracle.step(logs, step)
        if any(not each.left for each in logs.redone):
            oracle.drop()
    return oracle.digests()


@dataclass
class Oracle:
    """The training of all ranks in one process. `kept`: steps after which all ranks have the
    buffers of a leader that died in them. `generators`: by rank of the attempt.
    """

    history: RunHistory
    kept: frozenset[int]
    generators: dict[int, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.history.config
        self.device = make_deterministic(config, 0)
        dataset = build_dataset(config.dataset)
        record = describe(dataset)
        self.loader = BatchLoader(
            dataset, config.seed, config.dataset.augment, config.checkpoint.digest
        )
        self.model = build_model(config.model, record.classes, record.shape)
        self.optimizer = build_optimizer(config.optimizer, self.model.parameters())
        self.scheduler = build_scheduler(config.optimizer, self.optimizer, config.target_steps)
        self.sampler = ResumableGlobalBatchSampler(record.size, config.global_batch, config.seed)

    def begin(self, before: AttemptHistory | None, logs: AttemptHistory) -> None:
        """Start an attempt: its ranks keep their generators from the one before; new ranks start
        with fresh ones.
        """
        attempt, kept = logs.attempt, self.generators
        self.generators = {}
        for rank in range(attempt.world_size):
            stayed = before is not None and rank not in attempt.joined
            if stayed:
                self.generators[rank] = kept[attempt.origins[rank]]
            else:
                seed_rank(self.history.config.seed, rank, attempt.resumed_from_step)
                self.generators[rank] = capture_rng(self.device)

    def step(self, logs: AttemptHistory, global_step: int) -> None:
        world, redone = logs.attempt.world_size, logs.redone
        ranks = [self._trained(rank, world) for rank in range(world)]
        bucket_of = {name: number for number, layers in enumerate(logs.layers) for name in layers}
        for name, parameter in self.model.named_parameters():
            who = contributors(redone, global_step, bucket_of.get(name, 0), world)
            parameter.grad = torch.stack([ranks[rank][0][name] / len(who) for rank in who]).sum(0)
        leader = (
            0
            if global_step in self.kept
            else contributors(redone, global_step, len(logs.layers), world)[0]
        )
        self._set_buffers(ranks[leader][1])
        self.optimizer.step()
        self.scheduler.step()
        self.sampler.advance()

    def drop(self) -> None:
        """Go past a step that the survivors dropped: cursor and schedule only."""
        self.scheduler.step()
        self.sampler.advance()

    def _trained(self, rank: int, world: int) -> tuple[Tensors, Tensors]:
        """(gradients, buffers) of one rank; the model is unchanged afterwards, except for its
        gradients.
        """
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        restore_rng(self.generators[rank], self.device)
        batch = self.loader.batch(self.sampler.epoch, self.sampler.shard(rank, world))
        self.optimizer.zero_grad(set_to_none=True)
        loss: Any = F.cross_entropy(self.model(batch.x).float(), batch.y)
        loss.backward()
        self.generators[rank] = capture_rng(self.device)
        gradients: Tensors = {
            name: _gradient(parameter) for name, parameter in self.model.named_parameters()
        }
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        self._set_buffers(before)
        return gradients, buffers

    def _set_buffers(self, values: Tensors) -> None:
        for name, buffer in self.model.named_buffers():
            buffer.copy_(values[name])

    def digests(self) -> str:
        train_state = TrainState(
            self.model,
            self.optimizer,
            self.scheduler,
            None,
            self.sampler,
            0,
            1,
            digest=self.history.config.checkpoint.digest,
        )
        found = train_state.digests()
        return " ".join((found.parameters, found.buffers, found.optimizer))


def _gradient(parameter: Any) -> torch.Tensor:
    gradient: torch.Tensor = parameter.grad
    return gradient.clone()
