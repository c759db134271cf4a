"""What a surviving rank records when its attempt ends: its survivor report and the lost samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.data.order import ResumableGlobalBatchSampler, position
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import AttemptLayout
from ecrl_cli.records.survivor_records import LostSamples, RedoneStep, SurvivorReport
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup
from ecrl_cli.recovery.lost_samples import lost
from ecrl_cli.storage.files import write_whole

Layers = tuple[tuple[str, ...], ...]


def write_survivor_report(
    logs: AttemptLayout, attempt: int, global_step: int, rank: int, peers: FaultTolerantGroup, train_state: TrainState | None
) -> SurvivorReport:
    """Write the report, durably. `train_state` None: this rank keeps no state and goes back to a checkpoint with all others."""
    redone = tuple(peers.redone)
    layers = layers_of(train_state.model, peers.parameters) if train_state and redone else ()
    digest = train_state.state_digest() if train_state else ""
    survivor_report = SurvivorReport(global_step, attempt, rank, peers.alive, redone, layers, digest, monotonic(), wall())
    write_whole(logs.survivor_report(rank), line_of(survivor_report))
    return survivor_report


def layers_of(model: torch.nn.Module, buckets: dict[int, list[torch.Tensor]]) -> Layers:
    """The parameter names of each bucket, in bucket order."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return tuple(tuple(names[parameter] for parameter in buckets[index]) for index in sorted(buckets))


def enter(logs: AttemptLayout, survivor_report: SurvivorReport, sampler: ResumableGlobalBatchSampler, world_size: int, cause: str) -> None:
    """Write the attempt's lost samples: the dead ranks' share of the mini-batch that was finished without them. `cause`: the recovery's name."""
    lines = lost_samples(survivor_report.redone, survivor_report.layers, sampler, world_size, cause)
    if lines:
        write_whole(logs.lost_samples(survivor_report.rank), b"".join(map(line_of, lines)))


def lost_samples(
    redone: Sequence[RedoneStep], layers: Layers, sampler: ResumableGlobalBatchSampler, world_size: int, cause: str
) -> list[LostSamples]:
    """One line for each dead rank: its samples have no influence from the first bucket that was reduced again without it."""
    lines = []
    for number, death in enumerate(redone):
        first = min(each.first for each in redone[number:])
        names = [name for bucket in layers[first:] for name in bucket]
        due = ResumableGlobalBatchSampler(sampler.size, sampler.global_batch, sampler.seed)
        due.epoch, due.cursor_step = position(death.global_step, due.steps_per_epoch)
        for rank in death.lost:
            samples = [int(sample) for sample in due.shard(rank, world_size)]
            lines += lost(death.global_step, samples, names, (rank,), cause)
    return lines
