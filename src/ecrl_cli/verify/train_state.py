"""Checks the non-tensor state against the configuration: learning rate, schedule, gradient scaler,
cursor, hyperparameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ecrl_cli.checkpoint.format.train_document import TRAIN_STATE
from ecrl_cli.config.legs import schedule_after
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.order import position, steps_per_epoch
from ecrl_cli.errors import shown
from ecrl_cli.history.divergence import same_float
from ecrl_cli.history.lineage import ancestry, lines_of_step
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import Attempt, RankLine
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.verify.disk_state import StoredCheckpoint
from ecrl_cli.verify.state_columns import rates_as_due
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# torch computes the cosine recursively, each value from the previous one, and not in closed form as
# here: rounding errors add up to less than this share of optimizer.lr in a million steps.
LR_TOLERANCE = 1e-12
# Hyperparameters that no configuration changes, as torch's optimizers have them. A version of torch
# may lack some.
FIXED: dict[str, dict[str, Any]] = {
    "sgd": {"dampening": 0, "nesterov": False, "maximize": False},
    "adamw": {"betas": [0.9, 0.999], "eps": 1e-8, "amsgrad": False, "maximize": False},
}
# Defaults of torch.amp.GradScaler: initial scale, growth and backoff factors, steps without
# overflow before it grows.
FIRST_SCALE, GROWTH, BACKOFF, GROWTH_INTERVAL = 65536.0, 2.0, 0.5, 2000

Scale = tuple[float | None, int | None]


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate that the schedule sets after `step`: a cosine from `lr` to `min_lr`, once
    for each leg of the run.
    """
    low, high = config.optimizer.min_lr, config.optimizer.lr
    steps, done = schedule_after(config, step)
    return low + (high - low) * (1 + math.cos(math.pi * done / steps)) / 2


def check_settings(case: Case, notes: FindingBuilder) -> int:
    """Every line has the schedule's learning rate, and a scaler state that follows from the
    previous step's; returns how many lines were checked.
    """
    config, looked_at = case.run.stored.config, 0
    for a in case.attempts:
        scale = _scale_before(case, a) if config.precision == "fp16" else None
        for rank, lines in sorted(case.run.logs(a.attempt).ranks.items()):
            columns = rank_columns(lines)
            if (
                columns is not None
                and scale is None
                and rates_as_due(config, columns, LR_TOLERANCE * config.optimizer.lr / 2)
            ):
                looked_at += int(np.count_nonzero(~np.isnan(columns.lr)))
                continue
            lines_with_lr = [line for line in lines.events if line.lr is not None]
            looked_at += len(lines_with_lr)
            _check_rates(config, a.attempt, rank, lines_with_lr, notes)
            if scale is None and (
                scaled := [
                    line
                    for line in lines.events
                    if (line.loss_scale, line.growth_tracker) != (None, None)
                ]
            ):
                who = f"step {scaled[0].global_step} of attempt {a.attempt} rank {rank}"
                notes.broken(
                    f"{who}: a gradient scaler is on record, precision={config.precision} has none"
                )
            if scale is not None:
                _check_scales(a, rank, lines_with_lr, scale, notes)
    return looked_at


def _check_rates(
    config: RunConfig, attempt: int, rank: int, lines: list[RankLine], notes: FindingBuilder
) -> None:
    wrong = [
        line
        for line in lines
        if line.lr is not None and not _is_rate(config, line.global_step, line.lr)
    ]
    for line in wrong[:1]:
        due = learning_rate(config, line.global_step)
        notes.broken(
            f"step {line.global_step} of attempt {attempt} rank {rank}: the learning rate is"
            f" {line.lr!r}, the schedule's is {due:.12g} ({len(wrong)} such steps)"
        )


def _is_rate(config: RunConfig, step: int, rate: Any) -> bool:
    return (
        isinstance(rate, int | float)
        and abs(rate - learning_rate(config, step)) <= LR_TOLERANCE * config.optimizer.lr
    )


def _check_scales(
    a: Attempt, rank: int, lines: list[RankLine], before: Scale, notes: FindingBuilder
) -> None:
    step = a.resumed_from_step
    for line in lines:
        now = (line.loss_scale, line.growth_tracker)
        who = f"step {line.global_step} of attempt {a.attempt} rank {rank}"
        if None in now:
            notes.missing(f"{who}: nothing is on record of the gradient scaler")
            return
        if line.global_step == step + 1 and None not in before and now not in _following(before):
            notes.broken(
                f"{who}: loss scale {now[0]}, growth tracker {now[1]} do not follow from"
                f" {before[0]} and {before[1]} after step {step}"
            )
            return
        before, step = now, line.global_step


def _following(before: Scale) -> list[Scale]:
    """The possible scaler states after one more step: without overflow, possibly growing; or with
    overflow.
    """
    scale, tracker = before
    assert scale is not None and tracker is not None
    grows = tracker + 1 >= GROWTH_INTERVAL
    return [
        (scale * BACKOFF, 0),
        *([(scale * GROWTH, 0), (scale, 0)] if grows else [(scale, tracker + 1)]),
    ]


def _scale_before(case: Case, a: Attempt) -> Scale:
    """The scaler's state after the step that `a` resumes after; None where no line records it."""
    step = a.resumed_from_step
    if step == 0:
        return FIRST_SCALE, 0
    segment = ancestry(case.run, a.attempt, step).of(step)
    ranks = case.run.logs(segment.attempt).ranks if segment else {}
    lines = [line for _, each in sorted(ranks.items()) for line in lines_of_step(each, step)]
    return (lines[0].loss_scale, lines[0].growth_tracker) if lines else (None, None)


def check_documents(case: Case, notes: FindingBuilder) -> int:
    """train.json of each checkpoint agrees with configuration, manifest and logs; returns how many
    were checked.
    """
    looked_at = 0
    for c in case.disk:
        if not c.report.ok or c.report.manifest is None:
            continue
        if missing := [name for name in TRAIN_STATE if name not in c.train]:
            if recorded_by_rank(case.run.stored.config):
                notes.missing(f"train.json of {c.path} has no {', '.join(missing)}")
            continue
        looked_at, config = looked_at + 1, case.run.stored.config
        for text in (
            *_wrong_place(case, c),
            *_wrong_schedule(config, c),
            *_wrong_groups(config, c),
            *_wrong_loss(case, c),
        ):
            notes.broken(f"train.json of {c.path} has {text}")
    return looked_at


def _wrong_place(case: Case, c: StoredCheckpoint) -> list[str]:
    """Differences of cursor, epoch, seed and step from the manifest and the sample order."""
    manifest, config, sampler = (
        c.report.manifest,
        case.run.stored.config,
        _mapping(c.train["sampler"]),
    )
    assert manifest is not None
    due = {"global_step": c.step, "world_size": manifest.world_size}
    found = _unlike(due, c.train)
    place = {"epoch": manifest.epoch, "cursor_step": manifest.cursor_step, "seed": config.seed}
    if case.run.dataset is not None:
        epoch, cursor = position(
            c.step + 1, steps_per_epoch(case.run.dataset.size, config.global_batch)
        )
        place |= {"epoch": epoch, "cursor_step": cursor}
        if (manifest.epoch, manifest.cursor_step) != (epoch, cursor):
            found.append(
                f"a manifest of epoch {manifest.epoch} and cursor_step {manifest.cursor_step}, not"
                f" {epoch} and {cursor}"
            )
    return found + _unlike(place, sampler)


def _wrong_schedule(config: RunConfig, c: StoredCheckpoint) -> list[str]:
    schedule = _mapping(c.train["scheduler"])
    steps, done = schedule_after(config, c.step)
    found = _unlike(
        {"last_epoch": done, "T_max": steps, "eta_min": config.optimizer.min_lr}, schedule
    )
    rates = schedule.get("_last_lr")
    if isinstance(rates, list) and not all(_is_rate(config, c.step, rate) for rate in rates):
        found.append(
            f"learning rate {shown(rates[0] if rates else None)} in its schedule, not"
            f" {learning_rate(config, c.step):.12g}"
        )
    return found


def _wrong_groups(config: RunConfig, c: StoredCheckpoint) -> list[str]:
    """Differences of the optimizer's hyperparameters from the configuration."""
    optimizer, found = config.optimizer, list[str]()
    due: dict[str, Any] = {"weight_decay": optimizer.weight_decay, "initial_lr": optimizer.lr}
    if optimizer.name == "sgd":
        due["momentum"] = optimizer.momentum
    groups = _mapping(c.train["optimizer"]).get("param_groups")
    for group in groups if isinstance(groups, list) else [None]:
        values = _mapping(group)
        found += _unlike(due, values)
        found += [
            f"{name} {shown(values[name])}, not {value!r}"
            for name, value in FIXED.get(optimizer.name, {}).items()
            if name in values and values[name] != value
        ]
        if not _is_rate(config, c.step, values.get("lr")):
            found.append(
                f"learning rate {shown(values.get('lr'))}, not {learning_rate(config, c.step):.12g}"
            )
    return found


def _wrong_loss(case: Case, c: StoredCheckpoint) -> list[str]:
    """The stored loss, if it differs from rank 0's line: in plain data parallelism they are the
    same number.
    """
    committed = case.committed(c)
    if (
        committed is None
        or "loss" not in c.train
        or 0 not in (ranks := case.run.logs(committed.attempt).ranks)
    ):
        return []
    lines = [line.loss for line in lines_of_step(ranks[0], c.step)]
    loss = c.train["loss"]
    if (
        not lines
        or not isinstance(lines[0], float)
        or (isinstance(loss, int | float) and same_float(float(loss), lines[0]))
    ):
        return []
    return [f"loss {shown(loss)}, not {lines[0]!r}"]


def _unlike(due: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """One text for each value that is not the one due. 1 and 1.0 are equal; a bool never
    matches.
    """
    wrong = [
        name
        for name, value in due.items()
        if isinstance(values.get(name), bool) or values.get(name) != value
    ]
    return [f"{name} {shown(values.get(name))}, not {due[name]!r}" for name in wrong]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
